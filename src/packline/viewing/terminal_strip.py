"""A strip of tokens as lines: a rule before each document, positions at the left, tokens in order.

    ── document 14,895  web/a.jsonl at 7,749,032, id a1b2; from token 115
       115  the│ begin│ning│ of│ its│ text│↵
       121  ⟨and│ what│ is│ not│ learned⟩│⟦<|endoftext|>⟧
       ·×12 padding

With color, each token has its own background and marks are styles. Without color, bars separate tokens,
`⟦ ⟧` enclose special ones and `⟨ ⟩` those that are not learned. Line ends of the text end lines.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from packline.viewing.cells import Kind, shown
from packline.viewing.lines import Line, Piece
from packline.viewing.page import Cell, Origin, Strip
from packline.viewing.text import cells, plural, visible

COLORS = 5
GUTTER = 9
NARROWEST = 16


def strip_lines(strip: Strip, width: int, color: bool) -> list[Line]:
    """Lines of a strip, of at most `width` columns where possible.

    >>> from packline.viewing.lines import plain
    >>> padding = Cell("", (0,), b"", 2, -1, padding=True)
    >>> strip = Strip("row 0", (Cell("one", (1,), b"one", 0), Cell(" two", (2,), b" two", 1), padding))
    >>> [plain(line) for line in strip_lines(strip, 40, color=False)]
    ['  row 0', '        0  one│ two', '     ·×1  padding']
    """
    lines: list[Line] = [["  ", (strip.caption, "title")]] if strip.caption else []
    origins = {origin.segment: origin for origin in strip.origins}
    for number, group in itertools.groupby(strip.cells, lambda cell: -1 if cell.padding else cell.segment):
        held = list(group)
        if number < 0:
            count = f"·×{sum(len(cell.ids) for cell in held):,}"
            lines.append([(f"{count:>{GUTTER}}  padding", "padding")])
            continue
        if number in origins:
            lines.append(_edge(held, origins[number]))
        lines += _Wrapped(width, color).lines(held)
    if strip.more:
        lines.append([" " * GUTTER, (f"  and {plural(strip.more, 'more token')}", "quiet")])
    return lines


def _edge(held: list[Cell], origin: Origin) -> Line:
    name = "" if origin.document is None else f"document {origin.document:,}"
    position = f"; from token {held[0].position:,}" if held[0].position else ""
    return ["  ── ", (name, "edge"), "  " if name else "", (f"{origin.text}{position}", "quiet")]


class _Wrapped:
    """Wraps tokens in lines of a given width."""

    def __init__(self, width: int, color: bool) -> None:
        self._room = max(width - GUTTER - 2, NARROWEST)
        self._color = color
        self._lines: list[Line] = []
        self._line: list[Piece] = []
        self._used = 0
        self._position = self._first = 0
        """Positions of the current token and of the first token of the line."""

    def lines(self, held: Sequence[Cell]) -> list[Line]:
        """Lines of the tokens of a document."""
        after: bool | None = None  # True if the token before was marked as not learned
        for number, cell in enumerate(held):
            self._position = cell.position
            follows = held[number + 1] if number + 1 < len(held) else None
            unlearned = cell.loss is False and not self._color
            start = "│" if self._used and not self._color else ""
            start += "⟨" if unlearned and not after else ""
            last = unlearned and (follows is None or follows.loss is not False)
            self._token(cell, start, "⟩" if last else "", self._style(cell, number))
            after = unlearned
        self._end()
        return self._lines

    def _style(self, cell: Cell, number: int) -> str:
        if cell.special:
            return "control"
        return "unlearned" if cell.loss is False else f"token-{number % COLORS}"

    def _token(self, cell: Cell, start: str, end: str, style: str) -> None:
        pieces: list[tuple[str, Kind]] = shown(cell)
        if cell.special and not self._color:
            pieces = [(f"⟦{text}⟧", kind) for text, kind in pieces]
        whole = sum(cells(text) for text, _ in pieces) + cells(start + end)
        if self._used and self._used + whole > self._room:
            self._end()
            start = start.removeprefix("│")
        self._put(start, "quiet")
        for place, (text, kind) in enumerate(pieces):
            self._put(text, "escape" if kind == "escape" and self._color else style)
            if kind == "break" and (place + 1 < len(pieces) or not end):
                self._end()
        self._put(end, "quiet")

    def _put(self, text: str, style: str) -> None:
        """Add a piece of text, over several lines if it is longer than one."""
        while text:
            if self._used >= self._room:
                self._end()
            taken = _fitting(text, self._room - self._used)
            if not taken and self._used:
                self._end()
                continue
            taken = taken or 1  # a character wider than the line
            if not self._line:
                self._first = self._position
            self._line.append((text[:taken], style))
            self._used += cells(visible(text[:taken]))
            text = text[taken:]

    def _end(self) -> None:
        if self._line:
            self._lines.append([(f"{self._first:>{GUTTER},}  ", "quiet"), *self._line])
        self._line, self._used = [], 0


def _fitting(text: str, room: int) -> int:
    """Number of characters that fit, each with its combining marks."""
    if cells(text) <= room:
        return len(text)
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > room:
            return place
    return len(text)
