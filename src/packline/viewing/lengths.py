"""Lengths of documents: exact counts from the indexes, for any number of documents.

Lengths up to a million tokens are counted by value, so quantiles are exact there and memory is 8 MB for any
store. One pass over the `.idx` files; no tokens are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from packline.store.reader import StoreReader

LONGEST_COUNTED = 1 << 20
BLOCK = 1 << 20
"""Documents counted at a time."""


class Lengths(msgspec.Struct, frozen=True):
    """Tokens per document, boundary tokens included."""

    shortest: int
    median: int
    mean: float
    p90: int
    p99: int
    longest: int
    histogram: list[int]
    """Documents of 1, 2 to 3, 4 to 7, ... tokens: entry k counts lengths from 2**k to 2**(k+1) - 1."""


def measure_lengths(store: StoreReader) -> Lengths:
    """Measure the lengths of all documents of a store.

    Raises:
        CorruptStore: an index is damaged.
    """
    counts = np.zeros(LONGEST_COUNTED + 1, np.int64)
    histogram = np.zeros(32, np.int64)
    longest = 0
    for lengths in _blocks(store):
        longest = max(longest, int(lengths.max()))
        counts += np.bincount(np.minimum(lengths, LONGEST_COUNTED), minlength=len(counts))
        powers = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
        histogram += np.bincount(powers, minlength=32)
    documents = int(counts.sum())
    if not documents:
        return Lengths(0, 0, 0.0, 0, 0, 0, [])
    sums = np.cumsum(counts)

    def quantile(share: float) -> int:
        place = min(int(share * documents), documents - 1)
        return int(np.searchsorted(sums, place, side="right"))

    last = int(np.flatnonzero(histogram)[-1])
    return Lengths(
        quantile(0),
        quantile(0.5),
        store.manifest.tokens / documents,
        quantile(0.9),
        quantile(0.99),
        longest,
        histogram[: last + 1].tolist(),
    )


def _blocks(store: StoreReader) -> Iterator[np.ndarray]:
    """Lengths of all documents in order, small shards joined because counting has a cost per block."""
    waiting: list[np.ndarray] = []
    held = 0
    for shard in store.shards:
        waiting.append(np.array(shard.lengths))  # a copy, so that no memory map stays open
        held += len(waiting[-1])
        if held >= BLOCK:
            yield np.concatenate(waiting)
            waiting, held = [], 0
    if held:
        yield np.concatenate(waiting)
