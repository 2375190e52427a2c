"""A page as data: what is to be seen, without saying how it looks.

    store, rows, batch ──> Page of blocks ──┬── terminal.render  lines of a terminal, or of a pipe
                                            └── html.render      a file that opens offline, or a web page

Blocks hold plain values. Their strings come from files and may hold anything: whoever draws them makes them
harmless, in one place for each surface (`text.visible`, `html.escaped`), so that nobody who describes a page
has to think of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mood = Literal["plain", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to another page, on surfaces that have pages."""

    text: str
    href: str


Value: TypeAlias = str | Link


@dataclass(frozen=True, slots=True)
class Heading:
    """A title of a section; level 2 or 3, for 1 is the page's."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or two."""

    text: str
    mood: Mood = "plain"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    rows: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells below headings."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    align: str
    """`l` or `r` for each column."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: how long it is, and what it says."""

    label: str
    value: float
    shown: str
    part: float = 0.0
    """How much of the value is marked, such as padding within a row."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that lie, one below another, from the same zero."""

    caption: str
    rows: tuple[Bar, ...]
    part: str = ""
    """What the marked part of each is; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several measures of several things: a row for each thing, a column for each measure."""

    caption: str
    noun: str
    """What the things are, as `packing`."""
    measures: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Bar, ...]], ...]
    """The name of each thing, and a bar for each measure of it."""
    top: float = 0.0
    """What a whole bar stands for; 0: the largest of each measure."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bars that stand, one for each class."""

    caption: str
    labels: tuple[str, ...]
    """What each class holds, as `1`, `2 to 3`, `4 to 7`."""
    counts: tuple[int, ...]
    unit: str
    """What is counted, as `documents`."""
    marks: tuple[tuple[str, int], ...] = ()
    """Names and classes of places worth a mark, such as the median."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of a flow, `count` wide."""

    label: str
    count: int
    mood: Mood = "plain"
    """`warning` and `bad` for what leaves the flow as a loss."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What happens at one place of a flow: how much arrives, and what becomes of each part of it."""

    label: str
    count: int
    unit: str
    kept: Stream
    lost: tuple[Stream, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """Where everything went, from left to right: nothing is lost without a name."""

    caption: str
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One token, or a few that are a character only together."""

    text: str
    """What it stands for; bytes that are no UTF-8 as `\\xNN`."""
    ids: tuple[int, ...]
    data: bytes
    position: int
    """Of the first token in its document, or in its row where `position_ids` were given."""
    segment: int = 0
    """Which document of the row, counted from 0; -1 in padding."""
    special: bool = False
    padding: bool = False
    loss: bool | None = None
    """Whether the token is learned, that is, some position has it as its target; None: not known."""
    starts: bool = False
    """Whether a document, or the rest of one, begins here."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a document of a strip comes from."""

    segment: int
    document: int | None
    text: str
    """`web/a.jsonl at 7,749,032, id a1b2`."""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """Tokens in their order, as the tokenizer cut them."""

    caption: str
    cells: tuple[Cell, ...]
    origins: tuple[Origin, ...] = ()
    more: int = 0
    """Tokens that are not shown."""


@dataclass(frozen=True, slots=True)
class Links:
    """Ways to go on from here, such as to the next page."""

    label: str
    """What they are, for who does not see them."""
    links: tuple[Value, ...]
    """A plain text is a way that does not exist here, or where one is."""


@dataclass(frozen=True, slots=True)
class Field:
    """Something to fill in."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "number", "area", "choice", "hidden"] = "text"
    choices: tuple[tuple[str, str], ...] = ()
    """Of a choice: values and what they are called."""


@dataclass(frozen=True, slots=True)
class Form:
    """Questions that lead to another page of the viewer; surfaces without pages leave it out."""

    label: str
    action: str
    fields: tuple[Field, ...]
    submit: str = "Show"


@dataclass(frozen=True, slots=True)
class Beside:
    """Blocks side by side, to be compared; one below another where there is no room."""

    parts: tuple[tuple[Block, ...], ...]


Block: TypeAlias = (
    Heading | Note | Facts | Table | Bars | Comparison | Histogram | Flow | Strip | Links | Form | Beside
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: what it is about, and its blocks; warnings come first on every surface."""

    title: str
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...] = field(default=())
    summary: str = ""
    """One line below the title."""
