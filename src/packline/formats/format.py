"""Interface of a format: how a store is converted to it, and how it is converted to a store; all by name.

    store ── DocumentView ── plan ──> parts ── write ──> files ── finish ──> the data set
    store ── RowView ─────── (the same; rows in training order instead of documents)

    data set of documents ── open ──> DatasetReader: files, units ── blocks ──> documents ──> a store
    data set of rows ─────── check ──> problems

A format describes a layout. Everything that formats have in common, such as processes, progress, staging,
checksums, resuming after an interruption, and checking ids against the vocabulary, is done around it
(`export`, `import_`). So a format is a handful of pure functions: equal views and options give equal
bytes, and a part needs nothing but the view and its own bounds. A format is imported on first use.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from packline.errors import InputError, RecipeError
from packline.formats.choice import ExportChoice, document_view, row_view
from packline.formats.options import Options
from packline.formats.types import (
    DatasetFile,
    DocumentBlock,
    Edges,
    ExportPart,
    ExportPlan,
    Kind,
    ReadTask,
    RowFiles,
    WrittenPart,
)
from packline.store.report import Findings

if TYPE_CHECKING:
    from packline.formats.document_view import DocumentView
    from packline.formats.export_record import ExportRecord
    from packline.formats.row_view import RowView
    from packline.formats.target import Target


class DatasetReader(ABC):
    """An opened data set: headers and indexes are read, tokens are not."""

    files: list[DatasetFile]
    units: list[ReadTask]
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
    def blocks(self, unit: ReadTask) -> Iterator[DocumentBlock]:
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

        >>> from packline.formats.format import get_format
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
    def view(self, source: str, choice: ExportChoice, options: Any) -> DocumentView | RowView:
        """Documents or rows of a store or run, as the format needs them.

        Raises:
            RecipeError: a source or settings for the other kind of formats.
        """

    @abstractmethod
    def plan(self, view: Any, options: Any) -> ExportPlan:
        """Parts to write, from a view of the format's kind; reads lengths at most.

        Raises:
            RecipeError: options that are invalid for this view, or a vocabulary that does not fit.
        """

    @abstractmethod
    def write(self, view: Any, part: ExportPart, target: Target, options: Any) -> dict[str, Any]:
        """Write one part; return the values that `finish` needs, as JSON-compatible types."""

    def finish(  # noqa: B027  optional
        self, view: Any, written: list[WrittenPart], target: Target, options: Any
    ) -> None:
        """Write files that summarise all parts, if the format has any."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """True if a file or folder is of this format beyond doubt, by magic numbers and names."""


class DocumentFormat(Format):
    """A layout of whole documents, in the order of the store or of a selection."""

    kind = "documents"

    def edges_of(self, options: Any) -> Edges:
        """Boundary tokens of documents in the files: by default the option `edges`."""
        edges: Edges = options.edges
        return edges

    def view(self, source: str, choice: ExportChoice, options: Any) -> DocumentView:
        return document_view(source, self.edges_of(options), choice)

    @abstractmethod
    def open(self, path: Path, options: Any, findings: Findings) -> DatasetReader:
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

    def view(self, source: str, choice: ExportChoice, options: Any) -> RowView:
        return row_view(source, choice)

    @abstractmethod
    def check(self, path: Path, findings: Findings) -> RowFiles:
        """Check headers, sizes and numbering of a data set; rows are not read.

        Raises:
            InputError: nothing of this format is found.
        """


DOCUMENT_FORMATS = (
    "megatron", "llmc", "nanogpt", "npy", "datatrove", "olmo", "forager", "arrow", "parquet",
    "stacks",
)  # fmt: skip
ROW_FORMATS = ("npz", "pt", "litdata", "mds", "trl", "baked")
NAMES = (*DOCUMENT_FORMATS, *ROW_FORMATS)


def get_format(name: str) -> Format:
    """Format of this name.

    Raises:
        RecipeError: there is no such format, or it needs a module that is not installed.

    >>> get_format("tfrecord")
    Traceback (most recent call last):
    packline.errors.RecipeError: no format 'tfrecord'
    """
    if name not in NAMES:
        raise RecipeError(f"no format {name!r}", hint=f"expected one of {', '.join(NAMES)}")
    format: Format = importlib.import_module(f"packline.formats.{name}").FORMAT
    for module in format.needs:
        if importlib.util.find_spec(module) is None:
            raise RecipeError(f"the format {name} needs {module}", hint=f"pip install 'packline[{module}]'")
    return format


def recognise(path: Path) -> Format:
    """Format of a file or folder, if unambiguous.

    Raises:
        InputError: none matches, or several do.
    """
    found = [
        name for name in NAMES if importlib.import_module(f"packline.formats.{name}").FORMAT.recognises(path)
    ]
    if len(found) == 1:
        return get_format(found[0])
    what = f"it could be {' or '.join(found)}" if found else "it looks like none that packline knows"
    raise InputError(f"{path}: expected files of one format: {what}", hint="name it with --from")
