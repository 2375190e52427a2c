"""Reading of input files: local, of object stores and web servers (`objects`), of the hub, and by fsspec.

Readers use `open_input` and see a file in each case. Remote files, but for those of fsspec, are read by
ranges, ahead (`ranged_file`), and each answer is compared with the state that was planned. TLS notices a
flipped bit; without it, files that are read whole are compared with the MD5 in their ETag.

obstore may not be used before a fork (`clients`): the driver may plan with it, and then workers, which are
forked from a process of their own, read with it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

import msgspec

from packline.errors import InputChanged, InputError, StoreError
from packline.fingerprint import Hasher
from packline.storage.clients import Clients, is_web
from packline.storage.places import HUB, SCHEMES, is_hidden, is_remote, join, without_secrets
from packline.storage.ranged_file import RangedFile
from packline.storage.requests import LOG
from packline.storage.results import FileFacts

if TYPE_CHECKING:
    from packline.storage.hub_inputs import HubFiles
    from packline.storage.objects import ObjectFolder

READ_BYTES = 4 << 20
TAIL_BYTES = 64 << 10
"""Bytes read after a range, in which its last record probably ends."""
WITH_MD5 = ("s3://", "gs://")
"""Stores whose ETag is the MD5 of an object that was put in one request, but for some kinds of encryption."""
BY_RANGES = (*SCHEMES, "http", "https", "hf")
"""Schemes of the files that are read by ranges."""
MISSING = "check the URI, and that your credentials may list and read it"
MAGIC = re.compile("[*?[]")


class InputState(msgspec.Struct, frozen=True, gc=False):
    """Size and state of an input when it was planned, to detect changes."""

    size: int
    modified: str
    """ETag or modification time, where available; compared, never published."""


class ListedFile(msgspec.Struct, frozen=True, gc=False):
    """A file of a listing."""

    path: str
    state: InputState | None = None
    name: str = ""


def fixed_folder(glob: str) -> str:
    """Folder of a glob up to its first part with a wildcard, without a slash at its end.

    >>> fixed_folder("a/b/*.txt"), fixed_folder("*/x"), fixed_folder("a/b*/c")
    ('a/b', '', 'a')
    """
    return MAGIC.split(glob)[0].rpartition("/")[0]


def glob_pattern(glob: str) -> re.Pattern[str] | None:
    """Pattern of the names that a glob matches, with the rules of `glob.glob`; None without a wildcard.

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


def is_compared(path: str) -> bool:
    """True if every read of a file is compared with its planned state, so that no further check is needed.

    >>> is_compared("s3://bucket/a"), is_compared("ftp://host/a"), is_compared("a")
    (True, False, False)
    """
    return is_remote(path) and path.partition("://")[0] in BY_RANGES


def split_address(uri: str) -> tuple[str, str]:
    """Place of a storage that is read by ranges, and the name of a file in it.

    >>> split_address("s3://bucket/a/b.txt"), split_address("https://host/a%20b?x=1")
    (('s3://bucket', 'a/b.txt'), ('https://host/?x=1', 'a b'))
    """
    if is_web(uri):
        parts = urlsplit(uri)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{query}", unquote(parts.path.lstrip("/"))
    if uri.startswith(HUB):
        *root, name = pin_input(uri).split("/", 5)
        return "/".join(root), name
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def pin_input(uri: str) -> str:
    """Address on the hub with the commit that its revision is now."""
    from packline.storage.hub_inputs import pin

    with _input_errors():
        return pin(uri)


@lru_cache(64)
def _storage(place: str) -> ObjectFolder | HubFiles:
    if place.startswith(HUB):
        from packline.storage.hub_inputs import HubFiles

        return HubFiles(place)
    from packline.storage.objects import ObjectFolder

    return ObjectFolder(place)


@contextmanager
def _input_errors() -> Iterator[None]:
    """Turn the errors of a storage into those of inputs."""
    try:
        yield
    except StoreError as error:
        raise InputError(error.message, hint=error.hint) from None


def _read(uri: str, start: int, stop: int, planned: InputState | None = None) -> tuple[InputState, Any]:
    """State of a remote file, and the bytes of a range as a buffer."""
    place, name = split_address(uri)
    found, data = None, b""
    with _input_errors():
        try:
            facts, data = _storage(place).get(name, start, stop)
            found = _state(facts)
        except FileNotFoundError:
            pass
    if planned is not None and found != planned:
        raise _changed(uri, planned, found)
    if found is None:
        raise InputError(f"cannot find {uri}", hint=MISSING)
    return found, data


def _state(facts: FileFacts) -> InputState:
    return InputState(facts.size, facts.etag)


def is_strong(modified: str) -> bool:
    """True for an ETag that a server compares byte by byte; False for a time, a weak ETag or none."""
    return bool(modified) and not modified.startswith(("W/", "modified "))


def _changed(uri: str, planned: InputState, found: InputState | None) -> InputChanged:
    kind, hint = "ETag ", "let it come to rest, then build into a new folder"
    if uri.startswith(HUB):
        kind, hint = "commit ", "a commit does not change: check the server or the cache of the hub"

    def words(state: InputState) -> str:
        named = state.modified if state.modified.startswith("modified ") else kind + state.modified
        return f"{state.size:,} bytes, {named}" if state.modified else f"{state.size:,} bytes"

    return InputChanged(
        f"{uri} changed after it was planned: expected {words(planned)}; "
        f"found {'nothing' if found is None else words(found)}",
        hint=hint,
    )


def without_tls(uri: str) -> str:
    """Address of the server of a URI if it is read over plain http; else ""."""
    if uri.startswith(HUB):
        return ""
    root = split_address(uri)[0]
    try:
        address = root if is_web(root) else Clients(root).endpoint()
    except StoreError:
        return ""  # the first request reports it
    return address if address.startswith("http://") else ""


@lru_cache(64)
def _warn_of_plain_http(place: str) -> None:
    """Log, once for each storage, that its bytes come over a network without TLS."""
    if (address := without_tls(place)) and not is_loopback(urlsplit(address).hostname or ""):
        LOG.warning(
            "%s is read over plain http: bytes damaged on the way may go unnoticed", without_secrets(place)
        )


def is_loopback(host: str) -> bool:
    """True for a name or address of this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fsspec_files(path: str) -> tuple[Any, str]:
    """fsspec file system of a URI and the path within it."""
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
    except FileNotFoundError as error:
        raise InputError(f"cannot find {path}", hint="check the path") from error
    except Exception as error:
        if not isinstance(error, OSError) and not is_remote(path):
            raise
        reason = (
            (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        )
        hint = "check the address and the network" if is_remote(path) else "check its permissions"
        raise InputError(f"cannot read {path}: {reason}", hint=hint) from error


def input_state(path: str) -> InputState:
    """Size and state of a file."""
    if not is_remote(path) or is_compared(path):
        return read_start(path, int(is_remote(path)))[0]
    with _plain_errors(path):
        system, inner = fsspec_files(path)
        info = system.info(inner)
        modified = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        return InputState(int(info["size"] or 0), str(modified))


def refuse_irregular(path: str, mode: int) -> None:
    """Refuse a path that is not a regular file, by its mode: a pipe, a socket, a device."""
    if stat.S_ISREG(mode):
        return
    names = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    what = names.get(stat.S_IFMT(mode), "a device")
    raise InputError(
        f"{path} is {what}: expected a regular file",
        hint="inputs are read more than once and from several places: write it to a file first",
    )


def read_start(path: str, size: int) -> tuple[InputState, bytes]:
    """State of a file and its first `size` bytes, at a third of the cost of `stat` and `open` apart."""
    if is_compared(path):
        state, data = _read(path, 0, size)
        return state, bytes(data)
    if is_remote(path):
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
    """
    with _plain_errors(path):
        if not is_remote(path):
            return cast("BinaryIO", open(path, "rb", buffering=0))
        if is_compared(path):
            planned = state or input_state(path)
            whole = start == 0 and stop == planned.size
            known = whole and path.startswith(WITH_MD5) and re.fullmatch("[0-9a-f]{32}", planned.modified)
            file = RangedFile(
                lambda begin, end: _read(path, begin, end, planned)[1],
                planned.size,
                path,
                planned.modified if known and without_tls(path) else "",
            )
            if start is not None and stop is not None:
                file.expect([(max(start - 1, 0), stop + (TAIL_BYTES if stop < planned.size else 0))])
            return cast("BinaryIO", file)
        system, inner = fsspec_files(path)
        return cast("BinaryIO", system.open(inner, "rb"))


def expand_remote(uri: str) -> list[ListedFile]:
    """Files of a URI: itself, those below a folder, or the matches of a glob; sorted, without hidden ones."""
    if not is_compared(uri):
        return _expand_by_fsspec(uri)
    place, name = split_address(uri)
    _warn_of_plain_http(place)
    if is_web(uri):
        return [ListedFile(uri)]
    storage, pattern = _storage(place), glob_pattern(name)
    folder = name.strip("/") if pattern is None else fixed_folder(name)
    with _input_errors():
        if pattern is None and folder and not name.endswith("/") and (one := storage.facts(name)) is not None:
            return [ListedFile(join(place, name), _state(one))]
        found = {file.name: file for file in storage.walk(folder) if file.name != folder}
    names = sorted(name for name in found if not is_hidden(name[len(folder) :]))
    listed = [
        ListedFile(join(place, name), _state(found[name]))
        for name in names
        if found[name].size or not _is_folder(name, names)
    ]
    if not listed:
        raise InputError(f"cannot find {uri}: no such object, and no objects below it", hint=MISSING)
    return [file for file in listed if pattern is None or pattern.fullmatch(file.path[len(place) + 1 :])]


def _is_folder(name: str, names: list[str]) -> bool:
    """True if some of the sorted names are below a name: some tools mark a folder by an empty object."""
    at = bisect_left(names, f"{name}/")
    return at < len(names) and names[at].startswith(f"{name}/")


def _expand_by_fsspec(uri: str) -> list[ListedFile]:
    protocol = uri.partition("://")[0]
    with _plain_errors(uri):
        system, inner = fsspec_files(uri)
        folder = inner
        if MAGIC.search(inner):
            folder, found = fixed_folder(inner), system.glob(inner, detail=True)
        elif system.isfile(inner):
            return [ListedFile(uri)]
        elif system.isdir(inner):
            found = system.find(inner, detail=True)
        else:
            raise InputError(f"cannot find {uri}", hint="check the URI and your credentials for it")
    names = sorted(name for name, info in found.items() if info["type"] == "file")
    return [
        ListedFile(name if "://" in name else f"{protocol}://{name}")
        for name in names
        if not is_hidden(name[len(folder) :])
    ]


def read_fully(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file (one `read` may return fewer than requested)."""
    data = file.read(size)
    if len(data) == size or not data:
        return data
    whole = bytearray(data)
    while more := file.read(size - len(whole)):
        whole += more
    return bytes(whole)


def hash_range(path: str, start: int, stop: int) -> str:
    """Checksum of a byte range of a file."""
    hasher, done = Hasher(), start
    with open_input(path, None, start, stop) as file:
        file.seek(start)
        while done < stop and (data := read_fully(file, min(READ_BYTES, stop - done))):
            hasher.update(data)
            done += len(data)
    if done < stop:
        raise InputChanged(f"{path} changed while it was read: expected {stop:,} bytes, found {done:,}")
    return str(hasher.hexdigest())
