"""Search of the shards of a store for known grams: one work unit per shard.

    shard ──> 128 K tokens ──> candidates: ranges of the shard that may hold a gram (`candidates`)
                 ranges ──> overlaps (`overlaps`) ──> the longest of each document and question

Chunks are read once, one after another. Memory does not depend on the store, and results not on chunks.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.token_bytes import TokenText
from packline.errors import CorruptStore
from packline.evals.candidates import Candidates, IdCandidates, WordCandidates
from packline.evals.letters import Entries, Letters
from packline.evals.ngram_index import GramOf, QuestionGrams, block_size
from packline.evals.overlaps import Overlaps, SplitIds, SplitWords
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
    """Folder with the questions' grams and, for words, the tokens' lower-case bytes and their `Entries`."""
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


class Scan(Runner[Numbered, ShardFound]):
    """Searches one shard after another."""

    unit = Numbered

    def __init__(self, job: ScanSettings) -> None:
        self._job = job
        self._store, self._questions = StoreReader(job.store, job.cache), QuestionGrams(job.folder)
        self._vocab_size = self._store.manifest.tokenizer.vocab_size
        self._split: SplitWords | SplitIds
        if job.gram_of == "words":
            vocabulary = TokenText.load(Path(job.folder))
            self._split = SplitWords(vocabulary)
            self._letters = Letters(Entries.load(Path(job.folder)), vocabulary.of)
        else:
            self._split = SplitIds(self._vocab_size)

    def run(self, unit: Numbered, report: ReportProgress) -> ShardFound:
        """Search the shard of this number.

        Raises:
            CorruptStore: an id outside the vocabulary.
        """
        n, size = self._job.n, block_size(self._job.n)
        shard = self._store.shards[unit.number]
        candidates = self._candidates()
        overlaps = Overlaps(shard, self._questions, self._split, n, self._job.chunk_tokens)
        total = shard.entry.tokens
        step = -(-self._job.chunk_tokens // size) * size
        for start in range(0, total, step):
            stop = min(start + step, total)
            overlaps.add(candidates.find(self._read(shard, start, stop), stop == total))
            report(stop - start)
        return _longest(overlaps.all(), int(self._store.firsts[unit.number]))

    def _candidates(self) -> Candidates:
        if self._job.gram_of == "words":
            return WordCandidates(self._letters, self._questions.blocks, self._job.n)
        return IdCandidates(self._questions.blocks, self._job.n)

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


def _longest(found: np.ndarray, first: int) -> ShardFound:
    """Keep the longest overlap of each document and question; the first of several.

    Args:
        found: overlaps, as `Overlaps.all` returns them.
        first: number of the shard's first document.
    """
    order = np.lexsort((found[:, 3], found[:, 4], -found[:, 2], found[:, 1], found[:, 0]))
    found = found[order]
    new = np.ones(len(found), np.bool_)
    new[1:] = (found[1:, :2] != found[:-1, :2]).any(axis=1)
    documents, texts, lengths, positions, _ = found[new].T
    return ShardFound((documents + first).tolist(), texts.tolist(), lengths.tolist(), positions.tolist())
