"""Rows in records, as litdata and MDS have them, and their `index.json`. A file has a head of offsets:

uint32    n                   records in this file
uint32    offsets[n+1]        bytes from the file's start, so a file is below 4 GiB
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from packline.errors import InputError
from packline.formats.layouts.files import read_object
from packline.formats.layouts.token_files import read_numbers
from packline.formats.types import DatasetFile
from packline.store.report import Findings

INDEX = "index.json"
BLOCK_TOKENS = 1 << 19
"""Approximate tokens in rows written at a time."""
MOST_BYTES = 2**32 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
FileName = Annotated[str, msgspec.Meta(pattern="^[^/]+$")]
T = TypeVar("T")


def head_of(count: int, size: int, settings: bytes = b"") -> tuple[bytes, int]:
    """Bytes before records of this size, and the size of the whole file."""
    first = 8 + 4 * count + len(settings)
    offsets = first + np.arange(count + 1, dtype=np.int64) * size
    return np.uint32(count).tobytes() + offsets.astype("<u4").tobytes() + settings, int(offsets[-1])


def read_index(path: Path, *keys: str) -> dict[str, Any]:
    """The object in a folder's `index.json`, which has to have these keys."""
    folder = path if path.is_dir() else path.parent
    if not (folder / INDEX).is_file():
        raise InputError(f"{path}: expected {INDEX}, or folders train and val with one, found neither")
    index = read_object(folder / INDEX)
    if not set(keys) <= set(index):
        found = ", ".join(index) or "nothing"
        raise InputError(f"{folder / INDEX}: expected {' and '.join(keys)}, found {found}")
    return index


def convert_index(index: dict[str, Any], kind: type[T], findings: Findings) -> T | None:
    """The index as a Struct; None, and a problem in `findings`, if its values are not of these types."""
    try:
        return msgspec.convert(index, kind)
    except msgspec.ValidationError as error:
        findings.add(INDEX, str(error))
        return None


def add_named(folder: Path, name: str, files: list[DatasetFile], findings: Findings) -> DatasetFile | None:
    """Enter a file that the index names; None, and a problem in `findings`, if it is missing."""
    if not (folder / name).is_file():
        findings.add(name, f"a file that {INDEX} names", "there", "missing")
        return None
    files.append(DatasetFile.of(folder / name, folder))
    return files[-1]


def read_offsets(file: DatasetFile, records: int, findings: Findings) -> np.ndarray | None:
    """Offsets of the records of a file, int64 `[records + 1]`; None, and a problem, if they are wrong."""
    begin = 8 + 4 * records
    if not findings.compare(file.name, "room for its offsets", True, file.bytes >= begin):
        return None
    head = read_numbers(file.path, np.dtype("<u4"), 0, 0, records + 2).astype(np.int64)
    count, offsets = int(head[0]), head[1:]
    if not findings.compare(file.name, "records", records, count):
        return None
    if offsets[0] < begin or offsets[-1] != file.bytes:
        wanted, found = f"{begin:,} or more and {file.bytes:,}", f"{offsets[0]:,} and {offsets[-1]:,}"
        findings.add(file.name, "first and last offset", wanted, found)
        return None
    if len(wrong := np.flatnonzero(np.diff(offsets) < 0)):
        at = int(wrong[0])
        findings.add(file.name, f"end of record {at}", f"{offsets[at]} or more", int(offsets[at + 1]))
        return None
    return offsets
