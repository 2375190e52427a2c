"""Search the shards of a store for grams of questions: the task of a worker process.

    shard ──> 128 K tokens ──> bytes ──> words ──> hashes ──> candidates ──> compared word by word ──> found
                 └─────────── ids ────────────────────┘

Shards are read in chunks of tokens. A gram lies within one document. A chunk begins some words before the end
of the previous one, so that no gram is missed, unless it is longer than half a chunk. The first and the last
word of a chunk may be incomplete (tokens may even end within a character), so both are left out: a
neighboring chunk has them whole. Memory does not depend on the store.

Cost: 10 ns per byte of English text by words, 20 of Chinese. See `asked` for the index, and `contamination`
for the totals.
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
from packline.evals.contamination_report import GramOf
from packline.evals.ngram_index import QuestionGrams, gram_hashes, mix, runs_of
from packline.evals.words import split_words
from packline.jobs.job import Numbered, Report, Runner
from packline.store.reader import StoreReader
from packline.store.shard import Shard

STRETCH = 1 << 17
"""Tokens to search at a time."""


class ScanSettings(msgspec.Struct, frozen=True):
    """Settings common to all shards."""

    store: str
    folder: str
    """Folder with the questions' grams and, for words, the tokens' bytes in lower case (`TokenText`)."""
    n: int
    gram_of: GramOf
    stretch: int = STRETCH

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


class _Stretch(NamedTuple):
    """A chunk of tokens of a shard, as words or ids."""

    hashes: np.ndarray
    tokens: Callable[[int, int], np.ndarray]
    """Index of the token in which each word begins, for a range of words."""
    pieces: Callable[[int, int], list[bytes] | list[int]]


class Scan(Runner[Numbered, ShardFound]):
    """Searches one shard after another."""

    unit = Numbered

    def __init__(self, job: ScanSettings) -> None:
        self._job, self._n = job, job.n
        self._store, self._asked = StoreReader(job.store), QuestionGrams(job.folder)
        self._vocab_size = self._store.manifest.tokenizer.vocab_size
        self._by_words = job.gram_of == "words"
        if self._by_words:
            self._vocabulary = TokenText.load(Path(job.folder))
        else:
            self._ids = mix(np.arange(self._vocab_size))

    def run(self, unit: Numbered, report: Report) -> ShardFound:
        """Search the shard of this number.

        Raises:
            CorruptStore: an id outside the vocabulary.
        """
        number = unit.number
        shard = self._store.shards[number]
        places = np.append(shard.places(slice(None)), shard.entry.tokens)
        found: list[tuple[int, int, int, int]] = []
        done = 0
        for start, stop, skipped, stretch in self._stretches(shard):
            matches = self._asked.index.find(gram_hashes(stretch.hashes[skipped:], self._n))
            for place, text, position, grams in runs_of(matches):
                run = (place + skipped, text, position, grams + self._n - 1)
                found += self._compare(stretch, places, start, run)
            report(stop - done)
            done = stop
        return _longest(np.array(found, np.int64).reshape(-1, 4), int(self._store.firsts[number]))

    def _stretches(self, shard: Shard) -> Iterator[tuple[int, int, int, _Stretch]]:
        """Start and end of each chunk, and the number of words to leave out at its beginning."""
        start, total = 0, shard.entry.tokens
        while start < total:
            stop = min(start + self._job.stretch, total)
            whole = self._read(shard, start, stop)
            # The first and the last word of a chunk may be incomplete.
            skipped = int(self._by_words and start > 0)
            kept = len(whole.hashes) - int(self._by_words and stop < total)
            yield start, stop, skipped, whole._replace(hashes=whole.hashes[:kept])
            if stop == total:
                return
            words = len(whole.hashes)
            back = self._n + 1 if self._by_words else self._n - 1
            again = start
            if not back:
                again = stop
            elif back <= words:
                again += int(whole.tokens(words - back, words - back + 1)[0])
            start = max(again, stop - self._job.stretch // 2, start + 1)

    def _read(self, shard: Shard, start: int, stop: int) -> _Stretch:
        tokens = shard.tokens[start:stop]
        if (highest := int(tokens.max())) >= self._vocab_size or int(tokens.min()) < 0:
            raise CorruptStore(
                f"shard {shard.entry.name}: an id outside the vocabulary among tokens {start:,} to {stop:,}, "
                f"expected 0 to {self._vocab_size - 1:,}, found {highest:,}",
                hint="packline verify shows what else differs",
            )
        if not self._by_words:
            return _Stretch(self._ids[tokens], np.arange, lambda first, last: tokens[first:last].tolist())
        text, begins = self._vocabulary.gather(tokens)
        words = split_words(text)
        return _Stretch(
            words.hashes,
            lambda first, last: np.searchsorted(begins, words.starts[first:last], side="right") - 1,
            words.said,
        )

    def _compare(
        self, stretch: _Stretch, places: np.ndarray, offset: int, run: tuple[int, int, int, int]
    ) -> Iterator[tuple[int, int, int, int]]:
        """Compare a run of candidates with its question; yield the overlaps within one document."""
        place, text, position, length = run
        tokens = offset + stretch.tokens(place, place + length)
        documents = np.searchsorted(places, tokens, side="right") - 1
        said = stretch.pieces(place, place + length)
        asked = self._asked.pieces(text, position, position + length)
        edges = np.flatnonzero(np.diff(documents)) + 1
        for begin, end in pairwise([0, *edges.tolist(), length]):
            if end - begin >= self._n and said[begin:end] == asked[begin:end]:
                yield int(documents[begin]), text, end - begin, position + begin


def _longest(found: np.ndarray, first: int) -> ShardFound:
    """Keep the longest overlap of each document and question; the first of several."""
    order = np.lexsort((-found[:, 2], found[:, 1], found[:, 0]))
    found = found[order]
    new = np.ones(len(found), np.bool_)
    new[1:] = (found[1:, :2] != found[:-1, :2]).any(axis=1)
    documents, texts, lengths, positions = found[new].T
    return ShardFound((documents + first).tolist(), texts.tolist(), lengths.tolist(), positions.tolist())
