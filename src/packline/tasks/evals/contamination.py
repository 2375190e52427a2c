"""Has the store seen the questions? Which of its documents say n words, or n tokens, of a question in a row.

    questions ──> grams ──> index ─────────────────────────┐
    shards ──> 128 K tokens ──> bytes ──> words ──> hashes ─┴─> candidates ──> compared word by word ──> found

`words` (the default) compares what is written, in lower case and without punctuation (`words`), whatever
the tokenizer; `tokens` compares ids, as exact as the ids are, and faster; where a token is less than a
character, 13 of them are little. A gram lies within one document. Grams of more than `most_texts` questions
are how questions are put, not questions; those with less than n / 2 different words are rules and rows of
dots: both are left out and counted, as are questions with less than n words.

Cost: the index, 16 bytes a gram; then the shards once, in stretches, so memory does not depend on the store:
about 100 MB of text a second and core. A gram that is longer than half a stretch is not looked for.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from packline.encoders.token_bytes import token_bytes
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import InputError, RecipeError
from packline.store.manifest import TOKENIZER
from packline.store.origins import origins
from packline.store.reader import Shard, Store
from packline.store.report import OnProgress
from packline.tasks.evals.contamination_report import (
    NORMALISATION,
    ContaminationReport,
    GramOf,
    Overlap,
    SetFound,
)
from packline.tasks.evals.encoding import TextEncoder
from packline.tasks.evals.evaluation_texts import EvaluationText, read_evaluations
from packline.tasks.evals.ngrams import GramIndex, gram_hashes, mix, runs_of, varied
from packline.tasks.evals.words import LOWER, WordSplitter

N = 13
MOST_TEXTS = 10
STRETCH = 1 << 17
"""Tokens that are looked through at a time."""
BATCH = 1 << 20
"""Characters of questions at a time."""
MOST_LISTED = 100
MOST_SHOWN = 400
"""Characters of an overlap that are kept."""


def search(
    store: Store,
    against: Sequence[str],
    *,
    n: int = N,
    gram_of: GramOf = "words",
    most_texts: int = MOST_TEXTS,
    on_progress: OnProgress | None = None,
) -> ContaminationReport:
    """Look for the questions of evaluation sets in a store.

    Args:
        store: a finished one.
        against: bundles, files or folders of questions.
        n: words or tokens in a row that count.
        gram_of: words or tokens.
        most_texts: a gram of more questions than this is left out.
        on_progress: is called with the bytes that were read and all bytes.

    Raises:
        InputError: no questions there.
        RecipeError: n below 1.
    """
    if n < 1:
        raise RecipeError(f"ngram is {n}: expected 1 or more")
    scan = _Scan(store, n, gram_of, most_texts)
    scan.index_texts(text for path in against for text in read_evaluations(path))
    return scan.run(on_progress)


class _Scan:
    """The state of one search."""

    def __init__(self, store: Store, n: int, gram_of: GramOf, most_texts: int) -> None:
        self.store, self.n, self.gram_of, self.most_texts = store, n, gram_of, most_texts
        self.tokenizer = load_tokenizer(str(store.path / TOKENIZER))
        self.splitter = WordSplitter()
        self.ids = np.empty(0, np.uint64)
        self.vocabulary: Any = None
        if gram_of == "tokens":
            self.ids = mix(np.arange(self.tokenizer.vocab_size))
            self.encoder = TextEncoder(self.tokenizer)
        else:
            import pyarrow as pa

            # A boundary token parts words; every other one is its bytes, in lower case already.
            found = [one.translate(LOWER) for one in token_bytes(self.tokenizer)]
            for special in self.tokenizer.special_tokens.values():
                found[special] = b" "
            for boundary in (store.manifest.tokenizer.eod_id, store.manifest.tokenizer.bos_id):
                if boundary is not None:
                    found[boundary] = b" "
            self.vocabulary = pa.array(found, pa.large_binary())
        self.index: GramIndex
        self.repetitive = 0
        self.names: list[str] = []
        self.numbers: list[int] = []
        self.texts: list[Any] = []
        self.sets: dict[str, SetFound] = {}

    # ---------------------------------------------------------------- questions

    def index_texts(self, texts: Iterator[EvaluationText]) -> None:
        """Hash the grams of all questions."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for batch in _batches(texts):
            values = self._values_of_texts([one.text for one in batch])
            for one, (hashes, pieces) in zip(batch, values, strict=True):
                found = self.sets.setdefault(one.set, SetFound(0))
                found.questions += 1
                grams = gram_hashes(hashes, self.n)
                found.too_short += not len(grams)
                says = np.flatnonzero(varied(hashes, self.n))
                self.repetitive += len(grams) - len(says)
                text = len(self.texts)
                self.names.append(one.set)
                self.numbers.append(one.number)
                self.texts.append(pieces)
                parts.append((grams[says], np.full(len(says), text, np.int32), says.astype(np.int32)))
        if not self.texts:
            raise InputError("there are no questions to look for", hint="check what --against names")
        hashes, owners, positions = (np.concatenate(column) for column in zip(*parts, strict=True))
        self.index = GramIndex(hashes, owners, positions, self.most_texts)

    def _values_of_texts(self, texts: list[str]) -> Iterator[tuple[np.ndarray, Any]]:
        """Of each text the hashes of its words or ids, and these themselves."""
        if self.gram_of == "tokens":
            encoded = self.encoder.encode(texts)
            for place in range(len(texts)):
                yield self.ids[encoded[place]], encoded[place].copy()
            return
        for text in texts:
            data = np.frombuffer(text.encode("utf-8").translate(LOWER), np.uint8).copy()
            _, _, hashes = self.splitter.split(data)
            yield hashes, b" ".join(data.tobytes().split())

    # ---------------------------------------------------------------- shards

    def run(self, on_progress: OnProgress | None) -> ContaminationReport:
        """Look through all shards."""
        started = time.perf_counter()
        whole = sum(shard.tokens.nbytes for shard in self.store.shards)
        read = 0
        found = _Found(self)
        for number, (shard, origin) in enumerate(zip(self.store.shards, origins(self.store), strict=True)):
            places = np.append(shard.places(slice(None)), shard.entry.tokens)
            for start, stop in self._look(
                shard, places, found, int(self.store.firsts[number]), origin.source
            ):
                read += (stop - start) * shard.tokens.itemsize
                if on_progress is not None:
                    on_progress(min(read, whole), whole)
            found.count(origin.source, len(shard))
        return found.report(whole, time.perf_counter() - started)

    def _look(
        self, shard: Shard, places: np.ndarray, found: _Found, first: int, source: str
    ) -> Iterator[tuple[int, int]]:
        """Look through one shard; stretches as they are done."""
        start, total = 0, shard.entry.tokens
        while start < total:
            stop = min(start + STRETCH, total)
            hashes, pieces, where = self._values_of(shard.tokens[start:stop])
            # What a stretch has of its first and of its last word may not be the whole word.
            cut = self.gram_of == "words"
            skipped, kept = int(cut and start > 0), len(hashes) - int(cut and stop < total)
            grams_here = gram_hashes(hashes[skipped:kept], self.n)
            for place, text, position, grams in runs_of(self.index.find(grams_here)):
                self._compare(
                    found,
                    places,
                    first,
                    source,
                    start,
                    (pieces, where),
                    (place + skipped, text, position, grams),
                )
            yield start, stop
            if stop == total:
                break
            back = self.n - 1 if self.gram_of == "tokens" else self.n + 1
            again = start + int(where[-back]) if 0 < back <= len(where) else stop if back == 0 else start
            start = max(again, stop - STRETCH // 2, start + 1)

    def _values_of(self, tokens: np.ndarray) -> tuple[np.ndarray, Callable[[int, int], Any], np.ndarray]:
        """Of a stretch: hashes of its words or ids, a way to these, and the token in which each begins."""
        if self.gram_of == "tokens":
            where = np.arange(len(tokens))
            return self.ids[tokens], lambda start, stop: tokens[start:stop], where
        import pyarrow as pa

        taken = self.vocabulary.take(pa.array(tokens))
        _, offsets, data = taken.buffers()
        begins = np.frombuffer(offsets, np.int64, len(tokens) + 1)
        text = np.frombuffer(data or b"", np.uint8, int(begins[-1])).copy()
        starts, ends, hashes = self.splitter.split(text)
        where = np.searchsorted(begins, starts, side="right") - 1
        return hashes, lambda start, stop: text[starts[start] : ends[stop - 1]].tobytes().split(), where

    def _compare(
        self,
        found: _Found,
        places: np.ndarray,
        first: int,
        source: str,
        offset: int,
        stretch: tuple[Callable[[int, int], Any], np.ndarray],
        run: tuple[int, int, int, int],
    ) -> None:
        """Hold a run of candidates against its question, and keep what lies within one document."""
        pieces, where = stretch
        place, text, position, grams = run
        length = grams + self.n - 1
        tokens = offset + where[place : place + length]
        documents = np.searchsorted(places, tokens, side="right") - 1
        said, asked = pieces(place, place + length), self.texts[text]
        asked = (asked.split() if isinstance(asked, bytes) else asked)[position : position + length]
        for begin, end in _stretches(documents):
            if end - begin < self.n or list(said[begin:end]) != list(asked[begin:end]):
                continue
            found.add(first + int(documents[begin]), source, text, said[begin:end])

    def shown(self, pieces: Any) -> str:
        """An overlap for the eye."""
        if self.gram_of == "tokens":
            whole = str(self.store.tokenizer.decode(pieces.tolist(), skip_special_tokens=False))
        else:
            whole = b" ".join(pieces).decode("utf-8", "replace")
        return whole if len(whole) <= MOST_SHOWN else f"{whole[:MOST_SHOWN]}..."


class _Found:
    """Overlaps so far: counts of all, the longest of them whole."""

    def __init__(self, scan: _Scan) -> None:
        self._scan = scan
        self._questions: set[int] = set()
        self._documents: dict[str, int] = {}
        self._bad: dict[str, int] = {}
        self._last = -1
        self._longest: dict[int, tuple[int, str]] = {}
        """Of the document at hand: by question, the length and the text of the longest stretch."""
        self._source = ""
        self._heap: list[tuple[int, int, int, str]] = []
        self._all = 0

    def add(self, document: int, source: str, text: int, pieces: Any) -> None:
        """An overlap. Documents come in their order, but for those at the edges of stretches."""
        if document != self._last:
            self._close()
            self._last, self._source = document, source
        if len(pieces) > self._longest.get(text, (0, ""))[0]:
            self._longest[text] = (len(pieces), self._scan.shown(pieces))

    def count(self, source: str, documents: int) -> None:
        """A shard is done."""
        self._close()
        self._documents[source] = self._documents.get(source, 0) + documents

    def _close(self) -> None:
        """The document at hand is done."""
        if not self._longest:
            return
        self._bad[self._source] = self._bad.get(self._source, 0) + 1
        for name in {self._scan.names[text] for text in self._longest}:
            found = self._scan.sets[name].documents
            found[self._source] = found.get(self._source, 0) + 1
        for text, (length, shown) in self._longest.items():
            self._questions.add(text)
            self._all += 1
            heapq.heappush(self._heap, (length, -self._last, -text, shown))
            if len(self._heap) > MOST_LISTED:
                heapq.heappop(self._heap)
        self._longest = {}

    def report(self, size: int, seconds: float) -> ContaminationReport:
        """Sum up."""
        scan = self._scan
        for text in self._questions:
            scan.sets[scan.names[text]].found += 1
        overlaps = []
        for length, document, text, shown in sorted(self._heap, reverse=True):
            origin = scan.store.provenance(-document)
            overlaps.append(
                Overlap(
                    -document,
                    origin.source,
                    origin.file,
                    origin.position,
                    origin.id,
                    origin.split,
                    scan.names[-text],
                    scan.numbers[-text],
                    length,
                    shown,
                )
            )
        return ContaminationReport(
            clean=not self._all,
            n=scan.n,
            gram_of=scan.gram_of,
            normalisation=NORMALISATION[scan.gram_of],
            grams=len(scan.index),
            common_grams=scan.index.common,
            repetitive_grams=scan.repetitive,
            sets=scan.sets,
            sources={name: (self._bad.get(name, 0), count) for name, count in self._documents.items()},
            overlaps=overlaps,
            not_listed=self._all - len(overlaps),
            documents=len(scan.store.documents),
            tokens=sum(shard.entry.tokens for shard in scan.store.shards),
            bytes=size,
            seconds=seconds,
        )


def _stretches(documents: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of equal numbers."""
    edges = np.flatnonzero(np.diff(documents)) + 1
    yield from pairwise([0, *edges.tolist(), len(documents)])


def _batches(texts: Iterator[EvaluationText]) -> Iterator[list[EvaluationText]]:
    batch: list[EvaluationText] = []
    size = 0
    for one in texts:
        batch.append(one)
        size += len(one.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
