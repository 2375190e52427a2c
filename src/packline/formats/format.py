"""Interface of a format: how a store is converted to it, and how it is converted to a store.

    store ── DocumentView ── plan ──> parts ── write ──> files ── finish ──> the data set
    store ── RowView ─────── (the same; rows in training order instead of documents)

    data set ── open ──> Foreign: files, units ── blocks ──> documents ──> a store

A format describes a layout. Everything that formats have in common, such as processes, progress, staging,
checksums, resuming after an interruption, and checking ids against the vocabulary, is done around it
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
"""Boundary tokens of a document in a file: an end after it; one token before it; both; none.

`bos` without a begin-of-document token in the store is the end-of-document token, moved to the front.
"""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of a format's options, with defaults that its project expects."""


class Lost(msgspec.Struct, frozen=True):
    """Part of the store that is not in the output: reported before writing, and stored next to the output."""

    what: str
    """`loss mask`, `document boundaries`, `provenance`, `tail`, ..."""
    count: int
    unit: str
    """Unit of the count: `tokens`, `documents`, `rows`."""
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.count:,} {self.unit}: {self.why}"


class Part(msgspec.Struct, frozen=True):
    """A file, or a few that belong together: the unit of work and of resuming."""

    name: str
    """Name, unique among the parts of an export."""
    split: str = "train"
    number: int = 0
    """Number in a numbering chosen by the format."""
    start: int = 0
    """First document, token or row, as the format counts them; `stop` is exclusive."""
    stop: int = 0
    shard: str = ""
    """The store's shard whose bytes it shares, if any."""


class Plan(msgspec.Struct, frozen=True):
    """Plan of what an export will write."""

    parts: tuple[Part, ...]
    bytes: int
    """Bytes of the output, as far as known, except those shared with the store."""
    shared_bytes: int = 0
    """Bytes of files shared with the store."""
    lost: tuple[Lost, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer of the layout may stop."""


class Written(msgspec.Struct, frozen=True):
    """A written part, with the values that the format needs to finish."""

    part: Part
    facts: dict[str, Any]


@dataclass(slots=True)
class Block:
    """Some whole documents: `tokens [T]`, `offsets` int64 `[D+1]` from 0."""

    tokens: np.ndarray
    offsets: np.ndarray
    loss: np.ndarray | None = None
    """uint8 `[T]`, 1 = trained on."""
    positions: np.ndarray | None = None
    """int64 `[D]`: byte offset of each document in its file, or row number if the file has rows."""
    ids: list[str | None] | None = None
    unfinished: np.ndarray | None = None
    """bool `[D]`: documents without a boundary token, because the data begins or ends within them."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


class ForeignFile(msgspec.Struct, frozen=True):
    """A file of a foreign data set."""

    name: str
    """Path relative to the data set's folder."""
    path: str
    bytes: int


class ForeignUnit(msgspec.Struct, frozen=True):
    """Documents of a foreign data set that are read as one unit of work, in one process."""

    split: str
    file: int
    """File in which its documents begin, for provenance."""
    start: int
    """First document, token or row, as the format counts them."""
    stop: int
    pieces: tuple[tuple[int, int, int], ...] = ()
    """(file, first byte, end byte): the pieces covered. All units together cover all bytes, once."""


class Foreign(ABC):
    """An opened foreign data set: headers and indexes are read, tokens are not."""

    files: list[ForeignFile]
    units: list[ForeignUnit]
    """Units in document order."""
    edges: Edges
    """Boundary tokens that its documents are expected to have."""
    dtype: np.dtype
    documents: int | None = None
    """Number of documents, if the headers declare it."""
    tokens: int | None = None
    facts: dict[str, Any]
    """Metadata: `vocab_size`, `tokenizer`, `eod_id`, ..., as far as declared."""

    @abstractmethod
    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        """Documents of a unit, a few million tokens at a time, in the file's own form.

        Raises:
            CorruptStore: damage that is only detected now, with file and position.
        """


class Format(ABC):
    """A layout of tokens on disk."""

    name: ClassVar[str]
    title: ClassVar[str]
    """One line for lists: the project, and the names of its files."""
    kind: ClassVar[Kind]
    options: ClassVar[type[Options]]
    needs: ClassVar[tuple[str, ...]] = ()
    """Modules beyond packline's own requirements that are needed to write or read the format."""
    opened: ClassVar[Mapping[str, str]] = {}
    """Files that the trainer will miss, by the split that is missing."""

    def missing(self, splits: Iterable[str]) -> tuple[str, ...]:
        """Warnings about splits that the trainer opens and that are not among these.

        >>> from packline.formats.registry import get_format
        >>> get_format("nanogpt").missing(["train"])
        ("no val.bin: nanoGPT's train.py opens it and stops without",)
        """
        there = set(splits)
        return tuple(text for split, text in self.opened.items() if split not in there)

    def trainer_lines(self, out: str, record: ExportRecord, options: Any) -> tuple[str, ...]:
        """Lines to paste into the trainer: settings with which it trains correctly on a finished export.

        Args:
            out: the folder of the export.
            record: its metadata.
            options: options of the format.

        Returns:
            Code or arguments, complete except for the trainer's own settings; empty if unknown.
        """
        return ()

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """True if a file or folder is of this format beyond doubt, by magic numbers and names."""

    @abstractmethod
    def open(self, path: Path, options: Any, findings: Findings) -> Foreign:
        """Open a data set and enter all problems of its headers and sizes into `findings`.

        Everything readable is included; a file that cannot be read is left out of `units`.

        Raises:
            InputError: nothing of this format is found.
        """


class DocumentFormat(Format):
    """A layout of whole documents, in the order of the store or of a selection."""

    kind = "documents"

    @abstractmethod
    def edges_of(self, options: Any) -> Edges:
        """Boundary tokens of documents in the files."""

    @abstractmethod
    def plan(self, view: DocumentView, options: Any) -> Plan:
        """Parts to write; reads lengths at most.

        Raises:
            RecipeError: options that are invalid for these documents, or a vocabulary that does not fit.
        """

    @abstractmethod
    def write(self, view: DocumentView, part: Part, target: Target, options: Any) -> dict[str, Any]:
        """Write one part; return the values that `finish` needs, as JSON-compatible types."""

    def finish(self, view: DocumentView, written: list[Written], target: Target, options: Any) -> None:
        """Write files that summarise all parts, if the format has any."""


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
    """Dtype of a format for a vocabulary: the first whose limit holds it, or the chosen one.

    Args:
        limits: largest vocabulary in this format, by dtype name.

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
