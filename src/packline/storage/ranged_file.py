"""Remote files read by ranges, ahead of their reader.

A reader gives the ranges that it will read, in order (`expect`); they are cut into pieces, each of which is
one request, made by a thread. No request is held open by a slow reader: servers count from its start. Threads
start with the first read, so a process that has read must not fork readers (`clients`).
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

from packline.errors import InputChanged, InputError

PIECE_BYTES = 8 << 20
AHEAD_BYTES = 16 << 20
"""Bytes that a file may hold before another piece is requested."""
FIRST_REQUEST = 64 << 10
THREADS = 32

ReadRange = Callable[[int, int], Any]


class _Piece(NamedTuple):
    start: int
    stop: int
    data: Future[Any]


@lru_cache(1)
def _threads(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")


def new_md5() -> Any:
    """Hasher of a file that is compared with what its server says."""
    import hashlib  # takes 3 ms, and few processes read remote files

    return hashlib.md5(usedforsecurity=False)


class RangedFile(io.RawIOBase):
    """A remote file, read by ranges.

    Args:
        read: returns the bytes of a range; called from several threads.
        md5: MD5 of the file in hexadecimal digits, compared once the file has been read as a whole; "" if
            it is not known.
    """

    def __init__(self, read: ReadRange, size: int, name: str, md5: str = "") -> None:
        self._read, self._size, self.name = read, size, name
        self._at = self._hashed = 0
        self._due: deque[tuple[int, int]] = deque()
        self._pieces: list[_Piece] = []
        self._other = -1, FIRST_REQUEST
        """End and size of the last request outside the plan; they grow while they follow each other."""
        self._md5 = md5
        self._hasher = new_md5()

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Plan to read these ranges, in order, and begin."""
        for start, stop in ranges:
            end = min(stop, self._size)
            self._due += [(at, min(at + PIECE_BYTES, end)) for at in range(start, end, PIECE_BYTES)]
        self._request_ahead()

    def _request_ahead(self) -> None:
        while self._due and sum(piece.stop - piece.start for piece in self._pieces) < AHEAD_BYTES:
            self._request(*self._due.popleft())

    def _request(self, start: int, stop: int) -> _Piece:
        piece = _Piece(start, stop, _threads(os.getpid()).submit(self._read, start, stop))
        self._pieces.append(piece)
        return piece

    def _piece(self, wanted: int) -> _Piece:
        """Piece at the position: one of the plan, or a separate request."""
        for piece in self._pieces:
            if piece.start <= self._at < piece.stop:
                return piece
        self._pieces = [piece for piece in self._pieces if piece.start > self._at]
        while self._due and self._due[0][1] <= self._at:
            self._due.popleft()
        if self._due and self._due[0][0] <= self._at:
            found = self._request(*self._due.popleft())
            self._request_ahead()
            return found
        end, size = self._other
        size = min(size * 4, PIECE_BYTES) if end == self._at else FIRST_REQUEST
        after = min((piece.start for piece in self._pieces), default=self._size)
        end = min(self._at + max(size, wanted), after)
        self._other = end, size
        return self._request(self._at, end)

    def _part(self, wanted: int) -> memoryview:
        """The next bytes, up to `wanted`, at least one; the position moves behind them."""
        piece = self._piece(wanted)
        self._request_ahead()
        data = memoryview(piece.data.result())
        if len(data) != piece.stop - piece.start:
            expected = piece.stop - piece.start
            raise InputChanged(f"{self.name}: expected {expected:,} bytes of a range, found {len(data):,}")
        part = data[self._at - piece.start :][:wanted]
        if self._md5 and self._at <= self._hashed < self._at + len(part):
            self._hasher.update(part[self._hashed - self._at :])
            self._hashed = self._at + len(part)
            if self._hashed == self._size and self._hasher.hexdigest() != self._md5:
                # With some kinds of encryption, an ETag is another checksum.
                self.compare_again(self._size, self._hasher.hexdigest(), new_md5())
        self._at += len(part)
        return part

    def compare_again(self, stop: int, checksum: str, hasher: Any) -> None:
        """Read the first `stop` bytes once more, and compare their checksum with the first reading."""
        for at in range(0, stop, PIECE_BYTES):
            hasher.update(self._read(at, min(at + PIECE_BYTES, stop)))
        if (found := hasher.hexdigest()) != checksum:
            raise InputError(
                f"{self.name} was damaged on its way: its first {stop:,} bytes have the checksum {checksum} "
                f"at one reading and {found} at the next",
                hint="run the same command again: finished work is kept; https protects from such damage",
            )

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, completely except at the end of the file."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, fewer only at the end of the file."""
        left = max(self._size - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        parts: list[memoryview] = []
        while wanted:
            parts.append(self._part(wanted))
            wanted -= len(parts[-1])
        return b"".join(parts)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Forget all pieces; requests on their way end unread."""
        for piece in self._pieces:
            piece.data.cancel()
        self._pieces, self._due = [], deque()
        super().close()
