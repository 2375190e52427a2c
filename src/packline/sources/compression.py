"""gzip and zstd streams, recognised by their first bytes, with reliable detection of truncation and damage.

The libraries' own readers stop silently where a zstd file is truncated; here the end of each frame is
checked. Data before damage is passed on, for which the damaged frame is read a second time. gzip may be
followed by zero bytes, as `tar` leaves them. It is read by ISA-L, at twice the rate of zlib; what that cannot
read is read again by zlib.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from packline.errors import InputError
from packline.fingerprint import Hasher
from packline.storage.ranged_file import RangedFile

if TYPE_CHECKING:
    from packline.sources.batch import Reason  # it imports NumPy and Arrow, which manifests do not need

Compression = Literal["", "gzip", "zstd"]

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
READ_BYTES = 256 << 10
SMALLEST_STEP, LARGEST_STEP = 64, 8 << 10
"""Compressed bytes decompressed per step.

zstd turns 4 bytes into 128 KiB if all bytes are equal, so a large step could produce gigabytes; larger steps
are no faster.
"""
LARGEST_OUTPUT = 4 << 20
"""Output size of a step, in bytes, above which the next step is smaller."""


def detect_compression(head: bytes) -> Compression:
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    # A zstd file may open with a skippable frame: 0x184D2A50 to 5F, little-endian.
    if head.startswith(ZSTD_MAGIC) or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return "zstd"
    return ""


class DecompressedStream:
    """Decompressed bytes of a file, which must be at its beginning; of one without compression, its bytes.

    Args:
        hasher: updated with the bytes of the file.

    Attributes:
        problem: the error if the stream ended too early; known once `read` has returned b"".
        raw_bytes: compressed bytes read so far.
    """

    def __init__(self, file: BinaryIO, compression: Compression, hasher: Any = None) -> None:
        self.problem: tuple[Reason, str] | None = None
        self.raw_bytes = 0
        self._file = file
        self._compression = compression
        self._hasher = hasher or Hasher()
        self._decompressor: Any = None
        self._pending = memoryview(b"")
        self._ready = memoryview(b"")
        self._step = SMALLEST_STEP
        self._ended = False
        self._frame_start = self._frame_given = self._skip = 0
        self._bytewise = self._exact = False

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        parts = []
        while size and len(data := self._next(size)):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def readinto(self, view: memoryview) -> int:
        """Read the next bytes into a view; return their number, 0 only at the end."""
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> memoryview:
        while not len(self._ready) and not self._ended:
            self._advance()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def checksum(self) -> str:
        """Checksum of the bytes of the file that were read so far."""
        return str(self._hasher.hexdigest())

    def _advance(self) -> None:
        if not self._pending:
            data = self._file.read(READ_BYTES)
            self.raw_bytes += len(data)
            self._hasher.update(data)
            self._pending = memoryview(data)
        if not self._pending:
            self._ended = True
            if self._decompressor is not None:
                self._fail("truncated_stream", f"the {self._compression} stream ends inside a frame")
            return
        if not self._compression:
            self._ready, self._pending = self._pending, memoryview(b"")
            return
        if self._decompressor is None:
            if self._compression == "gzip" and self._pending[0] == 0:  # padding behind a member
                self._pending = self._pending[len(self._pending) - len(bytes(self._pending).lstrip(b"\0")) :]
                return
            self._decompressor = self._new_decompressor()
            self._frame_start, self._frame_given = self.raw_bytes - len(self._pending), 0
        taken = self._pending[: 1 if self._bytewise else self._step]
        try:
            data = self._decompressor.decompress(taken)
        except Exception as error:  # zlib.error, zstandard.ZstdError: no common base but Exception
            self._exact = True
            if not self._bytewise and self._rewind():
                self._bytewise = True
                return
            self._fail("corrupt_stream", f"the {self._compression} stream is damaged: {error}")
            return
        unused = 0
        if self._decompressor.eof:
            unused = len(self._decompressor.unused_data)
            self._decompressor = None
            self._bytewise = False
        self._pending = self._pending[len(taken) - unused :]
        data, self._skip = data[self._skip :], max(self._skip - len(data), 0)
        self._frame_given += len(data)
        self._ready = memoryview(data)
        if len(data) > LARGEST_OUTPUT:
            self._step = max(self._step // 4, SMALLEST_STEP)
        else:
            self._step = min(self._step * 2, LARGEST_STEP)

    def _rewind(self) -> bool:
        """Advance a new decompressor to the start of the failed step; False if that is not possible.

        It need not have given as many bytes by then as the one before it: more are passed on, and where there
        are fewer, as many are left out later.
        """
        left = self.raw_bytes - len(self._pending) - self._frame_start
        given, more = 0, bytearray()
        try:
            self._file.seek(self._frame_start)
            decompressor = self._new_decompressor()
            while left and (data := self._file.read(min(left, self._step))):
                left -= len(data)
                fresh = decompressor.decompress(data)
                more += fresh[max(self._frame_given - given, 0) :]
                given += len(fresh)
            self._file.seek(self.raw_bytes)
        except InputError:  # it cannot be read, which says nothing of its content
            raise
        except Exception:  # a file that cannot seek, or that has changed
            return False
        self._decompressor = decompressor
        self._ready, self._skip = memoryview(more), max(self._frame_given - given, 0)
        self._frame_given += len(more)
        return not left

    def _new_decompressor(self) -> Any:
        if self._compression == "gzip":
            if self._exact:
                return zlib.decompressobj(wbits=31)
            from isal import isal_zlib

            return isal_zlib.decompressobj(wbits=31)
        import zstandard

        # A window beyond the default of 128 MiB is legal (zstd --long=31), and bounded by 2 GiB.
        return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()

    def _fail(self, reason: Reason, error: str) -> None:
        if isinstance(self._file, RangedFile):  # damage of the file, or of this reading?
            self._file.compare_again(self.raw_bytes, self.checksum(), Hasher())
        self.problem = (reason, f"{error} (after {self.raw_bytes - len(self._pending):,} compressed bytes)")
        self._ended = True
