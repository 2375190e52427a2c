"""Search for the n-grams of questions: their index, and the shards of a store as streams of words.

    questions ──> ids of words, or of tokens ──> grams, sorted by hash ──> FOLDER/*.npy ──> QuestionGrams
    shard ──> chunks of tokens ──> ids ──> hashes of grams ──> index ──> compared by ids ──> runs ──> longest

Every word of the questions has an id; other words have none, so a gram that includes one is never found.
An incomplete word at the end of a chunk, and the last n - 1 ids, are carried to the next chunk, so results do
not depend on chunks. A gram lies in one document.

Grams shared by more than `most_texts` questions are common phrasing; those with fewer than n / 2 different
words are rules and rows of dots. Both are left out and counted. A question with fewer than n words, or whose
grams are all left out, cannot be found: it is counted as not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.encoders.token_bytes import TokenText
from packline.errors import CorruptStore, InputError
from packline.evals.task import EvaluationText
from packline.evals.words import LOWER, SPACE, split_words
from packline.jobs.job import Opening, ReportProgress, Runner
from packline.jobs.plan import Unit
from packline.ragged import Ragged
from packline.store.files import CacheSettings
from packline.store.reader import StoreReader
from packline.store.shard import Shard

GramOf = Literal["words", "tokens"]
CHUNK_TOKENS = 1 << 18
"""Tokens to search at a time."""
BATCH = 1 << 12
"""Questions to process at a time."""
LONGEST = 1 << 20
"""Bytes of a word that are kept from one chunk for the next; no question has a longer one."""
BASE = np.uint64(0x9E3779B97F4A7C15)
FILTER_BITS = 27
"""Bits of the table that rejects most hashes as a power of two: at most 16 MB."""
WORDS = "words.txt"


class SetFound(msgspec.Struct):
    """Results for one set."""

    questions: int
    unchecked: int = 0
    """Questions not checked: too short, or all their grams left out."""
    too_short: int = 0
    """Unchecked questions with fewer words or tokens than a gram."""
    found: int = 0
    """Questions found in some document."""
    documents: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of documents with an overlap with the set, by source."""


class Questions(NamedTuple):
    """Facts about the questions, apart from their grams."""

    sets: dict[str, SetFound]
    names: list[str]
    """Set of each question."""
    numbers: list[int]
    """Number of each question in its set."""
    grams: int
    common: int
    """Number of grams shared by too many questions."""
    repetitive: int
    """Number of grams that consist of repetitions."""


def gram_hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Hash of the gram that begins at each position, uint64 `[T - n + 1]`; empty if there is none.

    >>> hashes = gram_hashes(np.array([5, 1, 2, 3, 1, 2, 3]), 3)
    >>> (hashes[1] == hashes[4]).item()
    True
    """
    places = max(len(ids) - n + 1, 0)
    values = (ids.astype(np.uint64) + np.uint64(1)) * BASE
    values ^= values >> np.uint64(32)
    found = np.zeros(places, np.uint64)
    for step in range(n if places else 0):
        found *= BASE
        found += values[step : step + places]
    found ^= found >> np.uint64(32)
    found *= BASE
    return found


def varied(ids: np.ndarray, n: int) -> np.ndarray:
    """True at each position whose gram has at least n / 2 different values, bool `[T - n + 1]`.

    Other grams, such as runs of spaces or of dots, are in every text and not significant.

    >>> varied(np.array([1, 1, 1, 1, 2, 3]), 4).tolist()
    [False, True, True]
    """
    if len(ids) < n:
        return np.empty(0, np.bool_)
    grams = np.sort(np.lib.stride_tricks.sliding_window_view(ids, n), axis=1)
    different = 1 + np.count_nonzero(grams[:, 1:] != grams[:, :-1], axis=1)
    return np.asarray(2 * different >= n)


def word_encoder(
    known: dict[bytes, int], spell: Callable[[Sequence[str]], list[bytes]]
) -> Callable[[Sequence[str]], Ragged]:
    """Encoder of texts as ids of their words; words that are not in `known` are added to it."""

    def encode(texts: Sequence[str]) -> Ragged:
        parts = [text.translate(LOWER) for text in spell(texts)]
        words = split_words(np.frombuffer(b" ".join(parts), np.uint8))
        ids = [known.setdefault(word, len(known)) for word in words.distinct.to_pylist()]
        ends = np.cumsum([0, *(len(part) + 1 for part in parts)])
        return Ragged(np.array(ids, np.int32)[words.numbers], np.searchsorted(words.starts, ends))

    return encode


def write_questions(
    folder: Path,
    texts: Iterable[EvaluationText],
    n: int,
    most_texts: int,
    encode: Callable[[Sequence[str]], Ragged],
) -> Questions:
    """Write the grams of all questions."""
    sets: dict[str, SetFound] = {}
    names, numbers = list[str](), list[int]()
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    left = iter(texts)
    while batch := list(islice(left, BATCH)):
        ragged = encode([one.text for one in batch])
        parts.append((ragged.tokens.astype(np.int32), ragged.lengths))
        for one, count in zip(batch, ragged.lengths.tolist(), strict=True):
            found = sets.setdefault(one.set, SetFound(0))
            found.questions += 1
            found.too_short += count < n
            names.append(one.set)
            numbers.append(one.number)
    if not names:
        raise InputError("there are no questions to look for", hint="check what --against names")
    ids, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    firsts = np.cumsum(lengths) - lengths
    owners = np.repeat(np.arange(len(names), dtype=np.int32), lengths)
    whole = np.flatnonzero(owners[: max(len(ids) - n + 1, 0)] == owners[n - 1 :])
    places = whole[varied(ids, n)[whole]]
    hashes = gram_hashes(ids, n)[places]
    order = np.argsort(hashes, kind="stable")
    hashes, at = hashes[order], places[order]
    new = np.append(True, hashes[1:] != hashes[:-1])[: len(at)]
    group = np.cumsum(new) - 1
    new[1:] |= owners[at[1:]] != owners[at[:-1]]
    shared = np.bincount(group[new]) > most_texts
    kept = ~shared[group]
    hashes, at = hashes[kept], at[kept]
    for unchecked in np.flatnonzero(np.bincount(owners[at], minlength=len(names)) == 0).tolist():
        sets[names[unchecked]].unchecked += 1
    for name, array in {"ids": ids, "firsts": firsts, "owners": owners, "hashes": hashes, "at": at}.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    return Questions(sets, names, numbers, len(at), int(shared.sum()), len(whole) - len(places))


class QuestionGrams:
    """The grams of all questions, and the ids that they consist of."""

    def __init__(self, folder: Path, n: int) -> None:
        names = "ids", "firsts", "owners", "hashes", "at"
        # Plain arrays that own the maps: slicing `np.memmap` itself costs five times as much.
        self._ids, self._firsts, self._owners, self._hashes, self._at = (
            np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names
        )
        self._n = n
        bits = min(max(int(16 * len(self._hashes)).bit_length(), 10), FILTER_BITS)
        self._shift = np.uint64(64 - bits)
        table = np.zeros(1 << bits, np.bool_)
        table[self._hashes >> self._shift] = True
        self._table = np.packbits(table, bitorder="little")

    def piece(self, text: int, start: int, stop: int) -> np.ndarray:
        """Ids `start` to `stop` (exclusive) of a question."""
        first = int(self._firsts[text])
        return self._ids[first + start : first + stop]

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find the known grams in ids: place of each, its question, and its position in that."""
        hashes = gram_hashes(ids, self._n)
        bits = (hashes >> self._shift).view(np.int64)
        places = np.flatnonzero(self._table.take(bits >> 3) >> (bits & 7).astype(np.uint8) & 1)
        # Sorted, they are close to each other in the index too: half as many cache misses.
        places = places[np.argsort(hashes[places])]
        first = np.searchsorted(self._hashes, hashes[places])
        counts = np.searchsorted(self._hashes, hashes[places], side="right") - first
        ends = np.cumsum(counts)
        at = self._at[np.arange(counts.sum()) + np.repeat(first - ends + counts, counts)]
        places = np.repeat(places, counts)
        equal = np.ones(len(places), np.bool_)
        for step in range(self._n):
            equal &= ids[places + step] == self._ids[at + step]
        places, at = places[equal], at[equal]
        texts = self._owners[at].astype(np.int64)
        return places, texts, at - self._firsts[texts]


class ScanSettings(Opening, msgspec.Struct, frozen=True):
    """Settings common to all shards."""

    store: str
    folder: str
    """Folder with the questions' grams and, for words, their words and the bytes of tokens."""
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


class Scan(Runner[Unit, ShardFound]):
    """Searches one shard after another."""

    def __init__(self, job: ScanSettings) -> None:
        folder = Path(job.folder)
        self._job, self._store = job, StoreReader(job.store, job.cache)
        self._questions = QuestionGrams(folder, job.n)
        self._vocab_size = self._store.manifest.tokenizer.vocab_size
        if job.gram_of == "words":
            self._vocabulary = TokenText.load(folder)
            self._known = pa.array((folder / WORDS).read_bytes().split(b"\n"), pa.binary())

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[ShardFound]:
        """Search the shard of this number."""
        shard, n = self._store.shards[unit.number], self._job.n
        stream = self._words if self._job.gram_of == "words" else self._ids
        ids, documents = np.empty(0, np.int32), np.empty(0, np.int64)
        behind, found = 0, [np.empty((5, 0), np.int64)]
        for more, their in stream(shard, report):
            ids, documents = np.concatenate([ids, more]), np.concatenate([documents, their])
            places, texts, positions = self._questions.find(ids)
            one = documents[places] == documents[places + n - 1]
            places, texts, positions = places[one], texts[one], positions[one]
            shifts = places + behind - positions
            counts = np.ones_like(places)
            found.append(_merged(np.stack([texts, documents[places], shifts, places + behind, counts])))
            kept = min(n - 1, len(ids))
            behind += len(ids) - kept
            ids, documents = ids[len(ids) - kept :], documents[len(documents) - kept :]
        texts, own, shifts, places, counts = _merged(np.concatenate(found, axis=1))
        order = np.lexsort((places - shifts, places, -counts, texts, own))
        texts, own, positions, counts = (one[order] for one in (texts, own, places - shifts, counts))
        new = np.ones(len(own), np.bool_)
        new[1:] = (own[1:] != own[:-1]) | (texts[1:] != texts[:-1])
        columns = own + int(self._store.firsts[unit.number]), texts, counts + n - 1, positions
        yield ShardFound(*(column[new].tolist() for column in columns))

    def _ids(self, shard: Shard, report: ReportProgress) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids of the tokens of a shard, a chunk at a time, and the document of each in the shard."""
        begins = shard.places(slice(None))
        for start, tokens in self._chunks(shard, report):
            places = np.arange(start, start + len(tokens))
            yield tokens.astype(np.int32), np.searchsorted(begins, places, side="right") - 1

    def _words(self, shard: Shard, report: ReportProgress) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids of the words of a shard, -1 if no question has it, and the document of each in the shard."""
        begins, kept, owner = shard.places(slice(None)), np.empty(0, np.uint8), 0
        for start, tokens in self._chunks(shard, report):
            stop = start + len(tokens)
            first, last = np.searchsorted(begins, [start, stop]).tolist()
            text, places = self._vocabulary.gather(tokens)
            edges = places[begins[first:last] - start]
            text = np.concatenate([kept, np.insert(text, edges, SPACE)])
            words = split_words(text)
            edges = edges + np.arange(last - first) + len(kept)
            documents = np.searchsorted(edges, words.starts, side="right") + first - 1
            documents[words.starts < len(kept)] = owner
            whole = len(documents)
            kept = kept[:0]
            if whole and stop < shard.entry.tokens:  # the last word may go on
                whole -= 1
                kept, owner = text[words.starts[-1] :], int(documents[-1])
                if len(kept) > LONGEST:
                    kept = np.concatenate([kept[:LONGEST], kept[-4:]])
            ids = pc.index_in(words.distinct, value_set=self._known).fill_null(-1).to_numpy()
            yield ids[words.numbers[:whole]], documents[:whole]

    def _chunks(self, shard: Shard, report: ReportProgress) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, shard.entry.tokens, self._job.chunk_tokens):
            tokens = shard.tokens[start : start + self._job.chunk_tokens]
            tokens = np.ascontiguousarray(tokens).view(f"u{tokens.itemsize}")
            if (highest := int(tokens.max())) >= self._vocab_size:
                if tokens.itemsize == 4:
                    highest = int(tokens.view(np.int32)[tokens.argmax()])
                raise CorruptStore(
                    f"shard {shard.entry.name}: an id outside the vocabulary among tokens {start:,} to "
                    f"{start + len(tokens):,}, expected 0 to {self._vocab_size - 1:,}, found {highest:,}",
                    hint="packline verify shows what else differs",
                )
            yield start, tokens
            report(len(tokens))


def _merged(runs: np.ndarray) -> np.ndarray:
    """Merge runs of grams that follow each other in both texts, int64 `[5, M]`.

    Rows: question, document, place less position, place, number of grams.

    >>> _merged(np.array([[0, 0, 0], [0, 0, 0], [2, 2, 6], [4, 5, 9], [1, 3, 1]])).T.tolist()
    [[0, 0, 2, 4, 4], [0, 0, 6, 9, 1]]
    """
    if not runs.shape[1]:
        return runs
    runs = runs[:, np.lexsort(runs[3::-1])]
    new = np.ones(runs.shape[1], np.bool_)
    new[1:] = (runs[:3, 1:] != runs[:3, :-1]).any(axis=0)
    new[1:] |= runs[3, 1:] != runs[3, :-1] + runs[4, :-1]
    starts = np.flatnonzero(new)
    merged = runs[:, starts]
    merged[4] = np.add.reduceat(runs[4], starts)
    return merged
