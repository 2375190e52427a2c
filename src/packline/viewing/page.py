"""A page as data: its content, without its appearance.

    store, rows, batch ──> Page of blocks ──┬── terminal.render  lines of a terminal, or of a pipe
                                            └── html.render      a file that opens offline, or a web page

Blocks hold plain values. Their strings come from files and may contain anything. Each renderer makes them
harmless in one place (`text.visible`, `html.escaped`), so code that describes a page need not escape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mood = Literal["plain", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Link:
    """Text that links to another page, on surfaces with pages."""

    text: str
    href: str


Value: TypeAlias = str | Link


@dataclass(frozen=True, slots=True)
class Heading:
    """Title of a section, of level 2 or 3; level 1 is the title of the page."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Note:
    """Short text of one or two sentences."""

    text: str
    mood: Mood = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """List of names and values."""

    rows: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Table of rows below column headings."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    align: str
    """`l` or `r` for each column."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length and its label."""

    label: str
    value: float
    shown: str
    part: float = 0.0
    """Part of the value to mark, such as padding within a row."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, one below another, with a common zero."""

    caption: str
    rows: tuple[Bar, ...]
    part: str = ""
    """Meaning of the marked parts; empty if there are none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several measures of several items: one row per item, one column per measure."""

    caption: str
    noun: str
    """Noun for the items, such as `packing`."""
    measures: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Bar, ...]], ...]
    """Name of each item, and a bar for each measure."""
    top: float = 0.0
    """Value of a full bar; 0: the largest value of each measure."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Vertical bars, one for each class."""

    caption: str
    labels: tuple[str, ...]
    """Label of each class, such as `1`, `2 to 3`, `4 to 7`."""
    counts: tuple[int, ...]
    unit: str
    """Unit of the counts, such as `documents`."""
    marks: tuple[tuple[str, int], ...] = ()
    """Names and class numbers of marks, such as the median."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Part of a flow, with `count` as its width."""

    label: str
    count: int
    mood: Mood = "plain"
    """`warning` or `bad` for a loss."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of a flow: the amount that enters, and the parts that it splits into."""

    label: str
    count: int
    unit: str
    kept: Stream
    lost: tuple[Stream, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """Flow from left to right through stages, with every loss named."""

    caption: str
    stages: tuple[Stage, ...]


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a document of a strip."""

    segment: int
    document: int | None
    text: str
    """Description such as `web/a.jsonl at 7,749,032, id a1b2`."""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """Tokens in order, as the tokenizer split them."""

    caption: str
    cells: tuple[Cell, ...]
    origins: tuple[Origin, ...] = ()
    more: int = 0
    """Number of tokens that are not shown."""


@dataclass(frozen=True, slots=True)
class Links:
    """Navigation links, such as to the next page."""

    label: str
    """Description for screen readers."""
    links: tuple[Value, ...]
    """Links; a plain text is an unavailable link or the current page."""


@dataclass(frozen=True, slots=True)
class Field:
    """Input field of a form."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "area", "choice", "hidden"] = "text"
    choices: tuple[tuple[str, str], ...] = ()
    """Values and labels of a choice."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form that leads to another page of the viewer; omitted on surfaces without pages."""

    label: str
    action: str
    fields: tuple[Field, ...]
    submit: str = "Show"


@dataclass(frozen=True, slots=True)
class Beside:
    """Blocks side by side for comparison; stacked if there is no room."""

    parts: tuple[tuple[Block, ...], ...]


Block: TypeAlias = (
    Heading | Note | Facts | Table | Bars | Comparison | Histogram | Flow | Strip | Links | Form | Beside
)


@dataclass(frozen=True, slots=True)
class Page:
    """Page with a title and blocks; warnings come first on every surface."""

    title: str
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...] = field(default=())
    summary: str = ""
    """Line below the title."""
