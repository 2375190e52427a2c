"""Common parts of formats of rows: `index.json` of records, rows with the token that follows, and losses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import InputError
from packline.formats.types import DatasetFile
from packline.packing.batch import IGNORED

if TYPE_CHECKING:
    from packline.formats.row_view import RowView

INDEX = "index.json"
BLOCK_TOKENS = 1 << 20
"""Approximate tokens in rows written at a time."""
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Folders of splits below a data set, and the split of the store that each one becomes."""


def split_folders(path: Path) -> list[tuple[str, Path]]:
    """Folders with an `index.json`, and the split of each: the data set itself, or those below it.

    Raises:
        InputError: there is none, or two are the same split.
    """
    if path.name == INDEX and path.is_file():
        path = path.parent
    if (path / INDEX).is_file():
        return [("train", path)]
    found = [(SPLITS[name], path / name) for name in SPLITS if (path / name / INDEX).is_file()]
    if not found:
        raise InputError(f"{path}: expected {INDEX}, or folders train and val with one, found neither")
    splits = [split for split, _ in found]
    if len(set(splits)) < len(splits):
        names = ", ".join(folder.name for _, folder in found)
        raise InputError(f"{path}: expected one folder a split, found {names}", hint="import one of them")
    return found


def read_index(folder: Path) -> dict[str, Any]:
    """The object in a folder's `index.json`.

    Raises:
        InputError: it cannot be read, or is not an object.
    """
    path = folder / INDEX
    try:
        index = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(index, dict):
        raise InputError(f"{path}: expected an object, found {type(index).__name__}")
    return index


def dataset_file(root: Path, path: Path) -> DatasetFile:
    """Description of a file of a data set; size 0 if it is missing."""
    size = path.stat().st_size if path.is_file() else 0
    return DatasetFile(path.relative_to(root).as_posix(), str(path), size)


def row_tokens(view: RowView, start: int, stop: int) -> np.ndarray:
    """Rows with one more token at the end: int32 `[n, L+1]`.

    The last column is the target of the last token, or padding if it has none.
    """
    arrays = view.read(start, stop, ("tokens", "targets"))
    last = arrays["targets"][:, -1:]
    return np.concatenate([arrays["tokens"], np.where(last == IGNORED, view.pad_id, last)], axis=1)
