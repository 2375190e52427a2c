"""Bytes a token, document by document: how far they usually lie apart, and which documents lie outside.

Text that a tokenizer was not made for (another script, base64, noise) takes few bytes a token, and text that
is all spaces or one long known word takes many. What is few is for the store itself to say: quartiles of the
logarithm, and one and a half times their distance beyond them, but at least a factor of two from the median.

Rates are counted in classes of a 32nd of an octave (2% wide), and limits lie between classes. So counts can
be summed over processes, how many documents lie outside is exact, and memory is 5 KB whatever the store.
Asked only of documents of 32 tokens and more. What it does not do: tell languages apart, so in a store of
many of them only the utterly strange lies outside.
"""

from __future__ import annotations

import msgspec
import numpy as np

CLASSES_AN_OCTAVE = 32
LOWEST, HIGHEST = -6, 14
"""Octaves: from 1/64 of a byte a token to 16,384; beyond them counts as the outermost class."""
CLASSES = (HIGHEST - LOWEST) * CLASSES_AN_OCTAVE
BEYOND = 1.5
"""Distances between the quartiles, beyond them."""


class Rates(msgspec.Struct, frozen=True):
    """Bytes a token of the documents that were asked, and the limits of what is usual."""

    documents: int
    median: float
    low: float
    """Below it is few."""
    high: float
    """From it on is many."""
    few: int
    """Documents below `low`."""
    many: int


def class_of(rates: np.ndarray) -> np.ndarray:
    """The class of each rate, int64.

    >>> class_of(np.array([1.0, 2.0, 0.0])).tolist()
    [192, 224, 0]
    """
    octaves = np.log2(np.maximum(rates, 2.0**LOWEST)) - LOWEST
    return np.minimum((octaves * CLASSES_AN_OCTAVE).astype(np.int64), CLASSES - 1)


def edge_of(number: int) -> float:
    """The rate at which a class begins.

    >>> edge_of(192), edge_of(224)
    (1.0, 2.0)
    """
    return float(2.0 ** (number / CLASSES_AN_OCTAVE + LOWEST))


def measure_rates(counts: np.ndarray) -> Rates:
    """What is usual, from counts of documents by class.

    >>> counts = np.zeros(CLASSES, np.int64)
    >>> counts[[192, 250, 320]] = 1, 100, 1
    >>> rates = measure_rates(counts)
    >>> rates.documents, rates.few, rates.many
    (102, 1, 1)
    """
    documents = int(counts.sum())
    if not documents:
        return Rates(0, 0.0, 0.0, 0.0, 0, 0)
    sums = np.cumsum(counts)
    first, middle, last = (
        int(np.searchsorted(sums, min(int(share * documents), documents - 1), side="right"))
        for share in (0.25, 0.5, 0.75)
    )
    beyond = round(BEYOND * (last - first))
    low = max(min(first - beyond, middle - CLASSES_AN_OCTAVE), 0)
    high = min(max(last + 1 + beyond, middle + 1 + CLASSES_AN_OCTAVE), CLASSES)
    few, many = int(counts[:low].sum()), int(counts[high:].sum())
    return Rates(
        documents, (edge_of(middle) + edge_of(middle + 1)) / 2, edge_of(low), edge_of(high), few, many
    )
