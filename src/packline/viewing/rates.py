"""Bytes per token by document: the usual range, and the documents outside it.

Text that a tokenizer was not made for (another script, base64, noise) has few bytes per token, and text of
spaces or of one long known word has many. The limits come from the store itself: one and a half times the
interquartile distance of the logarithm beyond the quartiles, and at least a factor of two from the median.

Rates are counted in classes of a 32nd of an octave (2% wide), and limits lie between classes. Counts can
therefore be summed over processes, the number of documents outside is exact, and memory is 5 KB for a store
of any size. Only documents of at least 32 tokens are counted. Limits: languages are not distinguished, so in
a store of many languages only extreme documents are outside the range.
"""

from __future__ import annotations

import msgspec
import numpy as np

CLASSES_AN_OCTAVE = 32
LOWEST, HIGHEST = -6, 14
"""Octaves: from 1/64 byte per token to 16,384; rates beyond count in the outermost class."""
CLASSES = (HIGHEST - LOWEST) * CLASSES_AN_OCTAVE
BEYOND = 1.5
"""Distance of the limits beyond the quartiles, in interquartile distances."""


class Rates(msgspec.Struct, frozen=True):
    """Bytes per token of the documents that were counted, and the limits of the usual range."""

    documents: int
    median: float
    low: float
    """Lower limit; documents below it have few bytes per token."""
    high: float
    """Upper limit; documents at or above it have many bytes per token."""
    few: int
    """Number of documents below `low`."""
    many: int


def class_of(rates: np.ndarray) -> np.ndarray:
    """Class of each rate, int64.

    >>> class_of(np.array([1.0, 2.0, 0.0])).tolist()
    [192, 224, 0]
    """
    octaves = np.log2(np.maximum(rates, 2.0**LOWEST)) - LOWEST
    return np.minimum((octaves * CLASSES_AN_OCTAVE).astype(np.int64), CLASSES - 1)


def edge_of(number: int) -> float:
    """Rate at which a class begins.

    >>> edge_of(192), edge_of(224)
    (1.0, 2.0)
    """
    return float(2.0 ** (number / CLASSES_AN_OCTAVE + LOWEST))


def measure_rates(counts: np.ndarray) -> Rates:
    """Compute the usual range from counts of documents by class.

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
