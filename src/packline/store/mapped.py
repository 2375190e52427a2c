"""Numbers of a file as a mapped array, if the file has exactly the expected size.

Cost: one look at the file's size; bytes are read when they are used, and are not checked.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from packline.errors import CorruptStore
from packline.store.files import map_file


def map_array(path: Path, dtype: np.dtype, shape: tuple[int, ...], *, holds: str, of: str) -> np.ndarray:
    """Map a file of numbers, read-only.

    Args:
        shape: shape of the array; the file holds it and nothing else.
        holds: the contents that determine the size, for the error.
        of: what else the file may belong to, for the hint.

    Returns:
        A plain array that holds the map: slicing `np.memmap` itself costs five times as much.

    Raises:
        CorruptStore: the file cannot be read, or has another size.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.bin"
    >>> _ = file.write_bytes(bytes([1, 0, 2, 0]))
    >>> map_array(file, np.dtype("<u2"), (2,), holds="2 tokens", of="another store").tolist()
    [1, 2]
    """
    whole = map_file(path)
    check_size(path, math.prod(shape) * dtype.itemsize, len(whole), holds=holds, of=of)
    return whole.view(dtype).reshape(shape) if len(whole) else np.empty(shape, dtype)


def check_size(path: Path, expected: int, found: int, *, holds: str, of: str) -> None:
    """Refuse a file of another size; see `map_array`.

    Raises:
        CorruptStore: the sizes differ.
    """
    if found != expected:
        raise CorruptStore(
            f"{path}: expected {expected:,} bytes, {holds}, found {found:,}",
            hint=f"the file was cut off or belongs to {of}",
        )
