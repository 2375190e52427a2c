"""Byte-pair merges out of word counts: the merges that HF's trainer finds, in NumPy.

    words   l o w  x5    l o w e r  x2         pairs  lo 7  ow 7  we 2  er 2
    merge   lo w   x5    lo w e r   x2                low 7 ...

The most frequent pair becomes a token, ties go to the smaller pair of ids, and so on. All words lie in one
array. A token writes its id at its first and at its last byte, so what stands beside it is one look away, and
a merge is a few vector operations on the places where its pair begins:

    bytes     l   o   w   e   r
    symbols   lo  lo  w   e   r         after the merge of l and o
              low  .  low e   r         after that of lo and w

A pair keeps the places where it arose. When its turn comes, those that still hold it are counted anew (counts
only fall), and if it is still the most frequent, all are merged at once. Pairs too rare to be next wait in
arrays, sorted by count, and become Python objects only when their turn is near.

Cost: 8 bytes a byte of the distinct words and 4 for each pair that ever arose; about 0.1 ms a merge. It runs
in one thread. What it does not do: count words, or split text into them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packline.encoders.tiktoken import ALPHABET

GONE = -1
"""Symbol of a byte inside a token, and of the end of a word."""
NEVER = 1 << 62
TOLD_EVERY = 256
"""Merges between two reports of how many there are."""
ZERO = np.zeros(1, np.int64)

BYTES_IN_ORDER = sorted(range(256), key=ALPHABET.__getitem__)
"""Byte-level vocabularies list bytes by the characters that stand for them; ties are broken in this order."""


@dataclass(slots=True)
class _Pairs:
    """Pairs and where they begin: pair `i` at `places[bounds[i]:bounds[i + 1]]`."""

    keys: np.ndarray
    """int64: the id of the left token, shifted, and that of the right one."""
    counts: np.ndarray
    bounds: np.ndarray
    places: np.ndarray
    done: int = 0
    """How many, from the beginning, wait no more; those that wait are sorted by falling count."""

    def take(self, which: np.ndarray) -> _Pairs:
        starts = self.bounds[which]
        lengths = self.bounds[which + 1] - starts
        bounds = _bounds(lengths)
        places = self.places[np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])]
        return _Pairs(self.keys[which], self.counts[which], bounds, places)

    def take_first(self, stop: int) -> _Pairs:
        """Those that wait, up to there; they wait no more. Nothing is copied but bounds."""
        pairs = slice(self.done, stop)
        bounds = self.bounds[self.done : stop + 1]
        places = self.places[bounds[0] : bounds[-1]]
        self.done = stop
        return _Pairs(self.keys[pairs], self.counts[pairs], bounds - bounds[0], places)


class Merger:
    """Finds merges one after another.

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
            offsets: int64 `[W+1]`.
            counts: how often each word occurs, int64 `[W]`.
        """
        lengths = np.diff(offsets)
        size = len(data) + len(lengths) + 1
        self._dtype = np.int32 if size < 2**31 else np.int64
        # A place of `GONE` before every word and at the end: no pair reaches over it.
        self._ends = offsets[1:] + np.arange(1, len(lengths) + 1)
        inside = np.ones(size, np.bool_)
        inside[0] = False
        inside[self._ends] = False
        order = np.empty(256, np.int32)
        order[BYTES_IN_ORDER] = np.arange(256)
        # Symbols and weights side by side: what is looked at together is in one line of the cache.
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
        """Merge until there are so many tokens beside the 256 bytes, or nothing is left to merge.

        Args:
            count: tokens that merges are to make.
            on_merges: is told now and then how many merges are found.
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
        """New pairs: distinct keys, where the places of each begin, and all places."""
        counts = np.add.reduceat(self._weights[self._weighted[places]], first)
        if self._twice:  # a pair that arises again: HF's trainer goes on counting from where it was
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
        """Let in what waited and is frequent enough for a lower bar; False where nothing is left."""
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
        """Push what is still frequent, counted anew, for most has fallen."""
        bounds = pairs.bounds
        if self._twice:  # their places and counts follow rules of their own: see `_pop`
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
        """Whether a pair still begins at each place: of each, its two tokens."""
        sizes = self._sizes()
        holds = self._symbols[places] == left
        found = holds.nonzero()[0]
        following = places[found] + sizes[left[found]]
        holds[found] = self._symbols[following] == right[found]
        return holds

    def _sizes(self) -> np.ndarray:
        """Bytes of each token, by id."""
        if self._known < len(self._tokens):
            more = np.array([len(token) for token in self._tokens[self._known :]], self._dtype)
            if len(self._tokens) > len(self._table):
                self._table = np.concatenate((self._table, np.empty(len(self._tokens), self._dtype)))
            self._table[self._known : len(self._tokens)] = more
            self._known = len(self._tokens)
        return self._table

    def _pop(self) -> tuple[int, np.ndarray, int] | None:
        """The most frequent pair, the places that hold it, and its count."""
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
        """All places of this token in the words that these places are in.

        A string that two merges make is one token, so its pairs arise at different times, each with places
        of its own; HF's trainer remembers words, and finds all of them in a word by the first.
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
        # Pairs with the neighbours on either side: the neighbour and its side in one number, negative where
        # there is none.
        number = len(places)
        neighbours = np.empty(2 * number, np.int32)
        neighbours[:number] = on_left = symbols[places - 1]
        neighbours[number:] = symbols[ends + 1]
        neighbours <<= 1
        neighbours[number:] |= 1
        both_new = on_left == token
        if both_new.any():  # a pair of two new tokens is found from both, and kept from the right one
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
        """Of a run of equal tokens, the first, third, fifth ... place: merging goes from left to right."""
        touching = np.diff(places) == size
        if not touching.any():
            return places
        index = np.arange(len(places))
        start = np.where(np.concatenate(([False], touching)), 0, index)
        return places[(index - np.maximum.accumulate(start)) % 2 == 0]


def _order(numbers: np.ndarray, limit: int) -> np.ndarray:
    """What sorts numbers below a limit, negative ones last: by digits of 16 bits, the fastest way."""
    order = numbers.astype(np.uint16).argsort(kind="stable")
    if limit >= 0xFFFE:
        order = order[(numbers >> 16).astype(np.uint16)[order].argsort(kind="stable")]
    return order


def _first_of_each(keys: np.ndarray) -> np.ndarray:
    """Where each begins, of keys that are sorted."""
    return np.concatenate((ZERO, (keys[1:] != keys[:-1]).nonzero()[0] + 1))


def _bounds(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))


def _sorted(parts: list[_Pairs]) -> _Pairs:
    """All pairs of some lists in one, by falling count; those without a count are left out."""
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
