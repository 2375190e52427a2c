"""Zip archives with uncompressed members, written from front to back.

    local header | name | extra | data      once per member
    central directory: all names again, with offsets and CRC-32
    end record (with 64-bit fields before it if an offset or a count does not fit into 32 bits)

`.npz` batches and `.pt` files are such archives. The standard library seeks back in a file to fill in sizes
and checksums; here they are known before a byte is written, so a file can be hashed while it is written.
Dates are fixed, so equal members give equal bytes.

Cost: a CRC-32 of the data (3 GB/s) and the write itself; nothing is copied. Does not compress or read.
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

FIRST_DAY = 0x0021
"""1 January 1980 in MS-DOS format, the first date of zip."""
LIMIT = 2**31 - 1
"""Largest size or offset that is not written to a 64-bit field."""
DAMAGE = (
    OSError, ValueError, KeyError, EOFError, NotImplementedError, RuntimeError, OverflowError, SyntaxError,
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip
"""Exceptions of the standard library and NumPy for a damaged archive, or an array in one."""

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_FULL = 0xFFFFFFFF


class Sink(Protocol):
    """Destination of the bytes."""

    def write(self, data: Any, /) -> Any:
        """Append bytes."""


class StoredZip:
    """An archive in progress.

    Args:
        sink: receives all bytes, in order.
        large: write 64-bit sizes in local headers, as NumPy does.
        date: date of all members.
        permissions: Unix permissions of all members.

    >>> import io, zipfile
    >>> file = io.BytesIO()
    >>> archive = StoredZip(file)
    >>> archive.add("a.txt", [b"hello", b" world"])
    >>> archive.close()
    >>> zipfile.ZipFile(file).read("a.txt")
    b'hello world'
    """

    def __init__(
        self, sink: Sink, *, large: bool = False, date: int = FIRST_DAY, permissions: int = 0o600
    ) -> None:
        self._sink, self._large, self._date, self._permissions = sink, large, date, permissions
        self._size = 0
        self._central: list[bytes] = []

    def add(self, name: str, pieces: Sequence[Any], *, extra: Callable[[int], bytes] | None = None) -> None:
        """Write a member.

        Args:
            name: name within the archive; ASCII.
            pieces: its bytes, or arrays whose bytes they are, one after another.
            extra: returns an extra field for the local header, given the offset of the data without one.
        """
        views = [memoryview(piece).cast("B") for piece in pieces if len(piece)]
        size, crc = sum(map(len, views)), 0
        for view in views:
            crc = zlib.crc32(view, crc)
        encoded, offset = name.encode("ascii"), self._size
        large = self._large or size > LIMIT
        more = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        if extra is not None:
            more += extra(offset + _LOCAL.size + len(encoded) + len(more))
        version, short = (45, _FULL) if large else (20, size)
        header = _LOCAL.pack(
            b"PK\3\4", version, 0, 0, 0, self._date, crc, short, short, len(encoded), len(more)
        )
        self._write(header + encoded + more)
        for view in views:
            self._write(view)
        self._central.append(self._entry(encoded, crc, size, offset, version))

    def close(self) -> None:
        """Write the directory. The sink stays open."""
        offset, count = self._size, len(self._central)
        self._write(b"".join(self._central))
        size = self._size - offset
        if offset > LIMIT or size > LIMIT or count > 0xFFFF:
            end = self._size
            self._write(_END64.pack(b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset))
            self._write(_LOCATOR.pack(b"PK\6\7", 0, end, 1))
            count, size, offset = min(count, 0xFFFF), min(size, _FULL), min(offset, _FULL)
        self._write(_END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0))

    def _entry(self, name: bytes, crc: int, size: int, offset: int, version: int) -> bytes:
        wide = []
        if size > LIMIT:
            wide += [size, size]
        if offset > LIMIT:
            wide.append(offset)
        extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        version = 45 if wide else version
        short = _FULL if size > LIMIT else size
        place = _FULL if offset > LIMIT else offset
        unix = 3
        fields = (version, unix, version, 0, 0, 0, 0, self._date, crc, short, short, len(name), len(extra))
        return _CENTRAL.pack(b"PK\1\2", *fields, 0, 0, 0, self._permissions << 16, place) + name + extra

    def _write(self, data: Any) -> None:
        self._sink.write(data)
        self._size += len(data)


def stored_bytes(members: Sequence[tuple[str, int]], *, large: bool = False) -> int:
    """Bytes of an archive with members of these names and sizes, all small.

    >>> stored_bytes([("a.txt", 11)])
    119
    """
    each = _LOCAL.size + _CENTRAL.size + (20 if large else 0)
    return _END.size + sum(each + 2 * len(name) + size for name, size in members)
