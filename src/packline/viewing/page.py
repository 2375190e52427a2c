"""A page as data: its content, without its appearance.

    describe(store, row, batch, ...) ──> Page of blocks ──┬── terminal.render_lines   a terminal, or a pipe
                                                          └── html.render_file        a file, or a web page

Blocks hold plain values. Their strings come from files and may contain anything. Each renderer makes them
harmless in one place, so code that describes a page need not escape.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from packline.notebook import Notebook

Mood = Literal["plain", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Link:
    """Text that links to another page, on surfaces with pages."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Bar:
    """Number with a bar."""

    shown: str
    share: float
    """Length of the bar, 0 to 1."""
    mood: Mood = "plain"


Value: TypeAlias = str | Link | Bar


def value_shown(value: Value) -> str:
    """A value as text.

    >>> value_shown("a"), value_shown(Link("b", "/")), value_shown(Bar("3", 0.5))
    ('a', 'b', '3')
    """
    return value.shown if isinstance(value, Bar) else value.text if isinstance(value, Link) else value


@dataclass(frozen=True, slots=True)
class Heading:
    """Title of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """Short text of one or two sentences."""

    text: str
    mood: Mood = "plain"


@dataclass(frozen=True, slots=True)
class KeyValues:
    """List of names and values."""

    rows: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """Head of a column that sorts the table and shows the distribution of the column's values."""

    text: str
    href: str = ""
    order: Literal["", "ascending", "descending"] = ""
    """Order of the rows, if they are sorted by this column."""
    bars: tuple[float, ...] = ()
    """Heights of the bars of the distribution, 0 to 1."""
    described: str = ""
    values: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """Table of rows below column headings."""

    caption: str
    head: tuple[str | ColumnHead, ...]
    """Column headings; empty: none."""
    rows: tuple[tuple[Value, ...], ...]
    align: str
    """`l` or `r` for each column."""
    form: Literal["", "data", "stacked", "wrapped"] = ""
    """`data` keeps each row on one line whatever its columns hold, `stacked` writes each row as running text
    where there is no room for columns, `wrapped` breaks lines in all cells."""

    @property
    def head_texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.head]


def table_of(caption: str, *columns: tuple[str, str, Sequence[Value]]) -> Table:
    """Table of columns, each a heading, its alignment and its values; columns of empty texts are left out."""
    kept = [one for one in columns if not one[2] or any(one[2])]
    rows = tuple(zip(*(values for _, _, values in kept), strict=True))
    return Table(caption, tuple(one[0] for one in kept), rows, "".join(one[1] for one in kept))


@dataclass(frozen=True, slots=True)
class Cell:
    """One token, or several that only together form a character."""

    text: str
    """Text of the tokens, with bytes that are not UTF-8 as `\\xNN`."""
    ids: tuple[int, ...]
    data: bytes
    position: int
    """Position of the first token in its document, or as in `position_ids` if they were given."""
    segment: int = 0
    """Number of the document within the row, from 0; -1 in padding."""
    special: bool = False
    padding: bool = False
    loss: bool | None = None
    """True if the token is learned, that is, the target of some position; None if unknown."""
    starts: bool = False
    """True if a document, or the rest of one, begins here."""
    mark: Literal["", "found", "here"] = ""
    """`found` for a hit of a search, `here` for the one that an address leads to."""


@dataclass(frozen=True, slots=True)
class DocumentOrigin:
    """Origin of a document of a strip."""

    segment: int
    document: int | None
    text: str
    """Description such as `web/a.jsonl at 7,749,032, id a1b2`."""
    href: str = ""
    title: str = ""
    """Name of the block, such as the role of a turn; default: `document` and its number."""
    note: str = ""
    anchor: str = ""
    """Name by which links on the page lead to the block."""


@dataclass(frozen=True, slots=True)
class TokenStrip:
    """Tokens in order, as the tokenizer split them."""

    caption: str
    cells: tuple[Cell, ...]
    origins: tuple[DocumentOrigin, ...] = ()
    more: int = 0
    """Number of tokens that are not shown."""
    headings: bool = True
    """False to leave out the names of the documents, where the page has them already."""

    def segments(self) -> Iterator[tuple[DocumentOrigin | None, list[Cell]]]:
        """Cells of each document, or of padding, with the origin of the document."""
        origins = {origin.segment: origin for origin in self.origins}
        for number, cells in itertools.groupby(self.cells, lambda one: -1 if one.padding else one.segment):
            yield origins.get(number), list(cells)


@dataclass(frozen=True, slots=True)
class Links:
    """Navigation links, such as to the next page; a plain text is an unavailable one or the current page."""

    label: str
    links: tuple[str | Link, ...]


@dataclass(frozen=True, slots=True)
class FormField:
    """Input field of a form."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "area", "choice", "hidden", "range", "check"] = "text"
    choices: tuple[tuple[str, str], ...] = ()
    hint: str = ""
    """Example of a value, shown while the field is empty."""
    most: int = 0
    """Largest value of a range, which begins at 0."""
    minor: bool = False
    """True to show the field on request, and if it has a value that is not the default."""

    @property
    def is_set(self) -> bool:
        """True if the value is not the default: the first choice, nothing, or 0."""
        return self.value not in ((self.choices[0][0],) if self.choices else ("", "0"))


def choice_field(
    name: str, label: str, value: str, known: Sequence[str | tuple[str, str]], *, minor: bool = False
) -> FormField:
    """Field to choose one of several values, each with its label if it has another one."""
    choices = tuple((one, one) if isinstance(one, str) else one for one in known)
    return FormField(name, label, value, "choice", choices, minor=minor)


@dataclass(frozen=True, slots=True)
class Form:
    """Form that leads to another page of the viewer; omitted on surfaces without pages."""

    label: str
    action: str
    fields: tuple[FormField, ...]
    submit: str = "Show"
    live: bool = False
    """True to request the page at every change, and to replace the blocks of the `live` panel."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Parts of a whole in a line, with a mark."""

    described: str
    parts: tuple[tuple[str, float, bool], ...]
    """Name of each part, its share of the whole, and True if the mark is in it."""
    at: float


@dataclass(frozen=True, slots=True)
class CopyText:
    """Text to be copied, shown on request."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Blocks that belong together.

    `live` blocks are renewed by a live form; `beside` has its parts in columns, stacked if there is no room;
    `facts` has facts, its first part, in a column at the right of the second, or below it.
    """

    form: Literal["live", "beside", "facts"]
    parts: tuple[tuple[Block, ...], ...]


Block: TypeAlias = (
    Heading | Note | KeyValues | Table | TokenStrip | Links | Form | Timeline | CopyText | Panel
)


@dataclass(frozen=True, slots=True)
class Page(Notebook):
    """Page with a title and blocks; warnings come first on every surface."""

    title: str
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...] = ()
    summary: str = ""

    def __str__(self) -> str:
        """The page as plain text."""
        from packline.viewing.terminal import render_lines
        from packline.viewing.text import plain

        return "\n".join(map(plain, render_lines(self, 100, color=False)))

    def flat_blocks(self) -> Iterator[Block]:
        return flat(self.blocks)


def flat(blocks: Sequence[Block]) -> Iterator[Block]:
    """Blocks in order, those of panels in their place."""
    for block in blocks:
        if isinstance(block, Panel):
            for part in block.parts:
                yield from flat(part)
        else:
            yield block


def bar_cells(values: tuple[tuple[float, str], ...]) -> tuple[Bar, ...]:
    """Bars on one scale, of values and their labels."""
    top = max((value for value, _ in values), default=0.0) or 1.0
    return tuple(Bar(shown, value / top) for value, shown in values)


def page_values(page: Page) -> dict[str, Any]:
    """A page as values for `packline view --json` and the viewer: its facts, tables, and strips of cells."""
    blocks = list(page.flat_blocks())
    return {
        "title": page.title,
        "summary": page.summary,
        "warnings": list(page.warnings),
        "facts": {
            name: value
            for block in blocks
            if isinstance(block, KeyValues)
            for name, value in block.rows
            if isinstance(value, str)
        },
        "tables": [
            {
                "caption": one.caption,
                "head": one.head_texts,
                "rows": [list(map(value_shown, row)) for row in one.rows],
            }
            for one in blocks
            if isinstance(one, Table)
        ],
        "strips": [_strip_values(block) for block in blocks if isinstance(block, TokenStrip)],
    }


def _strip_values(strip: TokenStrip) -> dict[str, Any]:
    cells = [dataclasses.asdict(cell) | {"data": cell.data.hex()} for cell in strip.cells]
    return {
        "caption": strip.caption,
        "more": strip.more,
        "origins": [dataclasses.asdict(origin) for origin in strip.origins],
        "cells": [{name: value for name, value in cell.items() if name != "mark"} for cell in cells],
    }
