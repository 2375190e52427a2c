"""Inputs in object stores and on web servers, by obstore.

    s3://BUCKET/KEY  gs://BUCKET/KEY  az://CONTAINER/KEY     listed 1,000 files a request, with size and ETag
    https://HOST/PATH                                        one file; the server must support ranges

Each answer is compared with the state that was planned: the ETag where the server has one, else the time of
modification, and the size in any case. Answers that break off or stall, resets and 5xx are repeated, only the
range concerned (`objects.ObjectFolder.request`). A flipped bit is noticed by TLS; without it, `ranged_file`
compares files that are read whole with the MD5 in their ETag.

obstore may not be used before a fork (`clients`): the driver may plan with it, and then workers, which are
forked from a process of their own, read with it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from packline.errors import InputChanged, InputError, StoreError
from packline.storage.clients import Clients, is_web, obstore
from packline.storage.inputs import InputState, ListedFile, fixed_folder, glob_pattern, is_hidden
from packline.storage.objects import ObjectFolder
from packline.storage.places import without_secrets
from packline.storage.requests import LOG, status_of

MISSING = "check the URI, and that your credentials may list and read it"

T = TypeVar("T")


class ObjectInputs:
    """See `RemoteFiles`."""

    def expand(self, uri: str) -> Iterator[ListedFile]:
        """See `RemoteFiles.expand`."""
        root, key = split_address(uri)
        _warn_of_plain_http(root)
        if is_web(uri):
            yield ListedFile(uri)
            return
        pattern = glob_pattern(key)
        if pattern is None and key and not key.endswith("/") and (state := _head(uri)) is not None:
            yield ListedFile(uri, state)
            return
        folder = key.strip("/") if pattern is None else fixed_folder(key)
        for path, state in sorted(_walk(uri, folder)):
            if pattern is None or pattern.fullmatch(path):
                yield ListedFile(f"{root}/{path}", state)

    def read_start(self, uri: str, size: int) -> tuple[InputState, bytes]:
        """See `RemoteFiles.read_start`."""

        def start(client: Any, key: str) -> tuple[InputState, bytes] | None:
            try:
                answer = obstore().get(client, key, options={"range": (0, size)})
                return _state(answer.meta), bytes(answer.bytes())
            except Exception as error:
                # A file without a byte has no range.
                if status_of(error) == 416 and (state := _head(uri)) is not None and not state.size:
                    return state, b""
                raise

        found = _ask(uri, start)
        if found is None:
            raise InputError(f"cannot find {uri}", hint=MISSING)
        return found

    def read(self, uri: str, start: int, stop: int, state: InputState) -> Any:
        """See `RemoteFiles.read`."""

        def get(client: Any, key: str) -> Any:
            options: dict[str, Any] = {"range": (start, stop)}
            if is_strong(state.modified):
                options["if_match"] = f'"{state.modified}"'
            try:
                answer = obstore().get(client, key, options=options)
            except Exception as error:
                gone = isinstance(error, FileNotFoundError)
                if gone or type(error).__name__ == "PreconditionError" or status_of(error) == 412:
                    raise _changed(uri, state, _head(uri)) from None
                raise
            if (found := _state(answer.meta)) != state:
                raise _changed(uri, state, found)
            data = answer.bytes()
            if len(data) != stop - start:
                raise ValueError(f"Requested {start}..{stop}, got {len(data)}")
            return data

        return _ask(uri, get)


def _walk(uri: str, folder: str) -> list[tuple[str, InputState]]:
    """Files below a folder, without hidden ones and markers of folders."""
    found: list[tuple[str, InputState]] = []
    folders: set[str] = set()
    with _input_errors():
        for meta in _store(split_address(uri)[0]).walk_objects(folder):
            path = meta["path"]
            if is_hidden(path[len(folder) :]) or path == folder:
                continue
            if not meta["size"]:
                folders.add(path)
            found.append((path, _state(meta)))
    if folders:
        above = {path[:at] for path, _ in found for at, one in enumerate(path) if one == "/"}
        found = [(path, state) for path, state in found if path not in folders & above]
    if not found:
        raise InputError(f"cannot find {uri}: no such object, and no objects below it", hint=MISSING)
    return found


def without_tls(uri: str) -> str:
    """Address of the server of a URI if it is read over plain http; else ""."""
    root = split_address(uri)[0]
    try:
        address = root if is_web(root) else Clients(root).endpoint()
    except StoreError:
        return ""  # the first request reports it
    return address if address.startswith("http://") else ""


@lru_cache(64)
def _warn_of_plain_http(root: str) -> None:
    """Log, once for each store, that its bytes come over a network without TLS."""
    if (address := without_tls(root)) and not is_loopback(urlsplit(address).hostname or ""):
        LOG.warning(
            "%s is read over plain http: bytes damaged on the way may go unnoticed", without_secrets(root)
        )


def is_loopback(host: str) -> bool:
    """True for a name or address of this machine.

    >>> is_loopback("127.0.0.2"), is_loopback("10.0.0.1"), is_loopback("minio")
    (True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_strong(modified: str) -> bool:
    """True for an ETag that a server compares byte by byte; False for a time, a weak ETag or none."""
    return bool(modified) and not modified.startswith(("W/", "modified "))


def split_address(uri: str) -> tuple[str, str]:
    """Root of a store, and the key in it.

    >>> split_address("s3://bucket/a/b.txt"), split_address("https://host/a%20b?x=1")
    (('s3://bucket', 'a/b.txt'), ('https://host/?x=1', 'a b'))
    """
    if is_web(uri):
        parts = urlsplit(uri)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{query}", unquote(parts.path.lstrip("/"))
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def _head(uri: str) -> InputState | None:
    return _ask(uri, lambda client, key: _state(obstore().head(client, key)))


def _state(meta: Any) -> InputState:
    """State by an answer: its ETag, else its time of modification, else its size only."""
    modified = (meta["e_tag"] or "").replace('"', "")
    if not modified and meta["last_modified"] > datetime(1970, 1, 2, tzinfo=UTC):
        modified = f"modified {meta['last_modified'].isoformat()}"
    return InputState(meta["size"], modified)


def _changed(uri: str, expected: InputState, found: InputState | None) -> InputChanged:
    def words(state: InputState) -> str:
        kind = "" if not state.modified or state.modified.startswith("modified ") else "ETag "
        return f"{state.size:,} bytes{', ' if state.modified else ''}{kind}{state.modified}"

    return InputChanged(
        f"{uri} changed after it was planned: expected {words(expected)}; "
        f"found {'nothing' if found is None else words(found)}",
        hint="let it come to rest, then build into a new folder",
    )


def _ask(uri: str, ask: Callable[[Any, str], T]) -> T | None:
    """Answer of a store to a request, given its client and a key; None if there is no such object.

    Raises:
        InputError: refused, not supported, or still failing.
    """
    with _input_errors():
        root, key = split_address(uri)
        store = _store(root)
        try:
            return store.request("read", key, lambda: ask(store.client(), key))
        except FileNotFoundError:
            return None


@contextmanager
def _input_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise InputError(error.message, hint=error.hint) from None


@lru_cache(64)
def _store(root: str) -> ObjectFolder:
    return ObjectFolder(root)
