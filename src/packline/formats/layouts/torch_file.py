"""torch's file of one tensor of integers, written and read without torch and without unpickling.

    NAME/data.pkl      a fixed program of about 150 bytes: one row of n integers in storage 0
    NAME/byteorder     "little"
    NAME/data/0        the integers, at a multiple of 64 bytes
    NAME/version       "3
"

This is a zip archive of stored members, as made by `torch.save` since torch 1.6. `data.pkl` is a pickle whose
bytes are the same for every such tensor except for n; so it is written from a template and, when read,
compared with it: nothing in it is ever executed. Anything but a row of integers is refused.

Based on files written by torch 2.13; tested with `torch.load(weights_only=True)`. Does not read files from
before torch 1.6, which are not archives.
"""

from __future__ import annotations

import io
import re
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from packline.errors import CorruptStore

ALIGNMENT = 64
DAMAGE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, OverflowError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip
"""Exceptions of the standard library and NumPy for a damaged archive, or an array in one."""
STORAGES = {"Long": "<i8", "Int": "<i4", "Short": "<i2", "Byte": "u1", "Char": "i1"}

_HEAD = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01"
    b"ctorch\nLongStorage\nq\x02X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04"
)
_TAIL = b"\x85q\x06K\x01\x85q\x07\x89ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."
_NUMBER = rb"(?:K(.)|M(..)|J(....))"
_PROGRAM = re.compile(
    rb"\x80\x02ctorch\._utils\n_rebuild_tensor_v2\nq.\(\(X\x07\x00\x00\x00storageq.ctorch\n(\w+)Storage\nq."
    rb"X\x01\x00\x00\x000q.X....[\w:]+q."
    + _NUMBER  # size of the storage
    + rb"tq.Q"
    + _NUMBER  # first element of the tensor
    + _NUMBER  # size of the tensor
    + rb"\x85q.K\x01\x85q.\x89ccollections\nOrderedDict\nq.\)Rq.tq.Rq.\.",
    re.DOTALL,
)
"""Pattern of `data.pkl`: a slice is saved with its whole tensor, so there may be a storage offset."""


def tensor_file(values: np.ndarray, name: str) -> bytes:
    """Content of a file with a tensor, int64 `[n]`.

    Args:
        name: name of the folder within the archive; torch uses the file's name without its suffix.
    """
    file = io.BytesIO()
    members = {
        "data.pkl": _program(len(values)),
        "byteorder": b"little",
        "data/0": np.ascontiguousarray(values, "<i8").tobytes(),
        "version": b"3\n",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(f"{name}/{member}", (1980, 0, 0, 0, 0, 0))
            if member == "data/0":
                entry.extra = _align(file.tell() + 30 + len(entry.filename))
            archive.writestr(entry, data)
            entry.extra, entry.external_attr = b"", 0  # in the directory, as torch writes it
    return file.getvalue()


def tensor_file_bytes(count: int, name: str) -> int:
    """Size of such a file, to within the few bytes of its padding."""
    members = (("data.pkl", 150), ("byteorder", 6), ("data/0", 8 * count), ("version", 2))
    return sum(76 + 2 * len(f"{name}/{member}") + size for member, size in members) + 22 + ALIGNMENT


def read_tensor(path: str | Path) -> np.ndarray:
    """Integers of a file, `[n]`, in the file's dtype.

    Raises:
        CorruptStore: it is damaged, or holds something else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.count("/") == 1]
            program = next((name for name in names if name.endswith("/data.pkl")), "")
            found = _PROGRAM.fullmatch(archive.read(program))
            if found is None:
                raise CorruptStore(
                    f"{path}: expected one row of integers, found another object",
                    hint="only files of one tensor are read",
                )
            folder = program.removesuffix("data.pkl")
            if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder") != b"little":
                raise CorruptStore(f"{path}: expected little-endian integers, found others")
            dtype = STORAGES.get(found[1].decode())
            if dtype is None:
                raise CorruptStore(f"{path}: expected integers, found {found[1].decode()}")
            values = np.frombuffer(archive.read(f"{folder}data/0"), dtype)
    except DAMAGE as error:
        if isinstance(error, CorruptStore):
            raise
        said = "not a file of torch" if isinstance(error, KeyError) else str(error)
        raise CorruptStore(f"{path}: {said}", hint="the file was cut off or damaged") from error
    stored, first, count = (_number(found.groups()[at : at + 3]) for at in (1, 4, 7))
    if stored != len(values) or first + count > stored:
        raise CorruptStore(f"{path}: expected {stored:,} integers, found {len(values):,}")
    return values[first : first + count]


def _program(count: int) -> bytes:
    """`data.pkl` of a tensor of `count` integers."""
    number = _packed(count)
    return _HEAD + number + b"tq\x05QK\x00" + number + _TAIL


def _packed(number: int) -> bytes:
    """A number in pickle encoding: in 1, 2 or 4 bytes."""
    if number < 1 << 8:
        return b"K" + struct.pack("<B", number)
    return b"M" + struct.pack("<H", number) if number < 1 << 16 else b"J" + struct.pack("<i", number)


def _number(groups: tuple[bytes | None, ...]) -> int:
    return next(int.from_bytes(group, "little") for group in groups if group is not None)


def _align(place: int) -> bytes:
    """Padding field with which torch aligns data to a multiple of 64 bytes."""
    padding = -(place + 4) % ALIGNMENT
    return struct.pack("<2sH", b"FB", padding) + b"Z" * padding
