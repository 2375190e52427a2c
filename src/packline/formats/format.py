"""Interface of a format: how a store is converted to it, and how it is converted to a store.

    store ── DocumentView ── plan ──> parts ── write ──> files ── finish ──> the data set
    store ── RowView ─────── (the same; rows in training order instead of documents)

    data set of documents ── open ──> Foreign: files, units ── blocks ──> documents ──> a store
    data set of rows ─────── check ──> problems

A format describes a layout. Everything that formats have in common, such as processes, progress, staging,
checksums, resuming after an interruption, and checking ids against the vocabulary, is done around it
(`exporting`, `importing`). So a format is a handful of pure functions: equal views and options give equal
bytes, and a part needs nothing but the view and its own bounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from packline.formats.types import (
    Block,
    Edges,
    ForeignFile,
    ForeignUnit,
    Kind,
    Options,
    Part,
    Plan,
    RowFiles,
    Written,
)
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.export_record import ExportRecord
    from packline.formats.exporting.documents import DocumentView
    from packline.formats.exporting.rows import RowView
    from packline.formats.exporting.target import Target


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

    @abstractmethod
    def open(self, path: Path, options: Any, findings: Findings) -> Foreign:
        """Open a data set and enter all problems of its headers and sizes into `findings`.

        Everything readable is included; a file that cannot be read is left out of `units`.

        Raises:
            InputError: nothing of this format is found.
        """


class RowFormat(Format):
    """A layout of rows of equal length, in training order.

    Rows are written and checked, and not read: where documents begin is not preserved in them.
    """

    kind = "rows"

    @abstractmethod
    def plan(self, view: RowView, options: Any) -> Plan:
        """As for documents."""

    @abstractmethod
    def write(self, view: RowView, part: Part, target: Target, options: Any) -> dict[str, Any]:
        """As for documents."""

    def finish(self, view: RowView, written: list[Written], target: Target, options: Any) -> None:
        """As for documents."""

    @abstractmethod
    def check(self, path: Path, findings: Findings) -> RowFiles:
        """Check headers, sizes and numbering of a data set; rows are not read.

        Raises:
            InputError: nothing of this format is found.
        """
