"""Ranges of tokens that may hold a known gram, found without the bytes of any token.

    tokens ──> letters of each (`letters`) ──> running sum, running number of words
    running sum at every k-th word ──> difference: letters of k words ──> known? ──> ranges of tokens

The words of a shard are divided into blocks of k = (n + 1) // 2, so that n words in a row include a whole
block, wherever they begin: one look-up per block, and none per word. Known are the blocks at every place of
every gram.

Every letter has a value. The sum of a block is that of its letters, whatever their order, their division into
tokens and the characters between words; so it is the difference of two running sums. Equal blocks have equal
sums. Equal sums are only candidates: the caller compares words. A token about which nothing is known is a
candidate with n words before and behind. Ids are divided into blocks of k, and known by a hash.

The state between chunks is a sum, a number and the last four blocks, so ranges do not depend on chunks.

Cost: one look-up of an entry and two running sums per token; for ids, one product. Memory: 40 bytes per token
of a chunk, and the ranges that are not finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from packline.evals.letters import AFTER, COUNT, JOINS, Letters
from packline.evals.ngram_index import HashSet, block_hashes, block_of_sums, block_size
from packline.ragged import distinct_values

CONTEXT = 2
"""Ids on each side of a gram of ids that a range includes."""
KEPT = 4
"""Blocks whose beginning is needed again: two before each that may hold a gram, and two behind."""


class Candidates(ABC):
    """Ranges of a shard that may hold a known gram; base of those for words and for ids."""

    def __init__(self, known: HashSet, n: int) -> None:
        self._known, self._n, self._k = known, n, block_size(n)
        self._read = 0
        self._held: list[tuple[int, int]] = []

    @abstractmethod
    def find(self, tokens: np.ndarray, last: bool) -> list[tuple[int, int]]:
        """Find the ranges that are finished with the next chunk of a shard.

        Args:
            tokens: contiguous ids within the vocabulary, unsigned `[T]`; a multiple of `block_size(n)`.
            last: True for the last chunk of the shard.

        Returns:
            Disjoint ranges of tokens of the shard, ascending, that follow those returned before.
        """

    def _finished(
        self, starts: np.ndarray, stops: np.ndarray, open_from: int, last: bool
    ) -> list[tuple[int, int]]:
        """Join ranges; keep those that later ones, which begin at `open_from` or behind, may be joined to."""
        if not len(starts) and not self._held:
            return []
        held = np.array(self._held, np.int64).reshape(-1, 2)
        ranges = _joined(np.concatenate([held[:, 0], starts]), np.concatenate([held[:, 1], stops]))
        number = len(ranges) if last else sum(stop < open_from for _, stop in ranges)
        self._held = ranges[number:]
        return ranges[:number]


class WordCandidates(Candidates):
    """Ranges that may hold a known gram of words.

    Args:
        letters: entries of the vocabulary.
        known: sums of the blocks of the known grams (`block_of_sums`).
        n: words per gram.
    """

    def __init__(self, letters: Letters, known: HashSet, n: int) -> None:
        super().__init__(known, n)
        self._letters = letters
        self._after, self._words, self._sum = np.uint8(1), 0, np.zeros(1, np.uint64)
        self._first = 0
        """Number of the first block that is kept."""
        self._places, self._sums = np.empty(0, np.int64), np.empty(0, np.uint64)
        self._marked = np.empty(0, np.int64)

    def find(self, tokens: np.ndarray, last: bool) -> list[tuple[int, int]]:
        """Find the ranges that are finished with the next chunk; see `Candidates.find`."""
        places, sums, unclear = self._blocks(tokens)
        known = max(len(self._places) - 1, 0)
        places = np.concatenate([self._places, places])
        sums = np.concatenate([self._sums, sums])
        self._read += len(tokens)
        if last:
            places, sums = np.append(places, self._read), np.concatenate([sums, self._sum])
        hits = self._known.places(block_of_sums(sums[known + 1 :] - sums[known:-1])) + (self._first + known)
        marked = np.concatenate([self._marked, hits])
        if len(unclear):
            within = np.searchsorted(places, unclear, side="right") - 1 + self._first
            marked = distinct_values(np.concatenate([marked, within, within + 1]))
        starts = stops = self._marked = marked
        if len(marked):
            ready = (marked + 2 < self._first + len(places)) | last
            self._marked, marked = marked[~ready], marked[ready] - self._first
            # Behind the last block, the end; before the first, the beginning.
            edges = np.concatenate([[0], places, [self._read - 1]])
            starts = edges[np.maximum(marked - 1, 0)]
            stops = np.minimum(edges[np.minimum(marked + 3, len(places) + 1)] + 1, self._read)
        self._first += max(len(places) - KEPT, 0)
        self._places, self._sums = places[-KEPT:], sums[-KEPT:]
        open_from = int(places[-KEPT]) if len(places) >= KEPT else 0
        return self._finished(starts, stops, open_from, last)

    def _blocks(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token in which each block begins, sum of all letters before it, and the unclear tokens."""
        entries, flags, unclear = self._letters.of(tokens)
        begun, joins, after = flags & COUNT, flags & JOINS, flags & AFTER
        joins >>= 4
        after >>= 5
        begins = joins.copy()  # the first letters begin a word if one ended before
        begins[1:] &= after[:-1]
        begins[0] &= self._after
        begun += begins
        words = np.cumsum(begun, dtype=np.int32)
        shift = self._words + self._k - 1
        blocks = words + np.int32(shift)
        blocks //= self._k
        before = shift // self._k
        new = np.empty(len(blocks), np.bool_)
        new[0] = blocks[0] != before
        np.not_equal(blocks[1:], blocks[:-1], out=new[1:])
        at = np.flatnonzero(new)
        if int(blocks[-1]) - before > len(at):  # several begin in a token
            at = np.repeat(at, np.diff(blocks[at], prepend=before))
        # Word in its token with which each block begins.
        numbers = np.arange(len(at)) * self._k + (before * self._k - self._words)
        numbers += begun[at] + joins[at] - begins[at]
        numbers -= words[at]
        running = np.cumsum(entries)
        sums = running[at] - entries[at] + self._sum
        inner = np.flatnonzero(numbers)
        if len(inner):
            sums[inner] += self._letters.inner(tokens[at[inner]], numbers[inner])
        self._after, self._words = after[-1], (self._words + int(words[-1])) % self._k
        self._sum = running[-1:] + self._sum
        return at + self._read, sums, unclear + self._read


class IdCandidates(Candidates):
    """Ranges that may hold a known gram of ids.

    Args:
        known: hashes of the blocks of the known grams (`block_hashes`).
        n: ids per gram.
    """

    def find(self, tokens: np.ndarray, last: bool) -> list[tuple[int, int]]:
        """Find the ranges that are finished with the next chunk; see `Candidates.find`."""
        places = self._known.places(block_hashes(tokens, self._k, self._k)) * self._k + self._read
        self._read += len(tokens)
        starts = np.maximum(places - (self._n - self._k) - CONTEXT, 0)
        stops = places + self._n + CONTEXT
        if last:
            stops = np.minimum(stops, self._read)
        return self._finished(starts, stops, self._read - self._n - CONTEXT, last)


def _joined(firsts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    """Disjoint ranges, ascending, from overlapping ones in any order."""
    order = np.argsort(firsts)
    starts, stops = firsts[order], np.maximum.accumulate(ends[order])
    new = np.flatnonzero(starts[1:] > stops[:-1]) + 1
    starts, stops = starts[np.append(0, new)], stops[np.append(new - 1, len(stops) - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
