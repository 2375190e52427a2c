"""Search of the shards of a store for known grams: one work unit per shard.

    shard ──> 128 K tokens ──> candidates: ranges that may hold a gram (`candidates`)
                 ranges ──> bytes ──> words ──> hashes ──> index ──> compared word by word ──> found
                   └────────────── ids ────────────┘

A gram lies within one document. A chunk begins some words before the end of the previous one, so that no gram
is missed, unless it is longer than half a chunk. The first and the last word of a range may be incomplete
(tokens may even end within a character), so both are left out; a range has words before and behind for that.
Memory does not depend on the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from packline.encoders.token_bytes import TokenText
from packline.errors import CorruptStore
from packline.evals.candidates import Candidates, Letters, letters_of_ids
from packline.evals.ngram_index import GramOf, QuestionGrams, gram_hashes, mix, runs_of
from packline.evals.words import split_words
from packline.jobs.job import Numbered, ReportProgress, Runner
from packline.store.paths import CacheSettings
from packline.store.reader import StoreReader
from packline.store.shard import Shard

CHUNK_TOKENS = 1 << 17
"""Tokens to search at a time."""


class ScanSettings(msgspec.Struct, frozen=True):
    """Settings common to all shards."""

    store: str
    folder: str
    """Folder with the questions' grams and, for words, the tokens' bytes in lower case and their letters."""
    n: int
    gram_of: GramOf
    chunk_tokens: int = CHUNK_TOKENS
    cache: CacheSettings | None = None
    """Cache of a remote store."""

    def open(self) -> Scan:
        """Open the store and the questions."""
        return Scan(self)


class ShardFound(msgspec.Struct, frozen=True):
    """Overlaps in one shard: the longest of each document and question."""

    documents: list[int]
    """Numbers of the documents in the store, ascending."""
    texts: list[int]
    """Number of each question."""
    lengths: list[int]
    """Length of each overlap, in words or ids."""
    positions: list[int]
    """Start of each overlap in the question."""


class _Words(NamedTuple):
    """Words or ids in ranges of tokens."""

    hashes: np.ndarray
    cut: np.ndarray
    """True for words that a range may have cut, bool `[W]`."""
    tokens: Callable[[int, int], np.ndarray]
    """Token in which each word begins, from the first token of the ranges on, for a range of words."""
    pieces: Callable[[int, int], list[bytes] | list[int]]


class Scan(Runner[Numbered, ShardFound]):
    """Searches one shard after another."""

    unit = Numbered

    def __init__(self, job: ScanSettings) -> None:
        self._job, self._n = job, job.n
        self._store, self._questions = StoreReader(job.store, job.cache), QuestionGrams(job.folder)
        self._vocab_size = self._store.manifest.tokenizer.vocab_size
        self._by_words = job.gram_of == "words"
        if self._by_words:
            self._vocabulary = TokenText.load(Path(job.folder))
            letters = Letters.load(Path(job.folder))
        else:
            self._ids = mix(np.arange(self._vocab_size))
            letters = letters_of_ids(self._vocab_size)
        self._candidates = Candidates(letters, self._questions.sums, self._n, self._spell)

    def run(self, unit: Numbered, report: ReportProgress) -> ShardFound:
        """Search the shard of this number.

        Raises:
            CorruptStore: an id outside the vocabulary.
        """
        shard = self._store.shards[unit.number]
        places = np.append(shard.places(slice(None)), shard.entry.tokens)
        found: list[tuple[int, int, int, int]] = []
        start = done = 0
        total = shard.entry.tokens
        while start < total:
            stop = min(start + self._job.chunk_tokens, total)
            tokens = self._read(shard, start, stop)
            ranges = self._candidates.find(tokens)
            if ranges.spans:
                found += self._search(tokens, ranges.spans, places, start, start == 0, stop == total)
            report(stop - done)
            done = stop
            again = stop if stop == total else max(start + ranges.again, stop - self._job.chunk_tokens // 2)
            start = max(again, start + 1)
        return _longest(np.array(found, np.int64).reshape(-1, 4), int(self._store.firsts[unit.number]))

    def _read(self, shard: Shard, start: int, stop: int) -> np.ndarray:
        tokens = shard.tokens[start:stop]
        tokens = np.ascontiguousarray(tokens).view(f"u{tokens.itemsize}")
        if (highest := int(tokens.max())) >= self._vocab_size:
            if tokens.itemsize == 4:
                highest = int(tokens.view(np.int32)[tokens.argmax()])
            raise CorruptStore(
                f"shard {shard.entry.name}: an id outside the vocabulary among tokens {start:,} to {stop:,}, "
                f"expected 0 to {self._vocab_size - 1:,}, found {highest:,}",
                hint="packline verify shows what else differs",
            )
        return tokens

    def _spell(self, token: int) -> bytes:
        return self._vocabulary.data[slice(*self._vocabulary.starts[token : token + 2].tolist())].tobytes()

    def _search(
        self,
        tokens: np.ndarray,
        ranges: list[tuple[int, int]],
        places: np.ndarray,
        offset: int,
        begins: bool,
        ends: bool,
    ) -> Iterator[tuple[int, int, int, int]]:
        """Search ranges of a chunk of tokens; yield document, text, length and position of each overlap.

        Args:
            places: places of the documents in the shard, and the end.
            offset: place of the chunk in the shard.
            begins, ends: the chunk is at the beginning, or the end, of the shard.
        """
        picked = np.concatenate([tokens[start:stop] for start, stop in ranges])
        starts, stops = np.array(ranges).T
        inner = np.cumsum(stops - starts)
        shifts = offset + starts - (inner - stops + starts)
        words = self._words(picked, inner[:-1])
        if len(words.cut):
            words.cut[0] |= not (begins and starts[0] == 0)
            words.cut[-1] |= not (ends and stops[-1] == len(tokens))
        for place, text, position, grams in runs_of(
            self._questions.index.find(gram_hashes(words.hashes, self._n))
        ):
            length = grams + self._n - 1
            at = words.tokens(place, place + length)
            at = at + shifts[np.searchsorted(inner, at, side="right")]
            documents = np.searchsorted(places, at, side="right") - 1
            documents[words.cut[place : place + length]] = -1
            yield from self._compare(words.pieces(place, place + length), documents, text, position)

    def _words(self, tokens: np.ndarray, joints: np.ndarray) -> _Words:
        """Words of ranges of tokens; those on both sides of each joint may be cut."""
        if self._by_words:
            text, begins = self._vocabulary.gather(tokens)
            words = split_words(text)
            hashes, starts, pieces = words.hashes, words.starts, words.spellings
            joints = np.searchsorted(starts, begins[joints])
        else:
            hashes, pieces = self._ids[tokens], lambda first, last: tokens[first:last].tolist()
        cut = np.zeros(len(hashes), np.bool_)
        cut[joints[joints < len(cut)]] = True
        cut[joints[joints > 0] - 1] = True
        if not self._by_words:
            return _Words(hashes, cut, np.arange, pieces)
        return _Words(
            hashes,
            cut,
            lambda first, last: np.searchsorted(begins, starts[first:last], side="right") - 1,
            pieces,
        )

    def _compare(
        self, pieces: list[bytes] | list[int], documents: np.ndarray, text: int, position: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Compare words with those of a question; yield the overlaps within one document.

        Args:
            documents: document of each word, -1 if a range may have cut it.
            text, position: the question, and its first word to compare.
        """
        grams = self._questions.pieces(text, position, position + len(pieces))
        edges = np.flatnonzero(np.diff(documents)) + 1
        for begin, end in pairwise([0, *edges.tolist(), len(pieces)]):
            if end - begin >= self._n and documents[begin] >= 0 and pieces[begin:end] == grams[begin:end]:
                yield int(documents[begin]), text, end - begin, position + begin


def _longest(found: np.ndarray, first: int) -> ShardFound:
    """Keep the longest overlap of each document and question; the first of several."""
    order = np.lexsort((-found[:, 2], found[:, 1], found[:, 0]))
    found = found[order]
    new = np.ones(len(found), np.bool_)
    new[1:] = (found[1:, :2] != found[:-1, :2]).any(axis=1)
    documents, texts, lengths, positions = found[new].T
    return ShardFound((documents + first).tolist(), texts.tolist(), lengths.tolist(), positions.tolist())
