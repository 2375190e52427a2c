"""`index.json` of rows in records: common parts of litdata and MDS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from packline.errors import InputError

INDEX = "index.json"
BLOCK_TOKENS = 1 << 19
"""Approximate tokens in rows written at a time."""


def read_index(folder: Path) -> dict[str, Any]:
    """The object in a folder's `index.json`.

    Raises:
        InputError: it cannot be read, or is not an object.
    """
    path = folder if folder.name == INDEX and folder.is_file() else folder / INDEX
    if not path.is_file():
        raise InputError(f"{folder}: expected {INDEX}, or folders train and val with one, found neither")
    try:
        index = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from error
    if not isinstance(index, dict):
        raise InputError(f"{path}: expected an object, found {type(index).__name__}")
    return index
