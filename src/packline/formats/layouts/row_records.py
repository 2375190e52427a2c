"""`index.json` of rows in records, and folders of splits that have one: common parts of litdata and MDS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.errors import InputError

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
        raise InputError(f"{path}: expected one folder per split, found {names}", hint="name one of them")
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
