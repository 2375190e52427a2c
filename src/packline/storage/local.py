"""A local folder as a `Storage`, durable writing into folders, and sharing of bytes between places.

A file is written and synced under another name, then linked to its final one, which fails if that exists;
then its folder is synced, without which the new name itself may be lost. A shared file may be the same file
(hard link), so neither name may be opened for writing afterwards; files of stores never are.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from packline.errors import OutOfSpace, PacklineError
from packline.fingerprint import Hasher, hash_bytes
from packline.storage.results import FileFacts, Storage, other_content

MANY = 16
"""Largest number of files that are synced one by one."""
UNFINISHED = ".tmp"
"""Ending of the name of a file that is being written; its name begins with a dot."""


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
    """Clearer error for an operating system error with an unhelpful message; None for others."""
    where = f" ({error.filename})" if error.filename else ""
    again = "run the same command again: finished work is kept"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return PacklineError(
            f"too many open files{where}: the limit of this process or of the machine is reached",
            hint="raise the limit and run the same command again: ulimit -n 1024",
        )
    if error.errno == errno.EIO:
        what = f"a disk or file system cannot be read or written{where}: {error.strerror}"
        return PacklineError(what, hint=f"look at the system's log; once it works, {again}")
    known = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS)
    if error.filename and error.errno in known:
        what = f"cannot read or write {error.filename}: {error.strerror}"
        return PacklineError(what, hint="check the path and its permissions")
    return None


def user_cache() -> Path:
    """Folder of packline in the user's cache, `$XDG_CACHE_HOME` or `~/.cache`; it may not exist yet."""
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


def publish_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically: complete or not at all."""
    with disk_errors(path.parent), _waiting_file(path, data) as waiting:
        os.replace(waiting, path)
        sync_folder(path.parent)


@contextmanager
def _waiting_file(path: Path, data: bytes) -> Iterator[Path]:
    """The bytes, durable under a name of the same folder that no other process has; removed at the end."""
    waiting = path.with_name(f".{path.name}.{os.urandom(4).hex()}{UNFINISHED}")
    try:
        with open(waiting, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield waiting
    finally:
        waiting.unlink(missing_ok=True)


class LocalFolder(Storage):
    """A folder on a local disk, as a `Storage`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place, self.folder = str(path), path

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with open(self.path / name, "rb", buffering=0) as file:
            if start:
                file.seek(start)
            return file.read() if stop is None else file.read(max(stop - start, 0))

    def facts(self, name: str) -> FileFacts | None:
        try:
            found = os.stat(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        etag = f"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"
        return FileFacts(name, found.st_size, etag)

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        try:
            entries = list(os.scandir(self.path / folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # As object stores order keys, in which a folder's name is followed by a slash.
        for key, entry in sorted((entry.name + "/" * entry.is_dir(), entry) for entry in entries):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if key.endswith("/"):
                yield from self.walk(name)
                continue
            unfinished = key.startswith(".") and key.endswith(UNFINISHED)
            # Another process may have moved it by now.
            if not unfinished and entry.is_file() and (facts := self.facts(name)) is not None:
                yield facts

    def list(self, folder: str) -> list[str]:
        try:
            entries = list(os.scandir(self.path / folder))
        except FileNotFoundError:
            return []
        prefix = f"{folder}/" if folder else ""
        return sorted(
            prefix + entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")
        )

    def put_new(self, name: str, data: bytes) -> bool:
        path = self.path / name
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            with disk_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                if _create(path, data):
                    sync_folder(path.parent)
                    return True
            found = path.read_bytes()
        if found != data:
            raise other_content(path, hash_bytes(data), hash_bytes(found))
        return False

    def put_files(self, files: Mapping[str, Path]) -> None:
        """See `Storage.put_files`; the files get another name, so they must be on the same disk."""
        with disk_errors(self.path):
            if len(files) <= MANY or not sync_file_system(self.path):
                for path in files.values():
                    sync_file(path)
            folders = {(self.path / name).parent for name in files} | {self.path}
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            for name, path in files.items():
                if not _link_new(path, self.path / name):
                    _refuse_other_content(path, self.path / name)
            for folder in sorted(folders, reverse=True):
                sync_folder(folder)
            for path in files.values():
                path.unlink(missing_ok=True)

    def delete(self, names: Iterable[str]) -> None:
        folders = set()
        for name in names:
            path = self.path / name
            with suppress(FileNotFoundError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            sync_folder(folder)


def _create(path: Path, data: bytes) -> bool:
    """Create a file of durable bytes; False if the name exists. A crash leaves no other name behind."""
    try:
        return _create_unnamed(path, data)
    except AttributeError:
        pass  # not Linux
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EINVAL, *NO_LINKS):
            raise
    with _waiting_file(path, data) as waiting:
        return _link_new(waiting, path)


def _create_unnamed(path: Path, data: bytes) -> bool:
    """Write a file without a name, then name it."""
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        try:  # with a folder's descriptor, which is not used, for else the link itself would be linked
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except FileExistsError:
            return False
    return True


NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""Errors of a file system without hard links."""


def _link_new(source: Path, target: Path) -> bool:
    """Give a file a second name; False if that exists."""
    try:
        os.link(source, target)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if target.exists():  # a file system without hard links: all that it can do
            return False
        os.rename(source, target)
        return True


def _refuse_other_content(source: Path, target: Path) -> None:
    """Refuse a file that exists with other bytes."""
    if os.path.samefile(source, target):
        return
    expected, found = hash_file(source), hash_file(target)
    if expected != found:
        raise other_content(target, expected, found)


def hash_file(path: Path) -> str:
    """Checksum of a file."""
    import hashlib  # takes 3 ms

    with open(path, "rb", buffering=0) as file:
        return str(hashlib.file_digest(file, Hasher).hexdigest())


Link = Literal["auto", "hard", "reflink", "copy"]
"""Way to share bytes: `auto` tries a hard link, then a reflink, then a copy."""

FICLONE = 0x40049409
COPY_BYTES = 8 << 20
_CANNOT = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EMLINK}
"""Errors for a link that the file system does not support between two places."""


def share_file(path: Path, target: Path, link: Link = "auto") -> str:
    """Give the bytes of a file a second place."""
    source = path.resolve()
    ways = (("hard", os.link, "linked", "hard links"), ("reflink", _reflink, "reflinked", "reflinks"))
    for way, share, done, what in ways:
        if link in ("auto", way):
            try:
                share(source, target)
                return done
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                if link == way:
                    raise PacklineError(
                        f"cannot share {path} with {target.parent}: no {what} there: {error.strerror}",
                        hint="--link auto copies where it must",
                    ) from error
    copy_file(source, target)
    return "copied"


def _reflink(source: Path, target: Path) -> None:
    """Let a file share another file's blocks until either is changed."""
    import fcntl
    import sys

    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no reflinks here")
    with open(source, "rb") as reading, open(target, "xb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())
        except OSError:
            target.unlink()
            raise


def copy_file(source: Path, target: Path) -> None:
    """Copy into a new file."""
    with open(source, "rb", buffering=0) as reading, open(target, "xb") as writing:
        shutil.copyfileobj(reading, writing, COPY_BYTES)
