"""Cut text into words by a pattern, as the regular expression would, in NumPy.

    text    w  e  '  r  e     (  o  k  )  \\n
    kind    L  L  O  L  L  V  O  L  L  O  R         letter, number, other, line end, other white space
    runs    LL    O  LL    V  O  LL    O  R
    words   we    're      V( . ok    )\\n

Where a word begins depends on neighbouring runs of one kind alone, so all words of a stretch of text are
found by a few comparisons of arrays, at about 65 MB/s a core. Which character is of which kind is asked of
the engine of regular expressions of HF `tokenizers` itself, once: so the two cannot disagree about a
character, whatever their Unicode.

What it does not do: patterns with other rules (`o200k`), which are left to HF's own.
"""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np

from packline.encoders.patterns import Pattern

LETTER, NUMBER, OTHER, LINE_END, SPACE, EDGE = range(6)
ASSIGNED = ((0, 0xD800), (0xE000, 0x40000), (0xE0000, 0xF0000))
"""Ranges of code points that may be letters, digits or white space: no surrogates, no private use."""
BLOCK = 1 << 12
STRETCH = 1 << 17
"""Characters that are looked at together."""
SAFE = re.compile(rb"[a-z](?= [a-z])")
"""Behind it a word ends whatever comes before and after."""

ONE = [ord(letter) for letter in "stmd"]
TWO = [ord(word[0]) << 8 | ord(word[1]) for word in ("re", "ve", "ll")]
"""What may follow an apostrophe in a contraction."""


@cache
def kinds() -> np.ndarray:
    """The kind of every character, uint8 `[0x110000]`; 0.1 s once."""
    table = np.full(0x110000, OTHER, np.uint8)
    for expression, kind in ((r"\s", SPACE), (r"[\r\n]", LINE_END), (r"\p{L}", LETTER), (r"\p{N}", NUMBER)):
        table[_matching(expression, ASSIGNED)] = kind
    return table


@cache
def folded() -> dict[int, str]:
    """Characters that are one of the letters of contractions where case does not count, such as `ſ`."""
    latin = ((0, 0x2200),)
    found = {letter: _matching(f"(?i:{letter})", latin) for letter in "stremvld"}
    return {point: letter for letter, points in found.items() for point in points.tolist()}


def _matching(expression: str, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    """The characters that match, by HF's engine: it replaces them, one by one."""
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
    """Where words begin, and where the last one ends.

    Args:
        pattern: whose rules are known here: not "other".
        data: UTF-8 of whole documents back to back.
        documents: where each begins, int64, increasing; no word reaches over these places.

    Returns:
        int64 byte offsets, from 0 to the length of the data.

    >>> from packline.encoders.patterns import pattern_of
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
    """Stretches of a bounded size, where places to cut are to be found."""
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
    """Byte offsets of the beginnings of words, the first 0."""
    if data.isascii():
        points, places = np.frombuffer(data, np.uint8), None
    else:
        points = np.frombuffer(data.decode("utf-8").encode("utf-32-le"), np.uint32)
        sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
        places = np.cumsum(sizes) - sizes
        documents = np.searchsorted(places, documents)
    begins = _beginnings(pattern, points, documents)
    return begins if places is None else places[begins]


def _beginnings(pattern: Pattern, points: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Indexes of the characters that begin a word."""
    kind = kinds()[points]
    breaks = np.empty(len(points), np.bool_)
    breaks[0] = True
    np.not_equal(kind[1:], kind[:-1], out=breaks[1:])
    breaks[documents] = True
    starts = np.flatnonzero(breaks)
    runs = _Runs(points, kind[starts], starts, documents)
    return (_with_spaces if pattern.rules == "spaces" else _with_marks)(runs, pattern.digits)


class _Runs:
    """Runs of characters of one kind: arrays with a value for each."""

    def __init__(
        self, points: np.ndarray, kind: np.ndarray, starts: np.ndarray, documents: np.ndarray
    ) -> None:
        self.points, self.kind, self.starts = points, kind, starts
        self.ends = np.append(starts[1:], len(points))
        self.lengths = self.ends - starts
        first = np.zeros(len(starts), np.bool_)
        first[0] = True
        first[np.searchsorted(starts, documents)] = True
        self.before = np.where(first, EDGE, np.roll(kind, 1))
        self.after = np.where(np.roll(first, -1), EDGE, np.roll(kind, -1))

    def follows_blank(self) -> np.ndarray:
        """Whether the character before a run is a plain space of the same document."""
        space = self.points[self.starts - 1] == 0x20
        return (self.before == SPACE) & space

    def contracted(self, fold: bool) -> tuple[np.ndarray, np.ndarray]:
        """Runs of letters after a single apostrophe that begin with `s`, `re`, ...; and how far that goes."""
        alone = (self.kind == OTHER) & (self.lengths == 1) & (self.after == LETTER) & ~self.follows_blank()
        apostrophes = np.flatnonzero(alone)
        apostrophes = apostrophes[self.points[self.starts[apostrophes]] == 0x27]
        letters = apostrophes + 1
        starts = self.starts[letters]
        first = self._letters(starts, fold)
        second = self._letters(np.minimum(starts + 1, len(self.points) - 1), fold)
        second[self.lengths[letters] < 2] = 0
        sizes = np.where(np.isin(first, ONE), 1, np.where(np.isin(first << 8 | second, TWO), 2, 0))
        return letters[sizes > 0], sizes[sizes > 0]

    def _letters(self, places: np.ndarray, fold: bool) -> np.ndarray:
        """The letters of contractions that stand there, as ASCII; 0 for any other."""
        points = self.points[places].astype(np.int64)
        if fold:
            for point, letter in folded().items():
                points[points == point] = ord(letter)
        points[points > 0x7F] = 0
        return points


def _with_spaces(runs: _Runs, digits: int) -> np.ndarray:
    """GPT-2: a word takes one space before it."""
    white = (runs.kind == SPACE) | (runs.kind == LINE_END)
    before_white = (runs.before == SPACE) | (runs.before == LINE_END)
    after_white = (runs.after == SPACE) | (runs.after == LINE_END)
    begins = np.where(white, ~before_white, ~runs.follows_blank())
    # Of white space before a word, the last character is apart: ` ` goes to the word.
    last = white & ~after_white & (runs.after != EDGE) & ((runs.lengths > 1) | before_white)
    letters, sizes = runs.contracted(fold=False)
    begins[letters] = False
    longer = runs.lengths[letters] > sizes
    return _join(
        len(runs.points),
        runs.starts[begins],
        runs.ends[last] - 1,
        runs.starts[letters[longer]] + sizes[longer],
    )


def _with_marks(runs: _Runs, digits: int) -> np.ndarray:
    """GPT-4 and its like: letters take one mark before them, marks take line ends behind them."""
    kind, before, after = runs.kind, runs.before, runs.after
    blank = runs.follows_blank()
    begins = np.ones(len(kind), np.bool_)
    # Letters: one mark, a space or a tab goes with them, but not a mark that goes with a space itself.
    mark = np.roll((kind == OTHER) & (runs.lengths == 1) & ~blank, 1)
    begins[(kind == LETTER) & ((before == SPACE) | ((before == OTHER) & mark))] = False
    begins[(kind == OTHER) & blank] = False
    # Line ends go with the marks before them, else with all white space before them.
    begins[(kind == LINE_END) & ((before == OTHER) | (before == SPACE))] = False
    taken = np.roll((kind == LINE_END) & (before == OTHER), 1)
    begins[(kind == SPACE) & (before == LINE_END) & (after == LINE_END) & ~taken] = False
    last = (kind == SPACE) & (runs.lengths > 1) & (after != LINE_END) & (after != EDGE)
    letters, sizes = runs.contracted(fold=True)
    longer = runs.lengths[letters] > sizes
    numbers = np.flatnonzero((kind == NUMBER) & (runs.lengths > digits))
    pieces = (runs.lengths[numbers] - 1) // digits
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces) + 1
    return _join(
        len(runs.points),
        runs.starts[begins],
        runs.ends[last] - 1,
        runs.starts[letters[longer]] + sizes[longer],
        np.repeat(runs.starts[numbers], pieces) + within * digits,
    )


def _join(size: int, *places: np.ndarray) -> np.ndarray:
    """All places in order, each once."""
    marked = np.zeros(size, np.bool_)
    for one in places:
        marked[one] = True
    return marked.nonzero()[0]
