"""Split text into words by a pattern, with the same result as the regular expression, in NumPy.

    text    w  e  '  r  e     (  o  k  )  \\n
    kind    L  L  O  L  L  V  O  L  L  O  R         letter, number, other, line end, other white space
    words   we    're      V( . ok    )\\n

Whether a word begins at a character depends on its kind and that of its neighbours (except for long numbers,
contractions and blank lines, which are few). So the words of a range of text are found by comparing arrays of
one byte per character, at 100 to 150 MB/s per core. The kinds of the characters are taken once from the
regular expression engine of HF `tokenizers`, so the two cannot disagree about a character, whatever their
version of Unicode.

Limits: patterns with other rules (`o200k`) are left to HF `tokenizers`.
"""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np

from packline.encoders.tiktoken import Pattern

LETTER, NUMBER, OTHER, LINE_END, SPACE, EDGE = range(6)
ASSIGNED = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000))
"""Ranges of code points that may be letters, digits or white space, without surrogates and private use."""
BLOCK = 1 << 12
STRETCH = 1 << 17
"""Number of characters processed together."""
SAFE = re.compile(rb"[a-z](?= [a-z])")
"""Match after which a word always ends, whatever comes before and after."""

ONE = [ord(letter) for letter in "stmd"]
TWO = [ord(word[0]) << 8 | ord(word[1]) for word in ("re", "ve", "ll")]
"""Two-letter endings that may follow the apostrophe of a contraction."""


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


def split_words(pattern: Pattern, data: bytes, documents: np.ndarray) -> np.ndarray:
    """Find the start of each word, and the end of the last one.

    Args:
        pattern: a pattern whose rules are not "other".
        data: UTF-8 of whole documents back to back.
        documents: start of each document, int64, increasing; no word spans these offsets.

    Returns:
        int64 byte offsets, from 0 to the length of the data.

    >>> from packline.encoders.tiktoken import pattern_of
    >>> split_words(pattern_of("gpt4"), b"we're (ok) 1234", np.zeros(1, np.int64)).tolist()
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
    while len(data) - edges[-1] > 2 * STRETCH:
        place = edges[-1] + STRETCH
        found = SAFE.search(data, place)
        next_document = int(np.searchsorted(documents, place))
        candidates = [found.end()] if found else []
        candidates += [int(documents[next_document])] if next_document < len(documents) else []
        if not candidates or min(candidates) >= len(data):
            break
        edges.append(min(candidates))
    return [*edges, len(data)]


def _split(pattern: Pattern, data: bytes, documents: np.ndarray) -> np.ndarray:
    """Byte offsets of the starts of words, the first 0."""
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
    """True for each character that begins a word."""
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
