"""Storage of results: the protocol, and durable writing into a local folder.

A small file is written under another name, synced and renamed; then its folder is synced, without which
the rename itself may be lost. Large files are written where they are, then synced and renamed the same way.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from packline.errors import OutOfSpace, PacklineError, StoreError
from packline.fingerprint import hash_bytes

MANY = 16
"""Largest number of files that are synced one by one."""


class Storage(Protocol):
    """Files by name; names are relative paths with `/`.

    Bytes are a function of inputs and settings alone, so a file is written once, under its final name, and
    never changed: `put_new` of the same bytes is a success, of others an error. So a unit that runs twice
    does no harm. An object store does this by puts that only create (`If-None-Match: *`), compared after a
    conflict; a local folder by writing under another name, syncing and renaming.

    To add a storage, implement this protocol, and pass it to the folder of a job (`jobs.folder`).
    """

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes `start` to `stop` of a file; to its end by default.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Create a small file, complete or not at all; durable on return.

        Returns:
            False if it existed with the same bytes.

        Raises:
            StoreError: it exists with other bytes.
            OutOfSpace: the disk is full.
        """

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Take over finished local files, each under its name; all durable on return."""

    def list(self, folder: str) -> Sequence[str]:
        """Names of the files directly in a folder, sorted; unfinished ones are left out."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, those that exist."""

    def sync(self, folder: str = "") -> None:
        """Wait until a folder's entries are durable."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk into an error that explains how to resume."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OutOfSpace(
                f"the disk of {folder} is full",
                hint="make room and run the same command again: finished units are kept",
            ) from error
        raise


def plain_error(error: OSError) -> PacklineError | None:
    """Clearer error for an operating system error with an unhelpful message; None for others.

    >>> plain_error(OSError(errno.EMFILE, "Too many open files")).hint
    'raise the limit and run the same command again: ulimit -n 1024'
    """
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return PacklineError(
            f"too many open files{where}: the limit of this process or of the machine is reached",
            hint="raise the limit and run the same command again: ulimit -n 1024",
        )
    if error.errno == errno.EIO:
        return PacklineError(
            f"a disk or file system cannot be read or written{where}: {error.strerror}",
            hint="look at the system's log; once it works, run the same command again: finished work is kept",
        )
    return None


def user_cache() -> Path:
    """Folder of packline in the user's cache, `$XDG_CACHE_HOME` or `~/.cache`; it may not exist yet.

    Raises:
        RuntimeError: the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packline"


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    sync_file(folder)


def sync_file_system(folder: Path) -> bool:
    """Sync the whole file system of a folder; False if the system has no such call."""
    import ctypes

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return int(ctypes.CDLL(None).syncfs(descriptor)) == 0
    except (OSError, AttributeError):
        return False
    finally:
        os.close(descriptor)


def publish_folder(waiting: Path, path: Path) -> None:
    """Publish a folder, whose files are already on the disk, under its final name in one step.

    Args:
        waiting: the finished folder, in the same parent folder as `path`.
        path: final name: absent, or an empty folder.

    Raises:
        FileExistsError: something is at `path`.
    """
    with disk_errors(path.parent):
        sync_folder(waiting)
        try:
            os.rename(waiting, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(error.errno, os.strerror(error.errno), str(path)) from error
        sync_folder(path.parent)


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically: complete or not at all."""
    waiting = path.with_name(f".{path.name}.tmp")
    with disk_errors(path.parent):
        with open(waiting, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(waiting, path)
        sync_folder(path.parent)


class LocalFolder:
    """A folder on a local disk, as a `Storage`.

    >>> import tempfile
    >>> folder = LocalFolder(Path(tempfile.mkdtemp()))
    >>> folder.put_new("a", b"one"), folder.put_new("a", b"one"), folder.read("a", 1), folder.list("")
    (True, False, b'ne', ['a'])
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See `Storage.read`."""
        with open(self.path / name, "rb", buffering=0) as file:
            if start:
                file.seek(start)
            return file.read() if stop is None else file.read(max(stop - start, 0))

    def put_new(self, name: str, data: bytes) -> bool:
        """See `Storage.put_new`."""
        path = self.path / name
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            publish_bytes(path, data)
            return True
        if found != data:
            raise StoreError(
                f"{path} exists with another content: expected {hash_bytes(data)}, found {hash_bytes(found)}",
                hint="something else writes into this folder, or the memory of this machine is damaged",
            )
        return False

    def put_files(self, files: Mapping[str, Path]) -> None:
        """See `Storage.put_files`; the files are renamed, so they must be on the same disk."""
        with disk_errors(self.path):
            if len(files) <= MANY or not sync_file_system(self.path):
                for path in files.values():
                    sync_file(path)
            folders = {(self.path / name).parent for name in files} | {self.path}
            for folder in folders:
                folder.mkdir(exist_ok=True)
            for name, path in files.items():
                os.replace(path, self.path / name)
            for folder in sorted(folders, reverse=True):
                sync_folder(folder)

    def list(self, folder: str) -> list[str]:
        """See `Storage.list`."""
        try:
            entries = list(os.scandir(self.path / folder))
        except FileNotFoundError:
            return []
        prefix = f"{folder}/" if folder else ""
        return sorted(
            prefix + entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")
        )

    def delete(self, names: Iterable[str]) -> None:
        """See `Storage.delete`."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def sync(self, folder: str = "") -> None:
        """See `Storage.sync`."""
        sync_folder(self.path / folder)
