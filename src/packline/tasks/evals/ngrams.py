"""Hashes of n-grams, for arrays at a time, and an index of those that evaluation sets are made of.

A gram is n values in a row; its hash is `sum(value[i] * BASE**(n-1-i))` modulo 2**64, put together from those
of 1, 2, 4, ... values, so that n = 13 takes five multiplications and additions a place:

    h13[i] = h8[i] * BASE**5 + h4[i+8] * BASE**1 + h1[i+12]

The index holds the sorted hashes of all grams with the text and the place of each, 16 bytes a gram, and two
tables of bits that turn away nearly everything else with a look or two. Cost: about 10 ns a place. Equal
hashes are only candidates: who asks compares the grams themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BASE = 0x9E3779B97F4A7C15
MASK = 2**64 - 1
FILTER_BITS = 24, 27
"""At most 2 MB for one table, which a core's cache holds, and 16 MB for the other; less for few grams."""


def mix(values: np.ndarray) -> np.ndarray:
    """Small integers as well-spread uint64, each one for itself (SplitMix64)."""
    mixed = (values.astype(np.uint64) + np.uint64(1)) * np.uint64(BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def gram_hashes(values: np.ndarray, n: int) -> np.ndarray:
    """The hash of the gram that begins at each place, uint64 `[T - n + 1]`, empty where there is none.

    Args:
        values: well-spread uint64 `[T]`.
        n: how many make a gram, 1 or more.

    >>> one, other = np.array([5, 1, 2, 3], np.uint64), np.array([1, 2, 3, 4], np.uint64)
    >>> bool(gram_hashes(one, 3)[1] == gram_hashes(other, 3)[0])
    True
    """
    places = len(values) - n + 1
    if places <= 0:
        return np.empty(0, np.uint64)
    found: np.ndarray | None = None
    power, width, taken, left = values, 1, 0, n
    parts: list[tuple[np.ndarray, int]] = []
    while left:
        if left & 1:
            parts.append((power, width))
        left >>= 1
        if left:
            power = power[:-width] * np.uint64(pow(BASE, width, MASK + 1)) + power[width:]
            width *= 2
    for hashes, size in reversed(parts):
        stretch = hashes[taken : taken + places]
        found = stretch.copy() if found is None else found * np.uint64(pow(BASE, size, MASK + 1)) + stretch
        taken += size
    assert found is not None
    return found ^ (found >> np.uint64(32))


def varied(values: np.ndarray, n: int) -> np.ndarray:
    """Whether the gram that begins at each place has at least n / 2 different values, bool `[T - n + 1]`.

    A run of spaces or of dots is in every text and says nothing.

    >>> varied(np.array([1, 1, 1, 1, 2, 3]), 4).tolist()
    [False, True, True]
    """
    if len(values) < n:
        return np.empty(0, np.bool_)
    grams = np.sort(np.lib.stride_tricks.sliding_window_view(values, n), axis=1)
    different = 1 + np.count_nonzero(grams[:, 1:] != grams[:, :-1], axis=1)
    return np.asarray(2 * different >= n)


class Matches(NamedTuple):
    """Places that may hold a known gram: each pair once."""

    places: np.ndarray
    """int64 `[M]`, in the values that were looked through."""
    texts: np.ndarray
    """int64 `[M]`: of which text the gram is."""
    positions: np.ndarray
    """int64 `[M]`: where it begins there."""


class GramIndex:
    """The grams of texts.

    Args:
        hashes: uint64 `[G]`, sorted.
        texts: int32 `[G]`: of which text each is.
        positions: int32 `[G]`: where in that text.
    """

    def __init__(self, hashes: np.ndarray, texts: np.ndarray, positions: np.ndarray) -> None:
        self.hashes, self.texts, self.positions = hashes, texts, positions
        enough = max(int(16 * len(hashes)).bit_length(), 10)
        self._shifts = [np.uint64(64 - min(enough, most)) for most in FILTER_BITS]
        self._tables = []
        for step, shift in enumerate(self._shifts):
            table = np.zeros(1 << (64 - int(shift)), np.bool_)
            table[self._looks(hashes, step)] = True
            self._tables.append(np.packbits(table, bitorder="little"))

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: np.ndarray) -> Matches:
        """Where hashes `[P]` are those of known grams, in any order."""
        places = np.flatnonzero(self._may_be(hashes, 0))
        places = places[self._may_be(hashes[places], 1)]
        # In their order they are near each other in the index too: half as many waits for memory.
        places = places[np.argsort(hashes[places])]
        wanted = hashes[places]
        first = np.searchsorted(self.hashes, wanted)
        found = self.hashes.take(first, mode="clip") == wanted if len(self) else first > 0
        places, wanted, first = places[found], wanted[found], first[found]
        counts = np.searchsorted(self.hashes, wanted, side="right") - first
        ends = np.cumsum(counts)
        entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        return Matches(
            np.repeat(places, counts),
            self.texts[entries].astype(np.int64),
            self.positions[entries].astype(np.int64),
        )

    def _looks(self, hashes: np.ndarray, step: int) -> np.ndarray:
        """The bit of a table that belongs to each hash."""
        spread = hashes if step else hashes * np.uint64(BASE)
        return (spread >> self._shifts[step]).view(np.int64)

    def _may_be(self, hashes: np.ndarray, step: int) -> np.ndarray:
        """Whether each is known, as far as one table tells: beside two million grams, an eighth of others."""
        bits = self._looks(hashes, step)
        return (self._tables[step].take(bits >> 3) >> (bits & 7).astype(np.uint8)) & 1 != 0


def sort_grams(
    hashes: np.ndarray, texts: np.ndarray, positions: np.ndarray, most_texts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The arrays of an index, and how many grams were left out.

    Args:
        hashes: of each gram, uint64 `[G]`.
        texts: of which text it is, in rising order.
        positions: where in that text, likewise within each.
        most_texts: a gram of more texts than this is left out: it belongs to how questions are put.
    """
    order = np.argsort(hashes, kind="stable")
    hashes, texts, positions = hashes[order], texts[order], positions[order]
    first = np.ones(len(hashes), np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    new = first.copy()
    new[1:] |= texts[1:] != texts[:-1]
    group = np.cumsum(first) - 1
    shared = np.bincount(group[new]) > most_texts
    kept = ~shared[group]
    return hashes[kept], texts[kept], positions[kept], int(shared.sum())


def runs_of(matches: Matches) -> list[tuple[int, int, int, int]]:
    """Matches that follow each other in both, put together: place, text, position, how many grams.

    >>> three = Matches(np.array([4, 5, 9]), np.array([0, 0, 0]), np.array([2, 3, 3]))
    >>> runs_of(three)
    [(4, 0, 2, 2), (9, 0, 3, 1)]
    """
    if not len(matches.places):
        return []
    shift = matches.places - matches.positions
    order = np.lexsort((matches.places, shift, matches.texts))
    places, texts, positions, shift = (
        one[order] for one in (matches.places, matches.texts, matches.positions, shift)
    )
    new = np.ones(len(places), np.bool_)
    new[1:] = (texts[1:] != texts[:-1]) | (shift[1:] != shift[:-1]) | (places[1:] != places[:-1] + 1)
    starts = np.flatnonzero(new)
    lengths = np.diff(np.append(starts, len(places)))
    runs = zip(*(one[starts].tolist() for one in (places, texts, positions)), lengths.tolist(), strict=True)
    return sorted(runs)
