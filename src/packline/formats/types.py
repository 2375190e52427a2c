"""Value types of formats: parts and plans of an export, blocks of documents, files of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.store.manifest import TokenizerEntry

Kind = Literal["documents", "rows"]
Edges = Literal["eod", "bos", "both", "none"]
"""Boundary tokens of a document in a file: an end after it; one token before it; both; none.

`bos` without a begin-of-document token in the store is the end-of-document token, moved to the front.
"""

Size = Annotated[int, msgspec.Meta(ge=1)]
"""Number of an option, of at least 1."""

Facts = dict[str, Any]
"""Values of a written part that the format needs to finish: JSON-compatible."""

Files = Literal["many", "single"]
"""Files of an export: one per shard of the store, sharing its bytes, or one per split."""


class NotPreserved(msgspec.Struct, frozen=True):
    """Part of the store that is not in the output: reported before writing, and stored next to the output."""

    what: str
    """`loss mask`, `document boundaries`, `provenance`, `tail`, ..."""
    count: int
    unit: str
    """Unit of the count: `tokens`, `documents`, `rows`."""
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.count:,} {self.unit}: {self.why}"


class ExportPart(msgspec.Struct, frozen=True):
    """A file, or a few that belong together: the unit of work and of resuming."""

    name: str
    """Name, unique among the parts of an export, of rows among those of a split."""
    split: str = "train"
    number: int = 0
    """Number in a numbering chosen by the format."""
    start: int = 0
    """First document, token or row, as the format counts them; `stop` is exclusive."""
    stop: int = 0
    shard: str = ""
    """The store's shard whose bytes it shares, if any."""
    folder: str = ""
    """Prefix of the names of its files: the folder of its split, if an export of rows has several."""

    @property
    def unit(self) -> str:
        """Name among all parts of the export."""
        return self.folder + self.name


def row_parts(rows: int, each: int, name: str) -> tuple[ExportPart, ...]:
    """Parts of `each` rows, the last one of fewer, numbered from 0.

    Args:
        name: template of their names with `number` and `count`.

    >>> [(part.name, part.start, part.stop) for part in row_parts(5, 3, "rows-{number}-of-{count}")]
    [('rows-0-of-2', 0, 3), ('rows-1-of-2', 3, 5)]
    """
    starts = range(0, rows, each)
    return tuple(
        ExportPart(
            name.format(number=n, count=len(starts)), number=n, start=start, stop=min(start + each, rows)
        )
        for n, start in enumerate(starts)
    )


class ExportPlan(msgspec.Struct, frozen=True):
    """Plan of what an export will write."""

    parts: tuple[ExportPart, ...]
    bytes: int
    """Bytes of the output, as far as known, except those shared with the store."""
    shared_bytes: int = 0
    """Bytes of files shared with the store."""
    lost: tuple[NotPreserved, ...] = ()
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer of the layout may stop."""


class WrittenPart(msgspec.Struct, frozen=True):
    part: ExportPart
    facts: Facts


@dataclass(slots=True)
class DocumentBlock:
    """Some whole documents: `tokens [T]`, `offsets` int64 `[D+1]` from 0."""

    tokens: np.ndarray
    offsets: np.ndarray
    loss: np.ndarray | None = None
    """uint8 `[T]`, 1 = trained on."""
    positions: np.ndarray | None = None
    """int64 `[D]`: byte offset of each document in its file, or row number if the file has rows."""
    ids: list[str | None] | None = None
    truncated: np.ndarray | None = None
    """bool `[D]`: documents without a boundary token, because the data begins or ends within them."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


class DatasetFile(msgspec.Struct, frozen=True):
    name: str
    """Path relative to the data set's folder."""
    path: str
    bytes: int

    @classmethod
    def of(cls, path: Path, folder: Path) -> DatasetFile:
        """Description of a file below a folder; size 0 if it is missing."""
        size = path.stat().st_size if path.is_file() else 0
        return cls(path.relative_to(folder).as_posix(), str(path), size)


class RowFiles(msgspec.Struct, frozen=True):
    files: list[DatasetFile]
    metadata: dict[str, Any] = {}
    """`vocab_size`, `tokenizer`, `eod_id`, ..., as far as declared."""


class ReadTask(msgspec.Struct, frozen=True):
    """Documents of a data set that are read as one unit of work, in one process."""

    split: str
    file: int
    """File in which its documents begin, for provenance."""
    start: int
    """First document, token or row, as the format counts them."""
    stop: int
    pieces: tuple[tuple[int, int, int], ...] = ()
    """(file, first byte, end byte): the pieces covered. All units together cover all bytes, once."""


def fitting_dtype(format: str, vocab_size: int, limits: dict[str, int], choice: str = "auto") -> np.dtype:
    """Dtype of a format for a vocabulary: the first whose limit holds it, or the chosen one."""
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


def check_name(format: str, option: str, value: str) -> None:
    """Refuse a value that cannot be in a file's name."""
    if "/" in value or not value:
        raise RecipeError(f"{format}: expected a {option} that can be in a name, found {value!r}")


def without_folders(name: str) -> str:
    """A name as it is, or the last part of an absolute path.

    >>> without_folders("/data/gpt2/tokenizer.json"), without_folders("openai/gpt2")
    ('tokenizer.json', 'openai/gpt2')
    """
    return PurePath(name).name if PurePath(name).is_absolute() else name


class TokenizerProperties:
    """Base class of objects that have a tokenizer."""

    tokenizer: TokenizerEntry

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, without the folders of an absolute path: they mean nothing elsewhere."""
        return without_folders(self.tokenizer.name)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def eod_id(self) -> int:
        return self.tokenizer.eod_id

    @property
    def bos_id(self) -> int | None:
        return self.tokenizer.bos_id
