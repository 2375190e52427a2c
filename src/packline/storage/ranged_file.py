"""Remote files read by ranges, ahead of their reader.

    plan      [piece][piece][piece][piece]...     ranges that will be read, cut into pieces
    read      done   here   arrived  on its way   each piece is one request, and whole in memory before use

A reader gives the ranges that it will read, in order (`expect`); pieces are requested ahead by threads, as
far as a budget of bytes allows that all files of a process share. A read elsewhere is a separate request. A
request is never held open by a slow reader: servers and clients count their deadlines from its start.

Threads start with the first read, so a process that has read must not fork readers (see `storage.clients`).
"""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from packline.errors import InputChanged

LARGEST_PIECE = 16 << 20
SMALLEST_PIECE = 1 << 20
PIECES = 3
"""Number of pieces that fit into the budget of a process."""
NODE_BYTES = 1 << 30
"""Maximum bytes that the workers of a machine hold ahead of their readers."""
FIRST_REQUEST = 64 << 10
THREADS = 32
"""Maximum number of requests of a process at a time; with pieces of full size, the budget allows fewer."""
PLANNING_REQUESTS = 128
"""Maximum number of files that are looked at together while units are planned."""

T = TypeVar("T")
U = TypeVar("U")
ReadRange = Callable[[int, int], Any]
"""Returns the bytes of a range, as any buffer."""


class _Share:
    """Bytes that this process may hold ahead, its threads, and the bytes held."""

    def __init__(self) -> None:
        self.budget = PIECES * LARGEST_PIECE
        self._held = 0
        self._lock = threading.Lock()
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    @property
    def piece(self) -> int:
        return min(max(self.budget // PIECES, SMALLEST_PIECE), LARGEST_PIECE)

    def take(self, size: int, *, anyway: bool = False) -> bool:
        with self._lock:
            if not anyway and self._held + size > max(self.budget, size if not self._held else 0):
                return False
            self._held += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def submit(self, read: ReadRange, start: int, stop: int) -> Future[Any]:
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(THREADS, thread_name_prefix="read-ahead")
        return self._pool[1].submit(read, start, stop)


_SHARE = _Share()


def share_read_ahead(workers: int, memory: int) -> None:
    """Divide the budget for reading ahead among the workers of this machine; call it before they are forked.

    Args:
        workers: number of processes that read.
        memory: bytes of memory that they may use together.
    """
    node = min(NODE_BYTES, memory // 8)
    _SHARE.budget = max(min(node // max(workers, 1), PIECES * LARGEST_PIECE), SMALLEST_PIECE)


class _Piece(NamedTuple):
    start: int
    stop: int
    data: Future[Any]
    planned: bool


class RangedFile(io.RawIOBase):
    """A remote file, read by ranges.

    Args:
        read: returns the bytes of a range; called from several threads.
        size: size of the file in bytes.
        name: for messages.

    >>> data = bytes(range(100))
    >>> file = RangedFile(lambda start, stop: data[start:stop], 100, "x")
    >>> file.expect([(10, 30)])
    >>> file.seek(12), file.read(3)
    (12, b'\\x0c\\r\\x0e')
    """

    def __init__(self, read: ReadRange, size: int, name: str) -> None:
        self._read, self._size, self.name = read, size, name
        self._at = 0
        self._planned: deque[tuple[int, int]] = deque()
        self._pieces: list[_Piece] = []
        self._request = FIRST_REQUEST
        """Size of the next request outside the plan; grows while they follow each other."""
        self._end = -1
        self._last: _Piece | None = None

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Plan to read these ranges, in order, and begin."""
        self._planned += [(start, min(stop, self._size)) for start, stop in ranges if start < stop]
        self._top_up()

    def _next_piece(self) -> tuple[int, int] | None:
        while self._planned and self._planned[0][0] >= self._planned[0][1]:
            self._planned.popleft()
        if not self._planned:
            return None
        start, stop = self._planned[0]
        return start, min(stop, start + _SHARE.piece)

    def _top_up(self, *, anyway: bool = False) -> None:
        """Request pieces of the plan while the budget allows it.

        Args:
            anyway: request one, whatever the budget.
        """
        while (piece := self._next_piece()) is not None:
            start, stop = piece
            if not _SHARE.take(stop - start, anyway=anyway):
                return
            anyway = False
            self._planned[0] = stop, self._planned[0][1]
            self._pieces.append(_Piece(start, stop, _SHARE.submit(self._read, start, stop), True))

    def _drop(self, piece: _Piece) -> None:
        self._pieces.remove(piece)
        piece.data.cancel()
        _SHARE.give(piece.stop - piece.start)

    def _held(self) -> _Piece | None:
        return next((piece for piece in self._pieces if piece.start <= self._at < piece.stop), None)

    def _piece(self, wanted: int) -> _Piece:
        """Piece at the position: one of the plan, or a separate request."""
        if (found := self._held()) is not None:
            return found
        # A piece is kept until the reader is behind it, since a reader may go back a little.
        for piece in [one for one in self._pieces if one is self._last or not one.planned]:
            self._drop(piece)
        planned = self._next_piece()
        if planned is not None and planned[0] <= self._at < planned[1]:
            self._top_up(anyway=True)
            found = self._held()
            assert found is not None
            return found
        self._top_up()
        self._request = min(self._request * 4, _SHARE.piece) if self._at == self._end else FIRST_REQUEST
        after = min((one.start for one in self._pieces if one.start > self._at), default=self._size)
        self._end = min(self._at + max(self._request, wanted), after)
        _SHARE.take(self._end - self._at, anyway=True)
        data = _SHARE.submit(self._read, self._at, self._end)
        self._pieces.append(_Piece(self._at, self._end, data, False))
        return self._pieces[-1]

    def _part(self, wanted: int) -> memoryview:
        """The next bytes, up to `wanted`, at least one; the position moves behind them."""
        piece = self._last = self._piece(wanted)
        data = memoryview(piece.data.result())
        if len(data) != piece.stop - piece.start:
            expected = piece.stop - piece.start
            raise InputChanged(f"{self.name}: expected {expected:,} bytes of a range, found {len(data):,}")
        part = data[self._at - piece.start :][:wanted]
        self._at += len(part)
        return part

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, completely except at the end of the file."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._at < self._size:
            part = self._part(len(view) - filled)
            view[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, fewer only at the end of the file."""
        left = max(self._size - self._at, 0)
        wanted = left if size is None or size < 0 else min(size, left)
        if not wanted:
            return b""
        part = self._part(wanted)
        if len(part) == wanted:
            return bytes(part)
        data = bytearray(wanted)
        data[: len(part)] = part
        self.readinto(memoryview(data)[len(part) :])
        return bytes(data)

    def readall(self) -> bytes:
        """All bytes from here."""
        return self.read()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; nothing is read."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        """Position."""
        return self._at

    def size(self) -> int:
        """Size in bytes, for Arrow."""
        return self._size

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Forget all pieces; requests on their way end unread."""
        for piece in list(self._pieces):
            self._drop(piece)
        self._planned.clear()
        super().close()
