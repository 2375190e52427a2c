"""Counts of a store: totals of its groups and lengths of its documents.

Lengths up to a million tokens are counted by value, so quantiles are exact there and memory is 8 MB for a
store of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np

from packline.store.reader import StoreReader, shard_labels

LONGEST_COUNTED = 1 << 20
BLOCK = 1 << 20


class Group(msgspec.Struct, frozen=True):
    """Totals for one split, source and label of a store."""

    split: str
    source: str
    label: str | None
    documents: int
    tokens: int
    text_bytes: int
    shards: int


class DocumentLengths(msgspec.Struct, frozen=True):
    """Tokens per document, boundary tokens included."""

    shortest: int
    median: int
    mean: float
    p90: int
    p99: int
    longest: int
    histogram: list[int]
    """Documents of 1, 2 to 3, 4 to 7, ... tokens: entry k counts lengths from 2**k to 2**(k+1) - 1."""


def group_shards(store: StoreReader, text_bytes: Mapping[int, int] | None = None) -> list[Group]:
    """Totals by split, source and label, with sources in the order of the recipe."""
    groups: dict[tuple[str, int, str, str | None], list[int]] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, shard_labels(store), strict=True)):
        sums = groups.setdefault((shard.split, *origin), [0, 0, 0, 0])
        counts = (shard.documents, shard.tokens, (text_bytes or {}).get(number, 0), 1)
        for place, count in enumerate(counts):
            sums[place] += count
    return [
        Group(split, source, label, *sums)
        for (split, _, source, label), sums in sorted(groups.items(), key=lambda item: item[0][:2])
    ]


def measure_lengths(store: StoreReader) -> DocumentLengths:
    return summarize_lengths(length_blocks(store))


def summarize_lengths(blocks: Iterator[np.ndarray]) -> DocumentLengths:
    """Summarize lengths.

    Args:
        blocks: lengths, integers `[D]` each, not empty.
    """
    counts = np.zeros(LONGEST_COUNTED + 1, np.int64)
    histogram = np.zeros(32, np.int64)
    longest = tokens = 0
    for lengths in blocks:
        longest, tokens = max(longest, int(lengths.max())), tokens + int(lengths.sum(dtype=np.int64))
        counts += np.bincount(np.minimum(lengths, LONGEST_COUNTED), minlength=len(counts))
        powers = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
        histogram += np.bincount(powers, minlength=32)
    documents = int(counts.sum())
    if not documents:
        return DocumentLengths(0, 0, 0.0, 0, 0, 0, [])
    sums = np.cumsum(counts)

    def quantile(share: float) -> int:
        place = min(int(share * documents), documents - 1)
        return int(np.searchsorted(sums, place, side="right"))

    last = int(np.flatnonzero(histogram)[-1])
    return DocumentLengths(
        quantile(0),
        quantile(0.5),
        tokens / documents,
        quantile(0.9),
        quantile(0.99),
        longest,
        histogram[: last + 1].tolist(),
    )


def length_blocks(store: StoreReader) -> Iterator[np.ndarray]:
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
