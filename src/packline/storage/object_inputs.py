"""Inputs in object stores and on web servers, by obstore.

    s3://BUCKET/KEY  gs://BUCKET/KEY  az://CONTAINER/KEY     listed 1,000 files a request, with size and ETag
    https://HOST/PATH                                        one file; the server must support ranges

Each answer is compared with the state that was planned: the ETag where the server has one, else the time of
modification, and the size in any case. Answers that break off or stall, resets and 5xx are repeated, only the
range concerned. A flipped bit is noticed by TLS; without it, `ranged_file` compares files that are read whole
with the MD5 in their ETag.

obstore may not be used before a fork (`clients`): the driver may plan with it, and then workers, which are
forked from a process of their own, read with it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from packline.errors import InputChanged, InputError, StoreError
from packline.storage.clients import READ_SECONDS, RETRIES, STALL_SECONDS, Clients, obstore
from packline.storage.inputs import InputState, ListedFile, fixed_folder, glob_pattern, is_hidden
from packline.storage.places import without_secrets
from packline.storage.requests import (
    ACCESS,
    FIRST_SECONDS,
    LOG,
    PATIENCE_SECONDS,
    Attempts,
    is_missing_bucket,
    is_refused,
    may_pass,
    reason_of,
    status_of,
)

LISTED = 1000
FIRST_PAUSE = 0.2
OTHER_RANGE = "Requested"
"""In the error of an answer that is whole in itself, and not the range that was requested."""
MISSING = "check the URI, and that your credentials may list and read it"

T = TypeVar("T")
_CLIENTS: dict[str, Clients] = {}
_REACHED: set[str] = set()
"""Stores that have answered: they are waited for longer."""


class ObjectInputs:
    """See `RemoteFiles`."""

    def expand(self, uri: str) -> Iterator[ListedFile]:
        """See `RemoteFiles.expand`."""
        _warn_of_plain_http(split_address(uri)[0])
        if is_web(uri):
            yield ListedFile(uri)
            return
        root, key = split_address(uri)
        pattern = glob_pattern(key)
        if pattern is None and key and not key.endswith("/"):
            state = _retried(uri, lambda: _head(uri))
            if state is not None:
                yield ListedFile(uri, state)
                return
        folder = key.strip("/") if pattern is None else fixed_folder(key)
        for path, state in sorted(self._walk(uri, root, folder)):
            if pattern is None or pattern.fullmatch(path):
                yield ListedFile(f"{root}/{path}", state)

    def _walk(self, uri: str, root: str, folder: str) -> list[tuple[str, InputState]]:
        """Files below a folder, without hidden ones and markers of folders."""

        def listed() -> list[tuple[str, InputState]]:
            found: list[tuple[str, InputState]] = []
            folders: set[str] = set()
            for metas in obstore().list(object_store_of(root), folder or None, chunk_size=LISTED):
                for meta in metas:
                    path = meta["path"]
                    if is_hidden(path[len(folder) :]) or path == folder:
                        continue
                    if not meta["size"]:
                        folders.add(path)
                    found.append((path, _state(meta)))
            if folders:
                above = {path[:at] for path, _ in found for at, one in enumerate(path) if one == "/"}
                found = [(path, state) for path, state in found if path not in folders & above]
            return found

        found = _retried(uri, listed)
        if not found:
            raise InputError(f"cannot find {uri}: no such object, and no objects below it", hint=MISSING)
        return found

    def read_start(self, uri: str, size: int) -> tuple[InputState, bytes]:
        """See `RemoteFiles.read_start`."""

        def start() -> tuple[InputState, bytes] | None:
            root, key = split_address(uri)
            try:
                answer = obstore().get(object_store_of(root), key, options={"range": (0, size)})
                return _state(answer.meta), bytes(answer.bytes())
            except FileNotFoundError:
                return None
            except Exception as error:
                # A file without a byte has no range.
                if status_of(error) == 416 and (state := _head(uri)) is not None and not state.size:
                    return state, b""
                raise

        found = _retried(uri, start)
        if found is None:
            raise InputError(f"cannot find {uri}", hint=MISSING)
        return found

    def read(self, uri: str, start: int, stop: int, state: InputState) -> Any:
        """See `RemoteFiles.read`."""

        def get() -> Any:
            root, key = split_address(uri)
            options: dict[str, Any] = {"range": (start, stop)}
            if is_strong(state.modified):
                options["if_match"] = f'"{state.modified}"'
            try:
                answer = obstore().get(object_store_of(root), key, options=options)
            except Exception as error:
                gone = isinstance(error, FileNotFoundError)
                if gone or type(error).__name__ == "PreconditionError" or status_of(error) == 412:
                    raise _changed(uri, state, _head(uri)) from None
                raise
            if (found := _state(answer.meta)) != state:
                raise _changed(uri, state, found)
            data = answer.bytes()
            if len(data) != stop - start:
                raise OSError(f"{OTHER_RANGE} {start}..{stop}, got {len(data)} bytes")
            return data

        return _retried(uri, get)


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


def is_web(uri: str) -> bool:
    """True for http and https."""
    return uri.startswith(("http://", "https://"))


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
    root, key = split_address(uri)
    try:
        return _state(obstore().head(object_store_of(root), key))
    except FileNotFoundError:
        return None


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


def _retried(uri: str, ask: Callable[[], T]) -> T:
    """Answer of a store. What may pass is repeated.

    Raises:
        InputError: refused, not supported, or still failing.
    """
    attempts, root = Attempts(FIRST_PAUSE), split_address(uri)[0]
    while True:
        try:
            result = ask()
        except InputError:
            raise
        except StoreError as error:
            raise InputError(error.message, hint=error.hint) from error
        except Exception as error:
            if status_of(error):
                _REACHED.add(root)
            other = OTHER_RANGE in str(error)
            patience = PATIENCE_SECONDS if root in _REACHED else FIRST_SECONDS
            reason = "its server answers with other ranges than requested" if other else reason_of(error)
            if not (other or may_pass(error)) or not attempts.wait(
                patience, f"{without_secrets(uri)}: {reason}"
            ):
                raise _input_error(uri, reason, error) from None
        else:
            _REACHED.add(root)
            return result


def _input_error(uri: str, reason: str, error: Exception) -> InputError:
    shown, status = without_secrets(uri), status_of(error)
    kept = "what is committed is kept: the same command resumes"
    if type(error).__name__ == "NotSupportedError":
        return InputError(
            f"cannot read {shown}: its server does not support ranges",
            hint="download the file, and give its path",
        )
    if is_missing_bucket(error):
        return InputError(
            f"cannot read {shown}: there is no such bucket or container",
            hint="check its name and the endpoint",
        )
    if is_refused(error):
        hint = ACCESS.get(uri.partition("://")[0], "the server wants credentials, and packline sends none")
        return InputError(f"cannot read {shown}: access refused: {reason}", hint=hint)
    if isinstance(error, ValueError) and not status:
        return InputError(f"cannot read {shown}: {str(error).splitlines()[0]}", hint="check the URI")
    return InputError(f"cannot read {shown}: {reason}", hint=f"check the network and the server; {kept}")


def object_store_of(root: str) -> Any:
    """Client of obstore for a root (see `split_uri`), made once in each process."""
    if is_web(root):
        return _web_client(root, os.getpid())
    if root not in _CLIENTS:
        _CLIENTS[root] = Clients(root)
    return _CLIENTS[root].reader()


@lru_cache(64)
def _web_client(root: str, process: int) -> Any:
    obstore()
    from obstore.store import HTTPStore

    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=STALL_SECONDS),
        "timeout": timedelta(seconds=READ_SECONDS),
    }
    retry: Any = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=180)}
    return HTTPStore.from_url(root, client_options=options, retry_config=retry)
