"""Access to local and remote files.

A path with `://` goes through fsspec; any other is a local file and is opened directly, because that
is faster and its errors are clearer. Writing is local only: a store is built on a disk.

Durable publishing takes the usual steps: write under another name, `fsync`, rename; then `fsync`
the folder, without which the rename itself may be lost.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from packline.errors import InputError, OutOfSpace, PacklineError


def is_remote(path: str) -> bool:
    """True if a path is an fsspec URI.

    >>> is_remote("s3://bucket/key"), is_remote("data/a.jsonl")
    (True, False)
    """
    return "://" in path


def remote(path: str) -> tuple[Any, str]:
    """fsspec file system of a URI and the path within it.

    Raises:
        InputError: no such protocol, or its package is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        return cast("tuple[Any, str]", url_to_fs(path))
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot open {path}: {error}", hint="pip install 'packline[remote]' brings s3, gcs and http"
        ) from error


class FileFacts(msgspec.Struct, frozen=True):
    """Size and state of a file, to detect changes."""

    size: int
    modified: str
    """Modification time or etag, where available; compared, never published."""


def file_facts(path: str) -> FileFacts:
    """Size and state of a file.

    Raises:
        InputError: the file is missing or unreachable.
    """
    try:
        if not is_remote(path):
            status = os.stat(path)
            refuse_irregular(path, status.st_mode)
            return FileFacts(status.st_size, str(status.st_mtime_ns))
        system, inner = remote(path)
        info = system.info(inner)
        modified = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        return FileFacts(int(info["size"] or 0), str(modified))
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"cannot find {path}", hint="check the path") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def refuse_irregular(path: str, mode: int) -> None:
    """Refuse a path that is not a regular file, by its mode: a pipe, a socket, a device.

    Raises:
        InputError: not a regular file; the message names its kind.

    >>> refuse_irregular("/dev/zero", stat.S_IFCHR)
    Traceback (most recent call last):
    packline.errors.InputError: /dev/zero is a device: expected a regular file
    """
    if stat.S_ISREG(mode):
        return
    names = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    what = names.get(stat.S_IFMT(mode), "a device")
    raise InputError(
        f"{path} is {what}: expected a regular file",
        hint="inputs are read more than once and from several places: write it to a file first",
    )


def refuse_name(path: str) -> None:
    """Refuse a path that is not UTF-8, which provenance and manifest could not contain.

    Raises:
        InputError: the name is not UTF-8; the message shows its bytes.

    >>> refuse_name("caf\\udce9.txt")
    Traceback (most recent call last):
    packline.errors.InputError: a name is not UTF-8: b'caf\\xe9.txt'
    """
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        try:
            name = os.fsencode(path)
        except UnicodeEncodeError:  # not from a file system
            name = path.encode("utf-8", "backslashreplace")
        raise InputError(f"a name is not UTF-8: {name!r}", hint="rename it, or leave it out") from None


def read_start(path: str, size: int) -> tuple[FileFacts, bytes]:
    """Facts of a file and its first `size` bytes, at a third of the cost of `stat` and `open` apart.

    Raises:
        InputError: the file is missing, not a regular file, or not readable by this user.
    """
    if is_remote(path):
        facts = file_facts(path)
        with open_input(path) as file:
            return facts, read_fully(file, size)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # do not wait on a pipe
        try:
            status = os.fstat(descriptor)
            refuse_irregular(path, status.st_mode)
            wanted = min(status.st_size, size) or size  # files in /proc and /sys report a size of 0
            data = os.read(descriptor, wanted)
            while len(data) < wanted and (more := os.read(descriptor, wanted - len(data))):
                data += more
        finally:
            os.close(descriptor)
    except InputError:
        raise
    except OSError as error:
        raise _input_error(path, error) from error
    return FileFacts(status.st_size, str(status.st_mtime_ns)), data


def open_input(path: str) -> BinaryIO:
    """Open for reading bytes: unbuffered if local, since all readers read large blocks.

    Raises:
        InputError: the file is missing, or not readable by this user.
    """
    try:
        if not is_remote(path):
            return cast("BinaryIO", open(path, "rb", buffering=0))
        system, inner = remote(path)
        return cast("BinaryIO", system.open(inner, "rb"))
    except OSError as error:
        raise _input_error(path, error) from error


def _input_error(path: str, error: OSError) -> InputError:
    """Error for an input that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"cannot find {path}", hint="check the path")
    return InputError(f"cannot read {path}: {error.strerror or error}", hint="check its permissions")


def read_fully(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file (one `read` may return fewer than requested)."""
    data = file.read(size)
    if len(data) == size or not data:
        return data
    parts = [data]
    missing = size - len(data)
    while missing and (data := file.read(missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


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
