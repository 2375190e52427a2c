"""A page as lines: for a terminal with colors, and for a pipe without a control character.

    ── document 14,895  web/a.jsonl at 7,749,032, id a1b2; from token 115
       115  the│ begin│ning│ of│ its│ text│↵
       121  ⟨and│ what│ is│ not│ learned⟩│⟦<|endoftext|>⟧
       ·×12 padding

With color, each token has its own background and marks are styles, whose appearance is decided where lines
are printed. Every text passes through `visible`, so nothing in a document or a file name can control a
terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from packline.viewing.page import (
    Bar,
    Block,
    Cell,
    CopyText,
    DocumentOrigin,
    Form,
    Heading,
    KeyValues,
    Links,
    Note,
    Page,
    Panel,
    Table,
    Timeline,
    TokenStrip,
    Value,
    flat,
    value_shown,
)
from packline.viewing.text import Line, Piece, cells, cut, plain, plural, table, visible, wrapped

if TYPE_CHECKING:
    from packline.viewing.tokens import Kind

MOODS = {"plain": "", "good": "good", "warning": "warning", "bad": "bad"}
LONGEST_BAR, SHORTEST_BAR = 40, 8
UNBOUNDED = sys.maxsize // 2
COLORS = 5
GUTTER = 9
NARROWEST = 16
NARROWEST_COLUMN = 6


def render_lines(page: Page, width: int, color: bool, *, wrap: bool = True) -> list[Line]:
    """Lines of a page."""
    room = width if wrap else UNBOUNDED
    lines: list[Line] = [["  ", (page.title, "title")]]
    if page.summary:
        lines += [["  ", (text, "quiet")] for text in wrapped(page.summary, room - 2)]
    if page.warnings:
        lines.append([])
    for warning in page.warnings:
        first, *more = wrapped(warning, room - 11)
        lines.append(["  ", ("warning: ", "warning"), first])
        lines += [[" " * 11, text] for text in more]
    return [*lines, [], *render_blocks(page.blocks, width, color, wrap=wrap)] if page.blocks else lines


def render_blocks(blocks: Sequence[Block], width: int, color: bool, *, wrap: bool) -> list[Line]:
    """Lines of blocks, with an empty line between two; see `render_lines`. Links and forms are omitted.

    Notes of one mood, such as problems, are a list without empty lines.
    """
    lines: list[Line] = []
    before: Block | None = None
    for block in flat(blocks):
        if isinstance(block, Links | Form):
            continue
        listed = isinstance(block, Note) and isinstance(before, Note) and block.mood == before.mood != "plain"
        lines += [*([[]] if lines and not listed else []), *_block_lines(block, width, color, wrap)]
        before = block
    return lines


def _block_lines(block: Block, width: int, color: bool, wrap: bool) -> list[Line]:
    room = width if wrap else UNBOUNDED
    match block:
        case Heading():
            return [["  ", (block.text, "heading")]]
        case Note():
            return [["  ", (text, MOODS[block.mood])] for text in wrapped(block.text, room - 2)]
        case KeyValues():
            pairs = [[(name, "quiet"), _styled(value)] for name, value in block.rows]
            return table(pairs, "ll", width=room)
        case Table():
            return _table_lines(_fitting_table(block, room) if block.form == "data" else block, width, room)
        case TokenStrip():
            return strip_lines(block, width, color)
        case Timeline():
            return [["  ", text] for text in wrapped(block.described, room - 2)]
        case CopyText():
            return [["  ", (block.label, "title")], *(["  ", text] for text in wrapped(block.text, room - 2))]
        case Links() | Form() | Panel():
            return []


def _styled(value: Value) -> Piece:
    return (value.shown, MOODS[value.mood]) if isinstance(value, Bar) else value_shown(value)


def _table_lines(block: Table, width: int, room: int) -> list[Line]:
    rows: list[list[Piece]] = [[_styled(value) for value in row] for row in block.rows]
    heads, align = [block.head_texts] if block.head else [], block.align
    widths = [max((cells(plain([row[at]])) for row in rows), default=0) + 2 for at in range(len(align))]
    if heads and sum(map(max, widths, (cells(text) + 2 for text in block.head_texts))) > room:
        heads = _wrapped_heads(block.head_texts, widths)
    places = {place for row in block.rows for place, value in enumerate(row) if isinstance(value, Bar)}
    if len(places) == 1:  # with several columns of bars, their numbers alone
        place = places.pop() + 1
        taken = sum(max(own, *(cells(head[at]) + 2 for head in heads), 0) for at, own in enumerate(widths))
        longest = max(min(LONGEST_BAR, width - taken - 4), SHORTEST_BAR)
        align = f"{align[:place]}l{align[place:]}"
        for head in heads:
            head.insert(place, "")
        for row, values in zip(rows, block.rows, strict=True):
            value = values[place - 1]
            row.insert(place, _bar(value, longest) if isinstance(value, Bar) else "")
    caption: list[Line] = [["  ", (block.caption, "title")]] if block.caption else []
    head_rows: list[Line] = [[(word, "quiet") for word in head] for head in heads]
    return [*caption, *table([*head_rows, *rows], align, width=room)]


def _fitting_table(block: Table, room: int) -> Table:
    """Table whose widest columns are cut so that each row takes one line."""
    texts = [block.head_texts, *([value_shown(value) for value in row] for row in block.rows)]
    widths = [max(cells(visible(row[at])) for row in texts) for at in range(len(block.align))]
    most = max(widths)
    while most > NARROWEST_COLUMN and sum(min(own, most) + 2 for own in widths) > room:
        most -= 1
    rows = tuple(tuple(cut(visible(value_shown(value)), most) for value in row) for row in block.rows)
    return replace(block, head=tuple(cut(text, most) for text in block.head_texts), rows=rows)


def _wrapped_heads(head: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Column headings over several lines, each no wider than its column needs."""
    parts = [
        wrapped(text, max(own - 2, *map(cells, text.split()), 1))
        for text, own in zip(head, widths, strict=True)
    ]
    height = max(map(len, parts))
    padded = [[""] * (height - len(part)) + part for part in parts]
    return [list(line) for line in zip(*padded, strict=True)]


def _bar(value: Bar, longest: int) -> Piece:
    return "━" * round(longest * min(value.share, 1.0)) or "·", MOODS[value.mood] or "number"


def strip_lines(strip: TokenStrip, width: int, color: bool) -> list[Line]:
    """Lines of a strip, of at most `width` columns where possible."""
    lines: list[Line] = [["  ", (strip.caption, "title")]] if strip.caption else []
    for origin, held in strip.segments():
        if held[0].padding:
            count = f"·×{sum(len(cell.ids) for cell in held):,}"
            lines.append([(f"{count:>{GUTTER}}  padding", "padding")])
            continue
        if strip.headings and origin:
            lines.append(_edge(held, origin))
        lines += _Wrapped(width, color).lines(held)
    if strip.more:
        lines.append([" " * GUTTER, (f"  and {plural(strip.more, 'more token')}", "quiet")])
    return lines


def _edge(held: list[Cell], origin: DocumentOrigin) -> Line:
    name = origin.title or ("" if origin.document is None else f"document {origin.document:,}")
    position = f"; from token {held[0].position:,}" if held[0].position else ""
    text = origin.note if origin.title else f"{origin.text}{position}"
    return ["  ── ", (name, "edge"), "  " if name else "", (text, "quiet")]


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
        from packline.viewing.tokens import visible_pieces  # it loads readers, which few pages need

        pieces: list[tuple[str, Kind]] = visible_pieces(cell)
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
