"""Reading of input files, local and remote.

    path                                 opened directly: faster, and with clearer errors
    s3:// gs:// az:// http:// https://   `object_inputs`: ranges, read ahead and compared with the plan
    hf://datasets/ORG/NAME@REVISION/...  `hub_inputs`: the same, of a revision
    any other URI                        fsspec

Readers use `open_input` and see a file in each case.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from packline.errors import InputChanged, InputError
from packline.fingerprint import Hasher
from packline.storage.places import is_remote
from packline.storage.ranged_file import RangedFile

READ_BYTES = 4 << 20
HUB = "hf://"
TAIL_BYTES = 64 << 10
"""Bytes read after a range, in which its last record probably ends."""
WITH_MD5 = ("s3://", "gs://")
"""Stores whose ETag is the MD5 of an object that was put in one request, but for some kinds of encryption."""
MAGIC = re.compile("[*?[]")
"""Wildcards of a glob."""


class InputState(msgspec.Struct, frozen=True, gc=False):
    """Size and state of an input when it was planned, to detect changes."""

    size: int
    modified: str
    """ETag or modification time, where available; compared, never published."""


class ListedFile(msgspec.Struct, frozen=True, gc=False):
    """A file of a listing."""

    path: str
    """Path or URI."""
    state: InputState | None = None
    """None if a listing does not tell it."""


class RemoteFiles(Protocol):
    """Files of one kind of URI. Every answer with bytes is compared with the state that was planned.

    All methods raise `InputError` with the URI if a server refuses or cannot be reached, after retries.
    """

    def expand(self, uri: str) -> Iterator[ListedFile]:
        """Files of a URI: itself, those below a folder, or the matches of a glob; sorted by path."""

    def read_start(self, uri: str, size: int) -> tuple[InputState, bytes]:
        """State of a file and its first bytes."""

    def read(self, uri: str, start: int, stop: int, state: InputState) -> Any:
        """Bytes of a range, as a buffer.

        Raises:
            InputChanged: the file is no longer in this state.
        """


def fixed_folder(glob: str) -> str:
    """Folder of a glob up to its first part with a wildcard, without a slash at its end.

    >>> fixed_folder("a/b/*.txt"), fixed_folder("*/x"), fixed_folder("a/b*/c")
    ('a/b', '', 'a')
    """
    return MAGIC.split(glob)[0].rpartition("/")[0]


def is_hidden(path: str) -> bool:
    """True if a part of a relative path begins with a dot.

    >>> is_hidden("a/.b/c"), is_hidden("a/b.c")
    (True, False)
    """
    return path.startswith(".") or "/." in path


def glob_pattern(glob: str) -> re.Pattern[str] | None:
    """Pattern of the names that a glob matches, with the rules of `glob.glob`; None without a wildcard.

    Raises:
        InputError: `**` is only a part of a name.

    >>> [bool(glob_pattern("a/**/*.txt").fullmatch(name)) for name in ("a/x.txt", "a/b/c/x.txt", "a/x.md")]
    [True, True, False]
    >>> [bool(glob_pattern("a/[!x]?/*").fullmatch(name)) for name in ("a/bc/d", "a/xc/d", "a/bc/d/e")]
    [True, False, False]
    """
    if not MAGIC.search(glob):
        return None
    from fsspec.utils import glob_translate

    try:
        return re.compile(glob_translate(glob))
    except ValueError as error:
        raise InputError(f"cannot use the pattern {glob}: {error}", hint="write a/**/b or a/*b") from error


def remote_files(uri: str) -> RemoteFiles | None:
    """Files of a kind of URI that is read by ranges; None for those that fsspec reads."""
    scheme = uri.partition("://")[0]
    if scheme in ("s3", "gs", "az", "http", "https"):
        from packline.storage.object_inputs import ObjectInputs

        return ObjectInputs()
    if scheme == "hf":
        from packline.storage.hub_inputs import HubInputs

        return HubInputs()
    return None


def fsspec_files(path: str) -> tuple[Any, str]:
    """fsspec file system of a URI and the path within it.

    Raises:
        InputError: no such protocol, or its package is not installed.
    """
    from fsspec.core import url_to_fs

    try:
        return cast("tuple[Any, str]", url_to_fs(path))
    except (ImportError, ValueError) as error:
        raise InputError(
            f"cannot open {path}: {error}",
            hint="s3://, gs://, az://, https:// need packline[remote], hf:// needs packline[hub], others the "
            "package of fsspec for them",
        ) from error


@contextmanager
def _plain_errors(path: str) -> Iterator[None]:
    """Errors of opening and reading a file as `InputError`; those of fsspec's packages are of any type."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not is_remote(path):
            raise
        raise _input_error(path, error) from error


def input_state(path: str) -> InputState:
    """Size and state of a file.

    Raises:
        InputError: the file is missing, or not readable by this user.
    """
    if not is_remote(path) or remote_files(path) is not None:
        return read_start(path, int(is_remote(path)))[0]
    with _plain_errors(path):
        system, inner = fsspec_files(path)
        info = system.info(inner)
        modified = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        return InputState(int(info["size"] or 0), str(modified))


def is_compared(path: str) -> bool:
    """True if every read of a file is compared with its planned state, so that no further check is needed."""
    return is_remote(path) and remote_files(path) is not None


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


def read_start(path: str, size: int) -> tuple[InputState, bytes]:
    """State of a file and its first `size` bytes, at a third of the cost of `stat` and `open` apart.

    Raises:
        InputError: the file is missing, not a regular file, or not readable by this user.
    """
    if is_remote(path):
        if (files := remote_files(path)) is not None:
            return files.read_start(path, size)
        state = input_state(path)
        with _plain_errors(path), open_input(path, state) as file:
            return state, read_fully(file, size)
    with _plain_errors(path):
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
    return InputState(status.st_size, str(status.st_mtime_ns)), data


def open_input(
    path: str, state: InputState | None = None, start: int | None = None, stop: int | None = None
) -> BinaryIO:
    """Open for reading bytes: unbuffered if local, since all readers read large blocks.

    Args:
        state: planned state; a remote file in another state is an error when it is read. None: as it is now.
        start: first byte of the records that will be read. A remote file is read ahead from the one before.
        stop: end of the range in which these records begin.

    Raises:
        InputError: the file is missing, or not readable by this user.
    """
    with _plain_errors(path):
        if not is_remote(path):
            return cast("BinaryIO", open(path, "rb", buffering=0))
        if (files := remote_files(path)) is not None:
            planned = state or input_state(path)
            from packline.storage.object_inputs import without_tls

            whole = start == 0 and stop == planned.size
            known = whole and path.startswith(WITH_MD5) and re.fullmatch("[0-9a-f]{32}", planned.modified)
            file = RangedFile(
                lambda begin, end: files.read(path, begin, end, planned),
                planned.size,
                path,
                planned.modified if known and without_tls(path) else "",
            )
            if start is not None and stop is not None:
                file.expect([(max(start - 1, 0), stop + (TAIL_BYTES if stop < planned.size else 0))])
            return cast("BinaryIO", file)
        system, inner = fsspec_files(path)
        return cast("BinaryIO", system.open(inner, "rb"))


def expand_remote(uri: str) -> Iterator[ListedFile]:
    """Files of a URI: itself, those below a folder, or the matches of a glob; sorted, without hidden ones.

    Raises:
        InputError: nothing found.
    """
    if (files := remote_files(uri)) is not None:
        yield from files.expand(uri)
        return
    import glob

    protocol = uri.partition("://")[0]
    with _plain_errors(uri):
        system, inner = fsspec_files(uri)
        if glob.has_magic(inner):
            found = system.glob(inner, detail=True)
        elif system.isfile(inner):
            yield ListedFile(uri)
            return
        elif system.isdir(inner):
            found = system.find(inner, detail=True)
        else:
            raise InputError(f"cannot find {uri}", hint="check the URI and your credentials for it")
    for name in sorted(name for name, info in found.items() if info["type"] == "file"):
        if not name.rpartition("/")[2].startswith("."):
            yield ListedFile(name if "://" in name else f"{protocol}://{name}")


def _input_error(path: str, error: Exception) -> InputError:
    """Error for an input that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"cannot find {path}", hint="check the path")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    hint = "check the address and the network" if is_remote(path) else "check its permissions"
    return InputError(f"cannot read {path}: {reason}", hint=hint)


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


class RangeHash:
    """Checksum of a byte range of a file, of which a reader hands over what it reads anyway.

    What is not handed over, or not in order, is read here.
    """

    def __init__(self, path: str, start: int, stop: int) -> None:
        self._path, self._stop, self._done, self._hasher = path, stop, start, Hasher()

    def feed(self, position: int, data: memoryview) -> None:
        """Add bytes of the file, uint8 `[N]` from `position` on; those outside the range are ignored."""
        if position > self._done:
            self._read(min(position, self._stop))
        if (end := min(position + len(data), self._stop)) > self._done:
            self._hasher.update(data[self._done - position : end - position])
            self._done = end

    def finish(self) -> str:
        """Checksum of the range.

        Raises:
            InputChanged: the file is too short.
        """
        self._read(self._stop)
        return str(self._hasher.hexdigest())

    def _read(self, stop: int) -> None:
        if self._done >= stop:
            return
        with open_input(self._path, None, self._done, stop) as file:
            file.seek(self._done)
            while self._done < stop and (data := read_fully(file, min(READ_BYTES, stop - self._done))):
                self._hasher.update(data)
                self._done += len(data)
        if self._done < stop:
            raise InputChanged(
                f"{self._path} changed while it was read: expected {stop:,} bytes, found {self._done:,}"
            )


def hash_range(path: str, start: int, stop: int) -> str:
    """Checksum of a byte range of a file; see `RangeHash`."""
    return RangeHash(path, start, stop).finish()
