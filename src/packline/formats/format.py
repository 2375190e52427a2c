"""Interface of a format: how a store is converted to it, and how it is converted to a store; all by name.

    store ── DocumentView ── plan ──> parts ── write ──> files ── finish ──> the data set
    store ── RowView ─────── (the same; rows in training order instead of documents)

    data set of documents ── open ──> DatasetReader: files, units ── blocks ──> documents ──> a store
    data set of rows ─────── check ──> problems

Processes, progress, staging, checksums, resuming and checks of ids are done around a format (`export`,
`import_`), so it is a handful of pure functions: equal views and options give equal bytes, and a part needs
nothing but the view and its own bounds. A format is imported on first use.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin

import msgspec
import numpy as np

from packline.conversion import convert
from packline.errors import InputError, RecipeError, unknown_name
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
    fitting_dtype,
)
from packline.recipe import SPLITS
from packline.store.report import Findings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from packline.formats.export_folder import ExportRecord, Target


SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test")
"""Folders of splits that data sets of rows have, by packline and by others."""


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

    folders: ClassVar[Mapping[str, str]] = {split: split for split in SPLITS}
    """Folder of each split, if an export of rows has several."""
    limits: ClassVar[dict[str, int]] = {}
    """Largest vocabulary for each dtype of its files."""

    def dtype_of(self, vocab_size: int, options: Any) -> np.dtype:
        """Dtype of the ids of a vocabulary in files: that of the option `dtype`, else the first that fits.

        Raises:
            RecipeError: the vocabulary does not fit.
        """
        return fitting_dtype(self.name, vocab_size, self.limits, getattr(options, "dtype", "auto"))

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
        """Write files that summarise all parts, of rows those of a split, if the format has any."""

    def finish_splits(self, folders: Sequence[str], target: Target) -> None:  # noqa: B027  optional
        """Write files that summarise the folders of several splits, if the format has any."""

    @abstractmethod
    def recognises(self, path: Path) -> bool:
        """True if a file or folder is of this format beyond doubt, by magic numbers and names."""

    def find_folders(self, path: Path) -> list[Path]:
        """The file or folder, if it is of this format; of rows, its folders of splits, if one of them is."""
        if self.kind == "documents" or self.recognises(path):
            return [path] if self.recognises(path) else []
        folders = [path / name for name in SPLIT_FOLDERS if (path / name).is_dir()]
        return folders if any(map(self.recognises, folders)) else []


class DocumentFormat(Format):
    """A layout of whole documents, in the order of the store or of a selection."""

    kind = "documents"
    holds_text: ClassVar[bool] = False
    """True if files have text instead of tokens; they are written and checked, and not imported."""

    def edges_of(self, options: Any) -> Edges:
        """Boundary tokens of documents in the files: by default the option `edges`."""
        edges: Edges = options.edges
        return edges

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
    shuffled: ClassVar[bool] = True
    """False where the format takes the place of scripts that keep the order of their input."""

    last_targets: ClassVar[bool] = True
    """False if the target of a row's last token is not in the files."""

    def has_mask(self, options: Any) -> bool:
        """True if the files tell a trainer which tokens are in the loss."""
        return True

    @abstractmethod
    def check(self, path: Path, findings: Findings) -> RowFiles:
        """Check headers, sizes and numbering of a data set; rows are not read.

        Raises:
            InputError: nothing of this format is found.
        """


DOCUMENT_FORMATS = (
    "megatron", "llmc", "nanogpt", "npy", "datatrove", "olmo", "forager", "arrow", "parquet",
    "stacks", "nanochat",
)  # fmt: skip
ROW_FORMATS = ("npz", "pt", "litdata", "mds", "trl", "levanter", "baked")
NAMES = (*DOCUMENT_FORMATS, *ROW_FORMATS)


GROUP = "packline.formats"
"""Entry points of formats in other distributions: the name of a format, and its class."""


def other_names() -> tuple[str, ...]:
    """Names of the formats of other distributions, none of which is imported."""
    return tuple(sorted(_entry_points()))


def get_format(name: str) -> Format:
    """Format of this name, in upper or lower case.

    Raises:
        RecipeError: there is no such format, or it needs a module that is not installed.

    >>> get_format("tfrecord")
    Traceback (most recent call last):
    packline.errors.RecipeError: no format 'tfrecord'
    """
    format = load_format(name) if name.lower() in NAMES else load_other_format(name)
    for module in format.needs:
        if importlib.util.find_spec(module) is None:
            hint = f"pip install 'packline[{module}]'" if format.name in NAMES else f"pip install {module}"
            raise RecipeError(f"the format {format.name} needs {module}", hint=hint)
    return format


def load_format(name: str) -> Format:
    """One of packline's own formats, even if modules that it needs are not installed."""
    format: Format = importlib.import_module(f"packline.formats.{name.lower()}").FORMAT
    return format


def load_other_format(name: str) -> Format:
    """Format of another distribution, which is imported now.

    Raises:
        RecipeError: there is none, its name is taken, or its entry point does not name a format's class.
    """
    name = name.lower()
    entries = _entry_points()
    found = entries.get(name, [])
    if not found:
        raise unknown_name(f"no format {name!r}", name, (*NAMES, *entries))
    owners = sorted(entry.dist.name if entry.dist else entry.value for entry in found)
    what, hint = f"the format {name} of {' and '.join(owners)}", f"ask its authors, or uninstall {owners[-1]}"
    if name in NAMES or len(found) > 1:
        taken = "is packline's own" if name in NAMES else "can only be one of them"
        raise RecipeError(f"{what} cannot be used: a format of this name {taken}", hint=hint)
    try:
        if _fits(kind := found[0].load(), name):
            format: Format = kind()
            return format
    except Exception as error:
        raise RecipeError(f"{what} cannot be loaded: {type(error).__name__}: {error}", hint=hint) from error
    needed = f"a subclass of DocumentFormat or RowFormat with the name {name!r}, a title and options"
    raise RecipeError(f"{what} cannot be used: expected {needed}, found {found[0].value}", hint=hint)


def _entry_points() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        found.setdefault(entry.name.lower(), []).append(entry)
    return found


def _fits(kind: Any, name: str) -> bool:
    """True if an object is the class of a format of this name."""
    if not isinstance(kind, type) or not issubclass(kind, DocumentFormat | RowFormat):
        return False
    options = getattr(kind, "options", None)
    whole = isinstance(options, type) and issubclass(options, Options)
    return whole and getattr(kind, "name", None) == name and isinstance(getattr(kind, "title", None), str)


def recognise(path: Path) -> Format:
    """One of packline's own formats that a file or folder has, if unambiguous."""
    found = [name for name in NAMES if load_format(name).find_folders(path)]
    if len(found) == 1:
        return get_format(found[0])
    what = f"it could be {' or '.join(found)}" if found else "it looks like none that packline knows"
    raise InputError(f"{path}: expected files of one format: {what}", hint="name it with --from")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of a format's options, with defaults that its project expects."""


def convert_options(format: Format, given: Mapping[str, Any]) -> Options:
    """Options of a format from names and values, which may be text.

    `none` leaves an option unset, unless the option has a value of that name. A list is comma-separated text
    or JSON.

    >>> from packline.formats.format import get_format
    >>> convert_options(get_format("mds"), {"fields": "tokens,targets,loss_mask"}).fields
    ('tokens', 'targets', 'loss_mask')
    """
    types = {field.name: field.type for field in msgspec.structs.fields(format.options)}
    known = ", ".join(types) or "none"
    hint = f"its options: {known}; packline formats {format.name} explains them"
    try:
        values = {name: _value(types.get(name), value) for name, value in given.items()}
    except msgspec.DecodeError as error:
        raise RecipeError(f"{format.name}: {error}", hint=hint) from error
    return convert(values, format.options, format.name, hint=hint, strict=False)


def _value(kind: Any, value: Any) -> Any:
    """The given value, with text that means None or a list converted."""
    if value == "none" and type(None) in get_args(kind) and not {str, "none"} & set(get_args(kind)):
        return None
    if isinstance(value, str) and takes_list(kind):
        if value.lstrip().startswith("["):
            return msgspec.json.decode(value)
        return [word for part in value.split(",") if (word := part.strip())]
    return value


def takes_list(kind: Any) -> bool:
    """True if an option of this type takes several values."""
    return any(get_origin(one) in (list, tuple) for one in (kind, *get_args(kind)))


def describe_options(options: type[Options]) -> list[dict[str, Any]]:
    """Name, default and description of every option, as JSON-compatible values.

    >>> from packline.formats.mds import MdsOptions
    >>> describe_options(MdsOptions)[1]
    {'name': 'size_limit', 'default': 67108864, 'about': 'Maximum size of a shard, in bytes.'}
    """
    docs = option_docs(options)
    found = []
    for field in msgspec.structs.fields(options):
        about = docs.get(field.name, "")
        if takes_list(field.type):
            about = f"{about} A list: `a,b` or JSON."
        default = None if field.default is msgspec.UNSET else msgspec.to_builtins(field.default)
        found.append({"name": field.name, "default": default, "about": about})
    return found


def option_docs(options: type[Options]) -> dict[str, str]:
    """Docstring below each field in the source, as one line."""
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        if not issubclass(kind, Options):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        except OSError:  # of another distribution, which may be installed without its source
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return found
