"""A bounded cache of pieces of remote files, in a folder that any number of processes share, or in memory.

    CACHE/pieces-1/3f/3f9c21d07a54be18...          a whole file, named by the checksum of its content
    CACHE/pieces-1/3f/3f9c21d07a54be18...-12-64    piece 12 of it, of 64 KiB
    CACHE/pieces-1/usage                           bytes of all pieces; also the lock

A piece is written under another name and renamed, so it is there whole or not at all, and eviction unlinks
it, so a map of it stays valid. The time of modification of a piece is when it was last used, or, of one that
was fetched ahead, when it will be. Eviction takes the pieces of the past first, the longest unused one before
all others, then those of the future, the farthest first. Only files with names of pieces are ever deleted.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from packline.errors import PacklineError, StoreError
from packline.storage.local import disk_errors

PIECES = "pieces-1"
USAGE = "usage"
PIECE = re.compile(r"[0-9a-f]{32}(-\d+){0,2}")
UNFINISHED = re.compile(r"\.[0-9a-f]{16}(?:-(\d+))?\.tmp")
"""Name of a piece that is being written, with the bytes that are reserved for it."""
ROOM = 0.9
"""Share of the limit that eviction leaves in use, so that it is not needed for every piece."""
ABANDONED = 3600
"""Seconds after which a file under another name is that of a process that ended."""

Part = bytes | memoryview
Check = Callable[[np.ndarray], PacklineError | None]


class CacheFolder:
    """A cache in a folder.

    Keys are `CHECKSUM` for a whole file, `CHECKSUM-NUMBER-KIB` for a piece of it.

    Args:
        folder: any folder; it may hold other files, and several processes may use it at once.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._pieces = folder / PIECES
        try:
            self._pieces.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the cache folder {folder}: {error.strerror}",
                hint="cache= or $PACKLINE_CACHE names another; cache=False needs none",
            ) from error

    def _path(self, key: str) -> Path:
        return self._pieces / key[:2] / key

    def find(self, key: str) -> np.ndarray | None:
        """A piece, uint8 `[N]`, valid as long as the array exists; None if it is absent."""
        path = self._path(key)
        try:
            found = _map(path)
            os.utime(path)
        except FileNotFoundError:
            return None
        return found

    def add(
        self, key: str, size: int, parts: Iterable[Part], due: float = 0.0, check: Check | None = None
    ) -> np.ndarray:
        """Keep a piece.

        Args:
            parts: the bytes, in order.
            due: time at which it will be used, in seconds since the epoch; 0: now.
        """
        path = self._path(key)
        waiting = path.with_name(f".{secrets.token_hex(8)}-{size}.tmp")
        try:
            with disk_errors(self.folder):
                path.parent.mkdir(exist_ok=True)
                with open(self._reserve(size, waiting), "wb") as file:
                    file.writelines(parts)
                found = _map(waiting)
                if check is not None and (damage := check(found)) is not None:
                    raise damage
                if due > time.time():
                    os.utime(waiting, (due, due))
                os.rename(waiting, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(waiting)
            raise
        return found

    def expect(self, key: str, due: float) -> bool:
        """Record when a piece will be used; False if it is absent."""
        try:
            os.utime(self._path(key), (due, due))
        except FileNotFoundError:
            return False
        return True

    def drop(self, key: str) -> None:
        """Delete a piece, if it is there."""
        self._path(key).unlink(missing_ok=True)

    def path(self, key: str) -> Path | None:
        """File of a piece, for readers that need one; None if it is absent.

        Another process may delete it at any time.
        """
        path = self._path(key)
        return path if path.exists() else None

    def _reserve(self, size: int, waiting: Path) -> int:
        """Count the bytes of a new piece, and make room for them; return a descriptor of its new file."""
        with self._locked() as file:
            used = int(os.pread(file, 32, 0).strip() or b"-1")
            if used < 0 or used + size > self.most:
                used = self._evict(int(self.most * ROOM) - size)
            os.pwrite(file, b"%-31d\n" % (used + size), 0)
            return os.open(waiting, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._pieces / USAGE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _evict(self, most: int) -> int:
        """Delete pieces until the others have at most these bytes; return their bytes."""
        pieces: list[tuple[float, int, str]] = []
        used = 0
        for folder in os.scandir(self._pieces):
            for entry in os.scandir(folder.path) if len(folder.name) == 2 else ():
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if PIECE.fullmatch(entry.name):
                    pieces.append((status.st_mtime, status.st_size, entry.path))
                    used += status.st_size
                elif (unfinished := UNFINISHED.fullmatch(entry.name)) is None:
                    continue
                elif status.st_mtime < time.time() - ABANDONED:
                    _unlink(entry.path)
                else:
                    used += int(unfinished[1] or 0)
        now = time.time()
        for _, size, path in sorted(pieces, key=lambda one: (one[0] > now, -abs(one[0] - now))):
            if used <= most:
                break
            _unlink(path)
            used -= size
        return used


class TemporaryCache(CacheFolder):
    """A cache in a new folder, which is deleted with it."""

    def __init__(self, most: int) -> None:
        folder = tempfile.mkdtemp(prefix="packline-")
        self._remove = weakref.finalize(self, _remove, folder, os.getpid())
        super().__init__(Path(folder), most)


class CacheMemory:
    """A cache in the memory of one process, for where there is no folder.

    The piece that was used or expected the longest ago is let go first. No order of future use is kept: what
    is fetched ahead comes in that order, and sorting thousands of pieces would cost more than fetching them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._pieces: dict[str, np.ndarray] = {}
        """Pieces, the longest unused one first."""
        self._used = 0
        self._lock, self._process = threading.Lock(), os.getpid()

    def _locked(self) -> threading.Lock:
        if self._process != os.getpid():  # a thread that the child does not have may hold the parent's
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock

    def find(self, key: str) -> np.ndarray | None:
        with self._locked():
            if (found := self._pieces.pop(key, None)) is not None:
                self._pieces[key] = found
        return found

    def add(
        self, key: str, size: int, parts: Iterable[Part], due: float = 0.0, check: Check | None = None
    ) -> np.ndarray:
        found = np.frombuffer(b"".join(parts), np.uint8)
        if check is not None and (damage := check(found)) is not None:
            raise damage
        self.drop(key)
        with self._locked():
            self._pieces[key] = found
            self._used += len(found)
            while self._used > self.most and len(self._pieces) > 1:
                self._used -= len(self._pieces.pop(next(iter(self._pieces))))
        return found

    def expect(self, key: str, due: float) -> bool:
        return self.find(key) is not None

    def drop(self, key: str) -> None:
        with self._locked():
            if (found := self._pieces.pop(key, None)) is not None:
                self._used -= len(found)


Cache = CacheFolder | CacheMemory


def _map(path: Path) -> np.ndarray:
    """Map with Arrow, which closes the descriptor at once; a file without bytes cannot be mapped."""
    import pyarrow as pa

    if not path.stat().st_size:
        return np.empty(0, np.uint8)
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), np.uint8)


def _remove(folder: str, owner: int) -> None:
    """Delete a folder, unless this is a child of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
