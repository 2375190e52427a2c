"""Byte-pair merges from word counts: the same merges as HF's trainer, in NumPy.

    words   l o w  x5    l o w e r  x2         pairs  lo 7  ow 7  we 2  er 2
    merge   lo w   x5    lo w e r   x2                low 7 ...

The most frequent pair becomes a token, ties go to the smaller pair of ids, and so on. All words are in one
array. The id of a token is stored at its first and at its last byte, so its neighbours are found with one
lookup, and a merge takes a few vector operations on the positions where its pair begins:

    bytes     l   o   w   e   r
    symbols   lo  lo  w   e   r         after the merge of l and o
              low  .  low e   r         after that of lo and w

A pair keeps the positions where it was formed. When it comes up, the positions that still hold it are
recounted (counts only fall), and if it is still the most frequent, all of them are merged at once. Pairs that
are too rare to be next wait in arrays, sorted by count, and become Python objects only shortly before they
are needed.

Cost: 8 bytes per byte of the distinct words and 4 for each pair ever formed; about 0.1 ms per merge. Runs in
one thread. `word_counts` splits texts and counts the words.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packline.encoders.tiktoken import ALPHABET

GONE = -1
"""Symbol for a byte inside a token, and for the end of a word."""
NEVER = 1 << 62
TOLD_EVERY = 256
"""Number of merges between two progress reports."""
ZERO = np.zeros(1, np.int64)

BYTES_IN_ORDER = sorted(range(256), key=ALPHABET.__getitem__)
"""Bytes sorted by their characters in byte-level vocabularies; ties are broken in this order."""


@dataclass(slots=True)
class _Pairs:
    """Pairs and their positions: pair `i` begins at `places[bounds[i]:bounds[i + 1]]`."""

    keys: np.ndarray
    """int64: the id of the left token, shifted, combined with the id of the right one."""
    counts: np.ndarray
    bounds: np.ndarray
    places: np.ndarray
    done: int = 0
    """Number of pairs already taken from the beginning; the waiting ones are sorted by descending count."""

    def take(self, which: np.ndarray) -> _Pairs:
        starts = self.bounds[which]
        lengths = self.bounds[which + 1] - starts
        bounds = _bounds(lengths)
        places = self.places[np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])]
        return _Pairs(self.keys[which], self.counts[which], bounds, places)

    def take_first(self, stop: int) -> _Pairs:
        """Take the waiting pairs before `stop`. Copies only the bounds."""
        pairs = slice(self.done, stop)
        bounds = self.bounds[self.done : stop + 1]
        places = self.places[bounds[0] : bounds[-1]]
        self.done = stop
        return _Pairs(self.keys[pairs], self.counts[pairs], bounds - bounds[0], places)


class Merger:
    """Finder of successive merges.

    >>> words = [b"low", b"lower", b" lowest"]
    >>> data = np.frombuffer(b"".join(words), np.uint8)
    >>> merger = Merger(data, np.array([0, 3, 8, 15]), np.array([9, 2, 1]))
    >>> merger.run(3)
    [(b'l', b'o'), (b'lo', b'w'), (b'low', b'e')]
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray, counts: np.ndarray) -> None:
        """Lay out the words.

        Args:
            data: bytes of the words back to back, uint8.
            offsets: start of each word in `data`, and the end, int64 `[W+1]`.
            counts: occurrences of each word, int64 `[W]`.
        """
        lengths = np.diff(offsets)
        size = len(data) + len(lengths) + 1
        self._dtype = np.int32 if size < 2**31 else np.int64
        # A cell of `GONE` before every word and at the end: no pair spans it.
        self._ends = offsets[1:] + np.arange(1, len(lengths) + 1)
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[self._ends] = False
        order = np.empty(256, np.int32)
        order[BYTES_IN_ORDER] = np.arange(256)
        # Symbols and weights are interleaved: values that are used together are in one cache line.
        cells = np.empty((size, 2), np.int32)
        self._symbols, self._weighted = cells[:, 0], cells[:, 1]
        self._symbols[:] = GONE
        self._symbols[inside] = order[data]
        self._weights, index = np.unique(counts, return_inverse=True)
        self._weighted[:] = 0
        self._weighted[inside] = np.repeat(index.astype(np.int32), lengths)
        self._tokens: list[bytes] = [bytes([byte]) for byte in BYTES_IN_ORDER]
        self._ids: dict[bytes, int] = {token: number for number, token in enumerate(self._tokens)}
        self._heap: list[tuple[int, int, int]] = []
        self._places: dict[int, np.ndarray] = {}
        self._serial = 0
        self._waiting: list[_Pairs] = []
        self._fresh: list[_Pairs] = []
        self._least = NEVER
        self._merged: dict[int, int] = {}
        self._twice: set[int] = set()
        self._known = 0
        self._table = np.empty(0, self._dtype)
        self._find_first_pairs()

    def run(
        self, count: int, on_merges: Callable[[int], None] = lambda done: None
    ) -> list[tuple[bytes, bytes]]:
        """Merge until there are `count` tokens besides the 256 bytes, or no pair is left.

        Args:
            count: number of tokens to add by merging.
            on_merges: called from time to time with the number of merges found.
        """
        merges: list[tuple[bytes, bytes]] = []
        while len(self._tokens) - 256 < count:
            found = self._pop()
            if found is None:
                break
            key, places, times = found
            left, right = key >> 32, key & 0xFFFFFFFF
            merges.append((self._tokens[left], self._tokens[right]))
            token = self._tokens[left] + self._tokens[right]
            number = self._ids.setdefault(token, len(self._tokens))
            if number == len(self._tokens):
                self._tokens.append(token)
            else:
                self._twice.add(number)
            self._merged[key] = times
            self._merge(left, right, number, places)
            if len(merges) % TOLD_EVERY == 0:
                on_merges(len(merges))
        return merges

    def _find_first_pairs(self) -> None:
        symbols = self._symbols
        at = np.flatnonzero((symbols[:-1] >= 0) & (symbols[1:] >= 0)).astype(self._dtype)
        keys = (symbols[at].astype(np.uint16) << 8) | symbols[at + 1].astype(np.uint16)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if len(at):
            first = _first_of_each(keys)
            wide = keys[first].astype(np.int64)
            self._add(((wide >> 8) << 32) | (wide & 255), first, at[order])

    def _add(self, keys: np.ndarray, first: np.ndarray, places: np.ndarray) -> None:
        """Add new pairs: distinct keys, the start of each pair's positions, and all positions."""
        counts = np.add.reduceat(self._weights[self._weighted[places]], first)
        if self._twice:  # a pair formed again: HF's trainer adds to its previous count
            for place, key in enumerate(keys.tolist()):
                counts[place] += self._merged.get(key, 0)
        bounds = np.concatenate((first, [len(places)]))
        frequent = (counts >= self._least).nonzero()[0]
        for i in frequent.tolist():
            self._push(int(keys[i]), int(counts[i]), places[bounds[i] : bounds[i + 1]])
        if len(frequent):
            counts[frequent] = 0
        if len(frequent) < len(keys):
            self._fresh.append(_Pairs(keys, counts, bounds, places))

    def _push(self, key: int, count: int, places: np.ndarray) -> None:
        self._serial += 1
        self._places[self._serial] = places
        heapq.heappush(self._heap, (-count, key, self._serial))

    def _lower(self) -> bool:
        """Lower the count limit and push the waiting pairs that reach it; False if no pair is left."""
        if self._fresh:
            self._waiting.append(_sorted(self._fresh))
            self._fresh = []
        self._waiting = [one for one in self._waiting if one.done < len(one.keys)]
        most = max((int(one.counts[one.done]) for one in self._waiting), default=0)
        if most < 1:
            return False
        self._least = max(most * 3 // 4, 1)
        for one in self._waiting:
            stop = int(np.searchsorted(-one.counts, -self._least, side="right"))
            if stop > one.done:
                self._let_in(one.take_first(stop))
        return True

    def _let_in(self, pairs: _Pairs) -> None:
        """Recount pairs, since most counts have fallen, and push those that are still frequent."""
        bounds = pairs.bounds
        if self._twice:  # their positions and counts follow separate rules: see `_pop`
            holds, counts = np.ones(len(pairs.places), np.bool_), pairs.counts
        else:
            lengths = np.diff(bounds)
            holds = self._holds(
                pairs.places,
                np.repeat((pairs.keys >> 32).astype(np.int32), lengths),
                np.repeat((pairs.keys & 0xFFFFFFFF).astype(np.int32), lengths),
            )
            weights = np.zeros(len(holds), np.int64)
            weights[holds] = self._weights[self._weighted[pairs.places[holds]]]
            counts = np.add.reduceat(weights, bounds[:-1])
        for i in (counts >= self._least).nonzero()[0].tolist():
            part = slice(bounds[i], bounds[i + 1])
            self._push(int(pairs.keys[i]), int(counts[i]), pairs.places[part][holds[part]])
        rest = ((counts > 0) & (counts < self._least)).nonzero()[0]
        if len(rest):
            pairs.counts = counts
            self._fresh.append(pairs.take(rest))

    def _holds(self, places: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """True for each position where the pair of `left` and `right` still begins."""
        sizes = self._sizes()
        holds = self._symbols[places] == left
        found = holds.nonzero()[0]
        following = places[found] + sizes[left[found]]
        holds[found] = self._symbols[following] == right[found]
        return holds

    def _sizes(self) -> np.ndarray:
        """Size of each token in bytes, by id."""
        if self._known < len(self._tokens):
            more = np.array([len(token) for token in self._tokens[self._known :]], self._dtype)
            if len(self._tokens) > len(self._table):
                self._table = np.concatenate((self._table, np.empty(len(self._tokens), self._dtype)))
            self._table[self._known : len(self._tokens)] = more
            self._known = len(self._tokens)
        return self._table

    def _pop(self) -> tuple[int, np.ndarray, int] | None:
        """The most frequent pair, its positions and its count."""
        symbols = self._symbols
        while True:
            if not self._heap or -self._heap[0][0] < self._least:
                if self._lower():
                    continue
                if not self._heap:
                    return None
            negative, key, serial = heapq.heappop(self._heap)
            places = self._places.pop(serial)
            left, right = key >> 32, key & 0xFFFFFFFF
            if self._twice and (left in self._twice or right in self._twice):
                places = self._in_same_words(places, left)
            places = places[symbols[places] == left]
            places = places[symbols[places + len(self._tokens[left])] == right]
            count = int(self._weights[self._weighted[places]].sum())
            if self._twice:
                count += self._merged.get(key, 0)
            if count == -negative:
                return key, places, count
            if count > 0:
                self._push(key, count, places)

    def _in_same_words(self, places: np.ndarray, left: int) -> np.ndarray:
        """All positions of a token in the words that contain the given positions.

        A string that two merges produce is one token, so its pairs are formed at different times, each with
        its own positions; HF's trainer stores words, and finds all positions in a word through the first.
        """
        words = np.unique(np.searchsorted(self._ends, places))
        starts = np.concatenate(([0], self._ends))[words] + 1
        found = []
        for start, end in zip(starts.tolist(), self._ends[words].tolist(), strict=True):
            while start < end:
                token = int(self._symbols[start])
                if token == left:
                    found.append(start)
                start += len(self._tokens[token])
        return np.array(found, self._dtype)

    def _merge(self, left: int, right: int, token: int, places: np.ndarray) -> None:
        symbols = self._symbols
        if left == right:
            places = self._every_other(np.sort(places), len(self._tokens[left]))
        if not len(places):
            return
        size, behind = len(self._tokens[token]), len(self._tokens[left])
        if size - behind > 1:
            symbols[places + behind] = GONE
        ends = places + (size - 1)
        symbols[places] = token
        symbols[ends] = token
        # Pairs with the neighbours on either side: the neighbour and its side in one number, negative if
        # there is none.
        number = len(places)
        neighbours = np.empty(2 * number, np.int32)
        neighbours[:number] = on_left = symbols[places - 1]
        neighbours[number:] = symbols[ends + 1]
        neighbours <<= 1
        neighbours[number:] |= 1
        both_new = on_left == token
        if both_new.any():  # a pair of two new tokens is found twice; only the one of the right token is kept
            neighbours[:number][both_new] = GONE
        order = _order(neighbours, 2 * len(self._tokens))
        neighbours = neighbours[order]
        found = int(np.count_nonzero(neighbours >= 0))
        if found:
            first = _first_of_each(neighbours[:found])
            wide = neighbours[first].astype(np.int64)
            beside = wide >> 1
            keys = np.where(wide & 1, token << 32 | beside, beside << 32 | token)
            at = np.concatenate((places - self._sizes()[on_left], places))
            self._add(keys, first, at[order[:found]])

    def _every_other(self, places: np.ndarray, size: int) -> np.ndarray:
        """First, third, fifth ... position of each run of equal tokens: merging is from left to right."""
        touching = np.diff(places) == size
        if not touching.any():
            return places
        index = np.arange(len(places))
        start = np.where(np.concatenate(([False], touching)), 0, index)
        return places[(index - np.maximum.accumulate(start)) % 2 == 0]


def _order(numbers: np.ndarray, limit: int) -> np.ndarray:
    """Sort order of numbers below a limit, negative ones last: a radix sort by 16 bits, the fastest."""
    order = numbers.astype(np.uint16).argsort(kind="stable")
    if limit >= 0xFFFE:
        order = order[(numbers >> 16).astype(np.uint16)[order].argsort(kind="stable")]
    return order


def _first_of_each(keys: np.ndarray) -> np.ndarray:
    """Start of each distinct key in sorted keys."""
    return np.concatenate((ZERO, (keys[1:] != keys[:-1]).nonzero()[0] + 1))


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _sorted(parts: list[_Pairs]) -> _Pairs:
    """All pairs of several lists in one, by descending count; pairs with count 0 are left out."""
    counts = np.concatenate([one.counts for one in parts])
    lengths = np.concatenate([np.diff(one.bounds) for one in parts])
    whole = _Pairs(
        np.concatenate([one.keys for one in parts]),
        counts,
        _bounds(lengths),
        np.concatenate([one.places for one in parts]),
    )
    order = np.argsort(-counts, kind="stable")
    return whole.take(order[: np.count_nonzero(counts > 0)])
