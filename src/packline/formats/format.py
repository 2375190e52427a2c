"""What a format is: how a store becomes it, and how it becomes a store.

    store ── DocumentView ── plan ──> parts ── write ──> files ── finish ──> the data set
    store ── RowView ─────── (the same; rows in training order instead of documents)

    data set ── open ──> Foreign: files, units ── blocks ──> documents ──> a store

A format says what goes where. Everything that formats have in common, such as processes, progress, staging,
checksums, going on after an interruption, and holding ids against the vocabulary, is done around it
(`exporting`, `importing`). So a format is a handful of pure functions: equal views and options give equal
bytes, and a part needs nothing but the view and its own bounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.export_record import ExportRecord
    from packline.formats.exporting.documents import DocumentView
    from packline.formats.exporting.rows import RowView
    from packline.formats.exporting.target import Target

Kind = Literal["documents", "rows"]
Edges = Literal["eod", "bos", "both", "none"]
"""Which boundary tokens a document has in a file: its end behind it; one token before it; both; none.

`bos` without a begin-of-document token in the store is the end-of-document token, moved to the front.
"""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be chosen about a format: each has its own, with defaults that its project expects."""


class Lost(msgspec.Struct, frozen=True):
    """Something of the store that is not in the output: said before writing, and kept beside it."""

    what: str
    """`loss mask`, `document boundaries`, `provenance`, `tail`, ..."""
    count: int
    unit: str
    """What is counted: `tokens`, `documents`, `rows`."""
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.count:,} {self.unit}: {self.why}"


class Part(msgspec.Struct, frozen=True):
    """A file, or a few that belong together: the atom of work and of going on."""

    name: str
    """Its own among the parts of an export."""
    split: str = "train"
    number: int = 0
    """Its place in a numbering of the format's."""
    start: int = 0
    """Of documents, tokens or rows, as the format counts them; up to but not with `stop`."""
    stop: int = 0
    shard: str = ""
    """The store's shard whose bytes it shares, where it does."""


class Plan(msgspec.Struct, frozen=True):
    """What an export will write."""

    parts: tuple[Part, ...]
    bytes: int
    """Of the output, as far as known, without what is shared with the store."""
    shared_bytes: int = 0
    """Of files whose bytes are the store's own."""
    lost: tuple[Lost, ...] = ()
    warnings: tuple[str, ...] = ()
    """Why the trainer that the layout is for may stop."""


class Written(msgspec.Struct, frozen=True):
    """A part after it was written: what the format wants to know of it at the end."""

    part: Part
    facts: dict[str, Any]


@dataclass(slots=True)
class Block:
    """Some documents, whole: `tokens [T]`, `offsets` int64 `[D+1]` that begin with 0."""

    tokens: np.ndarray
    offsets: np.ndarray
    loss: np.ndarray | None = None
    """uint8 `[T]`, 1 = trained on."""
    positions: np.ndarray | None = None
    """int64 `[D]`: byte offset of each document in its file, or row number where the file has rows."""
    ids: list[str | None] | None = None
    unfinished: np.ndarray | None = None
    """bool `[D]`: documents without a boundary token, because the data begins or ends within them."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


class ForeignFile(msgspec.Struct, frozen=True):
    """A file of a foreign data set."""

    name: str
    """Its path below the data set's folder."""
    path: str
    bytes: int


class ForeignUnit(msgspec.Struct, frozen=True):
    """Documents of a foreign data set that are read as one piece of work, in one process."""

    split: str
    file: int
    """The file that its documents begin in; what provenance names."""
    start: int
    """Documents, tokens or rows, as the format counts them."""
    stop: int
    pieces: tuple[tuple[int, int, int], ...] = ()
    """(file, first byte, one behind the last): what it accounts for. All units together: all bytes, once."""


class Foreign(ABC):
    """An opened foreign data set: headers and indexes were looked at, no tokens were."""

    files: list[ForeignFile]
    units: list[ForeignUnit]
    """In the order of documents."""
    edges: Edges
    """Which boundary tokens its documents are expected to have."""
    dtype: np.dtype
    documents: int | None = None
    """Where the headers tell."""
    tokens: int | None = None
    facts: dict[str, Any]
    """What it says of itself: `vocab_size`, `tokenizer`, `eod_id`, ..., as far as it does."""

    @abstractmethod
    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        """The documents of a unit, a few million tokens at a time, in the file's own form.

        Raises:
            CorruptStore: damage that shows only now, with file and place.
        """


class Format(ABC):
    """A layout of tokens on disk."""

    name: ClassVar[str]
    title: ClassVar[str]
    """A line for lists: whose it is, and what its files are called."""
    kind: ClassVar[Kind]
    options: ClassVar[type[Options]]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules beyond packline's own requirements without which it can be neither written nor read."""
    opened: ClassVar[Mapping[str, str]] = {}
    """By split, what its trainer will miss where there is no such split."""

    def missing(self, splits: Iterable[str]) -> tuple[str, ...]:
        """What the trainer will miss of data that has these splits and no others.

        >>> from packline.formats.registry import get_format
        >>> get_format("nanogpt").missing(["train"])
        ("no val.bin: nanoGPT's train.py opens it and stops without",)
        """
        there = set(splits)
        return tuple(text for split, text in self.opened.items() if split not in there)

    def trainer_lines(self, out: str, record: ExportRecord, options: Any) -> tuple[str, ...]:
        """Lines to paste into the trainer: what has to be set there for a finished export to train rightly.

        Args:
            out: the folder of the export.
            record: what is in it.
            options: of the format.

        Returns:
            Code or arguments, complete but for what belongs to the trainer alone; nothing where nobody knows.
        """
        return ()

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """Whether a file or folder is of this format beyond doubt, by magic numbers and names."""

    @abstractmethod
    def open(self, path: Path, options: Any, findings: Findings) -> Foreign:
        """Look at a data set and enter into `findings` everything that is wrong with its headers and sizes.

        What can still be read is offered; a file that cannot is left out of `units`.

        Raises:
            InputError: there is nothing of this format.
        """


class DocumentFormat(Format):
    """A layout of whole documents: the order is the store's, or that of a selection."""

    kind = "documents"

    @abstractmethod
    def edges_of(self, options: Any) -> Edges:
        """Which boundary tokens documents have in the files."""

    @abstractmethod
    def plan(self, view: DocumentView, options: Any) -> Plan:
        """Which parts to write; reads lengths at most.

        Raises:
            RecipeError: options that make no sense for these documents, or a vocabulary that does not fit.
        """

    @abstractmethod
    def write(self, view: DocumentView, part: Part, target: Target, options: Any) -> dict[str, Any]:
        """Write one part; return what `finish` wants to know of it, as JSON's types."""

    def finish(self, view: DocumentView, written: list[Written], target: Target, options: Any) -> None:
        """Write what sums up all parts, if the format has such a file."""


class RowFormat(Format):
    """A layout of rows of equal length, in training order."""

    kind = "rows"

    @abstractmethod
    def plan(self, view: RowView, options: Any) -> Plan:
        """As for documents."""

    @abstractmethod
    def write(self, view: RowView, part: Part, target: Target, options: Any) -> dict[str, Any]:
        """As for documents."""

    def finish(self, view: RowView, written: list[Written], target: Target, options: Any) -> None:
        """As for documents."""


def fitting_dtype(format: str, vocab_size: int, limits: dict[str, int], choice: str = "auto") -> np.dtype:
    """The dtype of a format for a vocabulary: the first whose limit holds it, or the one that was asked for.

    Args:
        limits: by dtype name, the largest vocabulary that it holds there.

    Raises:
        RecipeError: the vocabulary does not fit.

    >>> fitting_dtype("llmc", 50257, {"uint16": 65536, "uint32": 2**31}).name
    'uint16'
    >>> fitting_dtype("npy", 151669, {"uint16": 65536}).name
    Traceback (most recent call last):
    packline.errors.RecipeError: npy: ids of a vocabulary of 151,669 do not fit into uint16: ...
    """
    if choice != "auto" and choice not in limits:
        raise RecipeError(f"{format}: expected a dtype of auto, {', '.join(limits)}, found {choice!r}")
    names = list(limits) if choice == "auto" else [choice]
    for name in names:
        if vocab_size <= limits[name]:
            return np.dtype(name).newbyteorder("<")
    raise RecipeError(
        f"{format}: ids of a vocabulary of {vocab_size:,} do not fit into {names[-1]}: "
        f"expected at most {limits[names[-1]]:,}",
        hint="choose a wider dtype, or a format that has one",
    )
