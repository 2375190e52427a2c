"""Reading of input files, local and remote.

A path with `://` goes through fsspec; any other is a local file and is opened directly, because that
is faster and its errors are clearer.
"""

from __future__ import annotations

import os
import stat
from typing import Any, BinaryIO, cast

import msgspec

from packline.errors import InputChanged, InputError
from packline.fingerprint import Hasher
from packline.storage.places import is_remote as is_remote

READ_BYTES = 4 << 20


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


def hash_range(path: str, start: int, stop: int) -> str:
    """Checksum of a byte range of a file.

    Raises:
        InputChanged: the file is too short.
    """
    hasher, done = Hasher(), start
    with open_input(path) as file:
        file.seek(start)
        while done < stop and (data := read_fully(file, min(READ_BYTES, stop - done))):
            hasher.update(data)
            done += len(data)
    if done < stop:
        raise InputChanged(f"{path} changed while it was read: expected {stop:,} bytes, found {done:,}")
    return str(hasher.hexdigest())
