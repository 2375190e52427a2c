"""Word counts of a corpus, in bounded memory: the input of a trainer.

    batches of texts ── split into words ── counted by batch ──> one table of distinct words

Threads split and count; NumPy and Arrow release the GIL. The tables of batches are joined from time to time,
so memory holds the distinct words and a few hundred megabytes more, whatever the size of the corpus. If even
the distinct words are too many, the rarest are dropped, and counted: a word that occurs again afterwards
starts at zero, so counts of rare words may be too low.

Words are split with the same result as by the pattern's regular expression, in NumPy:

    text    w  e  '  r  e     (  o  k  )  \\n
    kind    L  L  O  L  L  V  O  L  L  O  R         letter, number, other, line end, other white space
    words   we    're      V( . ok    )\\n

Whether a word begins at a character depends on its kind and that of its neighbors (except for long numbers,
contractions and blank lines, which are few). So the words of a range of text are found by comparing arrays of
one byte per character, at 100 to 150 MB/s per core. The kinds of the characters are taken once from the
regular expression engine of HF `tokenizers`, so the two cannot disagree about a character, whatever their
version of Unicode.

Cost: about 50 MB/s per core. Patterns with other rules (`o200k`) are left to HF `tokenizers`.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from packline.encoders.tiktoken import Pattern
from packline.sources.batch import Texts
from packline.storage.requests import process_cores

JOIN_BYTES = 64 << 20
"""Total size of the tables of batches that wait to be joined."""
AHEAD = 8
"""Batches queued per thread, so that no thread is idle while tables are joined."""
ROW_BYTES = 16
"""Size of a word in a table, in addition to its text."""

LETTER, NUMBER, OTHER, LINE_END, SPACE, EDGE = range(6)
ASSIGNED = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000))
"""Ranges of code points that may be letters, digits or white space, without surrogates and private use."""
BLOCK = 1 << 12
RANGE_CHARS = 1 << 17
"""Number of characters processed together."""
SAFE = re.compile(rb"[a-z](?= [a-z])")
"""Match after which a word always ends, whatever comes before and after."""

ONE = [ord(letter) for letter in "stmd"]
TWO = [ord(word[0]) << 8 | ord(word[1]) for word in ("re", "ve", "ll")]
"""Two-letter endings that may follow the apostrophe of a contraction."""


@dataclass(frozen=True, slots=True)
class WordCounts:
    """Distinct words and their counts."""

    data: np.ndarray
    """Bytes of the words back to back, uint8."""
    offsets: np.ndarray
    """Start of each word in `data`, and the end, int64 `[W+1]`."""
    counts: np.ndarray
    """Occurrences of each word, int64 `[W]`."""
    forgotten_words: int = 0
    """Number of distinct words dropped because they were rare and memory was full."""
    forgotten: int = 0
    """Number of occurrences of the dropped words."""

    def __len__(self) -> int:
        return len(self.counts)


def count_words(
    batches: Iterable[Texts], pattern: Pattern, *, memory_bytes: int, threads: int | None = None
) -> WordCounts:
    """Count the words of texts.

    >>> from packline.encoders.tiktoken import pattern_of
    >>> found = count_words([Texts.of(["a b a", " a"])], pattern_of("gpt2"), memory_bytes=1 << 30)
    >>> len(found), sorted(found.counts.tolist())
    (3, [1, 1, 2])
    """
    table = _Table(memory_bytes)
    threads = threads or process_cores()
    with ThreadPoolExecutor(threads) as pool:
        running: deque[Future[pa.Table]] = deque()
        for texts in batches:
            running.append(pool.submit(_count, texts, pattern))
            if len(running) > AHEAD * threads:
                table.add(running.popleft().result())
        for one in running:  # in order: the dropped words do not depend on which thread was faster
            table.add(one.result())
    data, offsets, counts = table.result()
    return WordCounts(data, offsets, counts, table.forgotten_words, table.forgotten)


def _count(texts: Texts, pattern: Pattern) -> pa.Table:
    data = bytes(texts.data)
    starts = texts.offsets[:-1]
    bounds = word_bounds(pattern, data, starts[starts < len(data)])
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    words = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)
    found = words.value_counts()
    return pa.table({"word": found.field(0), "count": found.field(1)})


class _Table:
    """Tables of batches, joined when they have grown."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._parts = [pa.table({"word": pa.array([], pa.large_binary()), "count": pa.array([], pa.int64())})]
        self._bytes = 0
        self._joined_bytes = 0
        self.forgotten_words = 0
        self.forgotten = 0

    def add(self, part: pa.Table) -> None:
        self._parts.append(part)
        self._bytes += part.nbytes
        if self._bytes > max(JOIN_BYTES, min(self._joined_bytes, self._limit // 2)):
            self._join()

    def _join(self) -> pa.Table:
        joined = _summed(pa.concat_tables(self._parts))
        least = 1
        while len(joined) and _size(joined) > self._limit:
            counts = joined["count"].to_numpy()
            rare = counts <= least
            self.forgotten_words += int(np.count_nonzero(rare))
            self.forgotten += int(counts[rare].sum())
            joined = joined.filter(pa.array(~rare))
            least += 1
        self._parts, self._bytes, self._joined_bytes = [joined], 0, joined.nbytes
        return joined

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        joined = self._join().combine_chunks()
        words = joined["word"].combine_chunks()
        counts = joined["count"].to_numpy().astype(np.int64)
        if not len(words):
            return np.empty(0, np.uint8), np.zeros(1, np.int64), counts
        offsets = np.frombuffer(words.buffers()[1], np.int64, len(words) + 1, words.offset * 8)
        data = np.frombuffer(words.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
        return data, offsets - offsets[0], counts


def _summed(parts: pa.Table) -> pa.Table:
    """Sum the counts of each distinct word, in order of first occurrence.

    Three times faster than Arrow's `group_by`, whose keys are rows.
    """
    words = parts["word"].combine_chunks().dictionary_encode()
    counts = parts["count"].to_numpy()  # summed as float64 below: exact up to 2**53
    sums = np.bincount(words.indices.to_numpy(), weights=counts, minlength=len(words.dictionary))
    return pa.table({"word": words.dictionary, "count": sums.astype(np.int64)})


def _size(table: pa.Table) -> int:
    return int(table.nbytes) + ROW_BYTES * len(table)


def batches_of(texts: Iterable[str], size: int = 1 << 20) -> Iterator[Texts]:
    """Group texts into batches of about `size` characters.

    >>> [len(batch) for batch in batches_of(["a" * 10] * 5, 25)]
    [3, 2]
    """
    held: list[str] = []
    characters = 0
    for text in texts:
        held.append(text)
        characters += len(text)
        if characters >= size:
            yield Texts.of(held)
            held, characters = [], 0
    if held:
        yield Texts.of(held)


@cache
def kinds() -> np.ndarray:
    """Kind of every character, uint8 `[0x110000]`; takes 0.1 s, once."""
    table = np.full(0x110000, OTHER, np.uint8)
    for expression, kind in ((r"\s", SPACE), (r"[\r\n]", LINE_END), (r"\p{L}", LETTER), (r"\p{N}", NUMBER)):
        table[_matching(expression, ASSIGNED)] = kind
    return table


@cache
def folded() -> dict[int, str]:
    """Characters that equal a letter of a contraction if case is ignored, such as `ſ`."""
    latin = ((0, 0x2200),)
    found = {letter: _matching(f"(?i:{letter})", latin) for letter in "stremvld"}
    return {point: letter for letter, points in found.items() for point in points.tolist()}


def _matching(expression: str, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Characters that match in HF's engine, found by replacing them."""
    from tokenizers import Regex, normalizers

    replace = normalizers.Replace(Regex(expression), "\0")
    found = []
    for first, last in ranges:
        for start in range(first, last, BLOCK):
            points = np.arange(start, min(start + BLOCK, last), dtype=np.uint32)
            replaced = replace.normalize_str(points.tobytes().decode("utf-32-le"))
            matches = np.frombuffer(replaced.encode("utf-32-le"), np.uint32) == 0
            found.append(points[matches & (points != 0)])
    return np.concatenate(found)


def word_bounds(pattern: Pattern, data: bytes, documents: np.ndarray) -> np.ndarray:
    """Find the start of each word, and the end of the last one.

    >>> from packline.encoders.tiktoken import pattern_of
    >>> word_bounds(pattern_of("gpt4"), b"we're (ok) 1234", np.zeros(1, np.int64)).tolist()
    [0, 2, 5, 7, 9, 10, 11, 14, 15]
    """
    if not data:
        return np.zeros(1, np.int64)
    edges = _cuts(data, documents)
    parts = []
    for start, stop in itertools.pairwise(edges):
        inside = documents[(documents > start) & (documents < stop)] - start
        parts.append(_split(pattern, data[start:stop], inside) + start)
    return np.concatenate([*parts, [len(data)]]).astype(np.int64)


def _cuts(data: bytes, documents: np.ndarray) -> list[int]:
    """Offsets that cut the data into ranges of bounded size, where safe places to cut are found."""
    edges = [0]
    while len(data) - edges[-1] > 2 * RANGE_CHARS:
        place = edges[-1] + RANGE_CHARS
        found = SAFE.search(data, place)
        next_document = int(np.searchsorted(documents, place))
        candidates = [found.end()] if found else []
        candidates += [int(documents[next_document])] if next_document < len(documents) else []
        if not candidates or min(candidates) >= len(data):
            break
        edges.append(min(candidates))
    return [*edges, len(data)]


def _split(pattern: Pattern, data: bytes, documents: np.ndarray) -> np.ndarray:
    if data.isascii():
        return _beginnings(pattern, np.frombuffer(data, np.uint8), documents).nonzero()[0]
    points = np.frombuffer(data.decode("utf-8").encode("utf-32-le"), np.uint32)
    first = (np.frombuffer(data, np.uint8) & 0xC0) != 0x80  # first bytes of characters
    if len(documents):
        edges = np.concatenate(([0], documents))
        documents = np.cumsum(np.add.reduceat(first.view(np.uint8), edges, dtype=np.int64))[:-1]
    begins = np.zeros(len(data), np.bool_)
    begins[first] = _beginnings(pattern, points, documents)
    return begins.nonzero()[0]


def _beginnings(pattern: Pattern, points: np.ndarray, documents: np.ndarray) -> np.ndarray:
    characters = _Characters(points, documents)
    return (_with_spaces if pattern.rules == "spaces" else _with_marks)(characters, pattern.digits)


class _Characters:
    """Kinds of all characters and of their neighbours in the same document: uint8 arrays of equal length."""

    def __init__(self, points: np.ndarray, documents: np.ndarray) -> None:
        self.points = points
        self.kind = kind = kinds().take(points, mode="clip")
        self.before, self.after, self.blank = (np.empty_like(kind) for _ in range(3))
        self.before[0] = self.after[-1] = EDGE
        self.before[1:], self.after[:-1] = kind[:-1], kind[1:]
        self.before[documents] = self.after[documents - 1] = EDGE
        # True if a plain space of the same document comes before.
        self.blank = np.zeros(len(kind), np.bool_)
        np.equal(points[:-1], 0x20, out=self.blank[1:])
        self.blank[documents] = False

    def contract(self, begins: np.ndarray, fold: bool) -> None:
        """Cut after `'s`, `'re`, ... where a single apostrophe comes before letters."""
        alone = (self.points == 0x27) & (self.after == LETTER) & (self.before != OTHER) & ~self.blank
        letters = alone.nonzero()[0] + 1
        first = self._letters(letters, fold)
        second = self._letters(np.minimum(letters + 1, len(self.points) - 1), fold)
        second[self.after[letters] != LETTER] = 0
        sizes = np.where(np.isin(first, ONE), 1, np.where(np.isin(first << 8 | second, TWO), 2, 0))
        letters, sizes = letters[sizes > 0], sizes[sizes > 0]
        begins[letters] = False
        last = letters + sizes - 1
        begins[last[self.after[last] == LETTER] + 1] = True

    def _letters(self, places: np.ndarray, fold: bool) -> np.ndarray:
        """Letters of contractions at the given positions, as ASCII; 0 for any other."""
        points = self.points[places].astype(np.int64)
        if fold:
            for point, letter in folded().items():
                points[points == point] = ord(letter)
        points[points > 0x7F] = 0
        return points


def _with_spaces(text: _Characters, digits: int) -> np.ndarray:
    """GPT-2: a word takes one space before it."""
    white = text.kind >= LINE_END
    begins = (text.kind != text.before) & ~text.blank & ~white
    # The last character of white space before a word is separate: ` ` belongs to the word.
    begins |= white & ((text.before < LINE_END) | (text.before == EDGE) | (text.after < LINE_END))
    text.contract(begins, fold=False)
    return begins


def _with_marks(text: _Characters, digits: int) -> np.ndarray:
    """GPT-4 and similar: letters take one mark before them, marks take line ends after them."""
    kind, before, after = text.kind, text.before, text.after
    other, space = kind == OTHER, kind == SPACE
    begins = kind != before
    # Marks include a space before them.
    begins &= ~(other & text.blank)
    # Letters include one mark, space or tab before them, but not a mark that itself includes a space.
    taken = (other & (before != OTHER) & ~text.blank) | space
    taken &= after == LETTER
    begins[1:] &= ~taken[:-1]
    # Line ends belong to the marks before them, else to all white space before them.
    begins &= ~((kind == LINE_END) & ((before == OTHER) | (before == SPACE)))
    _blank_lines(text, begins, space)
    # The last character of white space before a word is separate.
    begins |= space & (after < LINE_END)
    text.contract(begins, fold=True)
    _digits(text, begins, digits)
    return begins


def _blank_lines(text: _Characters, begins: np.ndarray, space: np.ndarray) -> None:
    """Join space between line ends to them, unless the first of them belong to marks."""
    last = (space & (text.after == LINE_END)).nonzero()[0]
    if not len(last):
        return
    runs = (text.kind != text.before).nonzero()[0]
    number = runs.searchsorted(last, side="right") - 1
    starts, ends = runs[number], runs[number - 1]  # starts of the space, and of the line ends before it
    between = (text.before[starts] == LINE_END) & (text.before[ends] != OTHER)
    begins[starts[between]] = False


def _digits(text: _Characters, begins: np.ndarray, digits: int) -> None:
    """Cut numbers after every `digits` digits."""
    number = text.kind == NUMBER
    starts = (number & (text.before != NUMBER)).nonzero()[0]
    lengths = (number & (text.after != NUMBER)).nonzero()[0] + 1 - starts
    starts, lengths = starts[lengths > digits], lengths[lengths > digits]
    pieces = (lengths - 1) // digits
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces) + 1
    begins[np.repeat(starts, pieces) + within * digits] = True
