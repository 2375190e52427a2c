"""gzip and zstd as streams, with the truth about how they end.

Both formats may hold several members or frames one after another, and both are recognised by their
first bytes, not by a name. Libraries' own stream readers end quietly where a zstd file was cut off,
which loses data without a word; here each frame's end is checked.

Cost: one pass in constant memory. What was decompressed before damage is passed on, then `problem`
says what was wrong. gzip may be followed by zero bytes, as `tar` and tapes leave them.
"""

from __future__ import annotations

import zlib
from typing import Any, BinaryIO, Literal

from packline.fingerprint import Hasher
from packline.sources.batch import Reason

Compression = Literal["", "gzip", "zstd"]

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SMALLEST_READ, LARGEST_READ = 4 << 10, 256 << 10
MANY_TIMES = 64
"""An expansion beyond this makes the next read smaller: output for one read stays bounded."""


def detect_compression(head: bytes) -> Compression:
    """Tell by the first four bytes.

    >>> detect_compression(bytes.fromhex("28b52ffd00")), detect_compression(b"text")
    ('zstd', '')
    """
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    # A zstd file may open with a skippable frame: 0x184D2A50 to 5F, little-endian.
    if head.startswith(ZSTD_MAGIC) or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return "zstd"
    return ""


class DecompressedStream:
    """Read decompressed bytes of a file that stands at its beginning.

    Attributes:
        problem: what was wrong where the stream ended too early; known once `read` gave b"".
        raw_bytes: compressed bytes read so far.

    >>> import gzip, io
    >>> DecompressedStream(io.BytesIO(gzip.compress(b"one") + gzip.compress(b"two")), "gzip").read(99)
    b'onetwo'
    """

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self.problem: tuple[Reason, str] | None = None
        self.raw_bytes = 0
        self._file = file
        self._compression = compression
        self._hasher = Hasher()
        self._decompressor: Any = None
        self._pending = b""
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._read_size = SMALLEST_READ
        self._ended = False

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        while self._ready_bytes < size and not self._ended:
            self._advance()
        data = self._ready[0] if len(self._ready) == 1 else b"".join(self._ready)
        self._ready = [data[size:]] if len(data) > size else []
        self._ready_bytes = max(len(data) - size, 0)
        return data[:size] if len(data) > size else data

    def checksum(self) -> str:
        """Of the compressed bytes read so far."""
        return str(self._hasher.hexdigest())

    def _advance(self) -> None:
        if not self._pending:
            self._pending = self._file.read(self._read_size)
            self.raw_bytes += len(self._pending)
            self._hasher.update(self._pending)
        if not self._pending:
            self._ended = True
            if self._decompressor is not None:
                self._fail("truncated_stream", f"the {self._compression} stream ends inside a frame")
            return
        if self._decompressor is None:
            if self._compression == "gzip" and not self._pending.strip(b"\0"):
                self._pending = b""  # zero padding behind the last member
                return
            self._decompressor = self._new_decompressor()
        taken = len(self._pending)
        try:
            data = self._decompressor.decompress(self._pending)
        except Exception as error:  # zlib.error, zstandard.ZstdError: no common base but Exception
            self._fail("corrupt_stream", f"the {self._compression} stream is damaged: {error}")
            return
        self._pending = b""
        if self._decompressor.eof:
            self._pending = self._decompressor.unused_data
            self._decompressor = None
        self._adapt(taken, len(data))
        if data:
            self._ready.append(data)
            self._ready_bytes += len(data)

    def _new_decompressor(self) -> Any:
        if self._compression == "gzip":
            return zlib.decompressobj(wbits=31)
        import zstandard

        # A window beyond the default of 128 MiB is legal (zstd --long=31), and bounded by 2 GiB.
        return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()

    def _adapt(self, taken: int, given: int) -> None:
        if given > taken * MANY_TIMES:
            self._read_size = max(self._read_size // 4, SMALLEST_READ)
        else:
            self._read_size = min(self._read_size * 2, LARGEST_READ)

    def _fail(self, reason: Reason, error: str) -> None:
        self.problem = (reason, f"{error} (after {self.raw_bytes:,} compressed bytes)")
        self._ended = True
