"""Overlaps of the documents of a shard with questions, in ranges of tokens that may hold some.

    ranges ──> bytes ──> words ──> hashes ──> index ──> compared word by word ──> overlaps
       └──────────────── ids ────────┘

Ranges are searched many at a time. A range longer than a part is searched in parts: the first gram of each is
the one behind the last gram of the part before, and overlaps that meet there are joined. Therefore an overlap
is found whole wherever parts begin.

The first and the last word of a range may be incomplete (tokens may even end within a character), so both are
left out; a range has words before and behind for that. Memory: one part, or n words if they are longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from packline.encoders.token_bytes import TokenText
from packline.evals.ngram_index import QuestionGrams, gram_hashes, mix, runs_of
from packline.evals.words import Words, split_words
from packline.store.shard import Shard


class _Place(NamedTuple):
    """Beginning of a word."""

    token: int
    byte: int
    """Bytes of the token before the word."""


class Elements(Protocol):
    """Words or ids of a sequence of tokens."""

    hashes: np.ndarray
    """uint64 `[W]`."""

    def first_from(self, tokens: np.ndarray, byte: int = 0) -> np.ndarray:
        """Number of the first word that begins at this byte of each token, or behind."""

    def tokens(self, first: int, last: int) -> np.ndarray:
        """Token in which each word begins, for a range of words."""

    def byte(self, word: int) -> int:
        """Bytes before this word in the token in which it begins."""

    def pieces(self, first: int, last: int) -> list[bytes] | list[int]:
        """Words `first` to `last` (exclusive)."""


class _SomeWords:
    def __init__(self, words: Words, begins: np.ndarray) -> None:
        self._words, self._begins = words, begins
        self.hashes, self.pieces = words.hashes, words.spellings

    def first_from(self, tokens: np.ndarray, byte: int = 0) -> np.ndarray:
        return np.searchsorted(self._words.starts, self._begins[tokens] + byte)

    def tokens(self, first: int, last: int) -> np.ndarray:
        return np.searchsorted(self._begins, self._words.starts[first:last], side="right") - 1

    def byte(self, word: int) -> int:
        return int(self._words.starts[word] - self._begins[self.tokens(word, word + 1)[0]])


class SplitWords:
    """Divides tokens into words.

    Args:
        vocabulary: bytes of the tokens, translated by `LOWER`.
    """

    def __init__(self, vocabulary: TokenText) -> None:
        self._vocabulary = vocabulary

    def __call__(self, tokens: np.ndarray) -> Elements:
        text, begins = self._vocabulary.gather(tokens)
        return _SomeWords(split_words(text), begins)


class _SomeIds:
    def __init__(self, tokens: np.ndarray, hashes: np.ndarray) -> None:
        self._tokens, self.hashes = tokens, hashes

    def first_from(self, tokens: np.ndarray, byte: int = 0) -> np.ndarray:
        return tokens

    def tokens(self, first: int, last: int) -> np.ndarray:
        return np.arange(first, last)

    def byte(self, word: int) -> int:
        return 0

    def pieces(self, first: int, last: int) -> list[int]:
        found: list[int] = self._tokens[first:last].tolist()
        return found


class SplitIds:
    """Takes each id for a word."""

    def __init__(self, vocab_size: int) -> None:
        self._hashes = mix(np.arange(vocab_size))

    def __call__(self, tokens: np.ndarray) -> Elements:
        return _SomeIds(tokens, self._hashes[tokens])


class Overlaps:
    """Collects the overlaps in one shard.

    Args:
        shard: the shard.
        questions: grams of the questions.
        split: divides tokens into words or ids.
        n: words or ids per gram.
        most: tokens of a part.
    """

    def __init__(
        self, shard: Shard, questions: QuestionGrams, split: SplitWords | SplitIds, n: int, most: int
    ) -> None:
        self._shard, self._questions, self._split, self._n, self._most = shard, questions, split, n, most
        self._total = shard.entry.tokens
        self._documents = np.append(shard.places(slice(None)), self._total)
        self._waiting: list[tuple[int, int]] = []
        self._size = 0
        self._found: list[tuple[int, ...]] = []
        self._open: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        """Overlaps that reach the end of the part before, by document, question and place in the question of
        the gram that would continue each: length, place in the question, first token."""

    def add(self, ranges: list[tuple[int, int]]) -> None:
        """Take further ranges of tokens of the shard, disjoint and ascending."""
        for start, stop in ranges:
            if self._size + stop - start > self._most:
                self._search_waiting()
            if stop - start > self._most:
                self._search_in_parts(start, stop)
            else:
                self._waiting.append((start, stop))
                self._size += stop - start

    def all(self) -> np.ndarray:
        """All overlaps, int64 `[O, 5]`: document of the shard, question, length, place in it, first token."""
        self._search_waiting()
        return np.array(self._found, np.int64).reshape(-1, 5)

    def _search_waiting(self) -> None:
        if self._waiting:
            self._search(self._waiting)
            self._waiting, self._size = [], 0

    def _search_in_parts(self, start: int, stop: int) -> None:
        place, most = _Place(start, 0), self._most
        while stop - start > most:
            end = start + most
            following = self._search([(start, end)], place, more=True) if place.token < end else None
            if following is None:
                most *= 2
            else:
                (start, place), most = following, self._most
        self._search([(start, stop)], place)
        self._open.clear()

    def _search(
        self, ranges: list[tuple[int, int]], place: _Place | None = None, more: bool = False
    ) -> tuple[int, _Place] | None:
        """Search ranges of tokens.

        Args:
            ranges: disjoint and ascending.
            place: beginning of the first word of the only range to search.
            more: the only range is a part; the part behind it is searched next.

        Returns:
            With `more`, start of that part and its first word. None if there are too few words for that: then
            nothing was searched.
        """
        stored = self._shard.tokens
        picked = np.concatenate([stored[start:stop] for start, stop in ranges])
        starts, stops = np.array(ranges).T
        inner = np.cumsum(stops - starts)
        shifts = starts - (inner - stops + starts)
        words = self._split(picked.view(f"u{picked.itemsize}"))
        count = len(words.hashes)
        first = int(words.first_from(place.token - starts[0], place.byte)) if place else 0
        last = count - 1 - self._n
        """Last gram without the last word, which may be incomplete."""
        following = None
        if more:
            if last < first:
                return None
            before, token = (words.tokens(last, last + 2) + shifts[0]).tolist()
            following = before, _Place(token, words.byte(last + 1))
        cut = np.zeros(count, np.bool_)
        joints = words.first_from(inner[:-1])
        cut[joints[joints < count]] = True
        cut[joints[joints > 0] - 1] = True
        cut[:1] |= starts[0] > 0
        cut[-1:] |= stops[-1] < self._total
        cut[:first] = True
        open_here: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        matches = self._questions.index.find(gram_hashes(words.hashes, self._n))
        for at, question, position, grams in runs_of(matches):
            end = at + grams + self._n - 1
            tokens = words.tokens(at, end)
            tokens = tokens + shifts[np.searchsorted(inner, tokens, side="right")]
            documents = np.searchsorted(self._documents, tokens, side="right") - 1
            documents[cut[at:end]] = -1
            pieces = words.pieces(at, end)
            for document, begin, length in self._equal(pieces, documents, question, position):
                where = position + begin
                known = length, where, int(tokens[begin])
                if at + begin == first and (earlier := self._open.get((document, question, where))):
                    known = earlier[0] + length - (self._n - 1), *earlier[1:]
                if more and at + begin + length == count - 1:
                    open_here[document, question, where + length - (self._n - 1)] = known
                self._found.append((document, question, *known))
        self._open = open_here
        return following

    def _equal(
        self, pieces: list[bytes] | list[int], documents: np.ndarray, question: int, position: int
    ) -> Iterator[tuple[int, int, int]]:
        """Compare words with those of a question; yield document, first word and length of each overlap.

        Args:
            documents: document of each word, -1 if a range may have cut it.
            question, position: the question, and its first word to compare.
        """
        grams = self._questions.pieces(question, position, position + len(pieces))
        edges = np.flatnonzero(np.diff(documents)) + 1
        for begin, end in pairwise([0, *edges.tolist(), len(pieces)]):
            if end - begin >= self._n and documents[begin] >= 0 and pieces[begin:end] == grams[begin:end]:
                yield int(documents[begin]), begin, end - begin
