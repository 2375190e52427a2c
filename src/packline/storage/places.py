"""Places of results, and their storage: a local path, the URI of an object store, a repository of the hub."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from packline.errors import CREDENTIAL, USER, InputError, StoreError, did_you_mean

if TYPE_CHECKING:
    from packline.storage.results import Storage

HUB = "hf://"
"""Scheme of the hub, whose repositories are only read."""
ONE_WRITER = "PACKLINE_ONE_WRITER"
"""Environment variable by which the user promises that no other process writes into the result."""
SCHEMES = ("s3", "gs", "az")


def is_remote(place: str | os.PathLike[str]) -> bool:
    """True if a place is a URI.

    >>> is_remote("s3://bucket/key"), is_remote("data/a.jsonl")
    (True, False)
    """
    return "://" in os.fspath(place)


def is_hidden(path: str) -> bool:
    """True if a part of a relative path begins with a dot."""
    return path.startswith(".") or "/." in path


def join(place: str | os.PathLike[str], name: str) -> str:
    """Place of a file or folder in a place.

    >>> join("s3://bucket/store/", "manifest.json"), join("data", "a/b"), join("s3://bucket", "")
    ('s3://bucket/store/manifest.json', 'data/a/b', 's3://bucket')
    """
    start = os.fspath(place)
    if not name:
        return start
    return f"{start.rstrip('/')}/{name}" if is_remote(start) else posixpath.join(start, name)


def place_in(folder: str, given: str) -> str:
    """Place of a path that is relative to a folder; a URI, or an absolute path, is one already."""
    return given if is_remote(given) else posixpath.join(folder, given)


def resolved(place: str | os.PathLike[str]) -> str:
    """The same for all ways to name a place: an absolute path without links, or a URI without a last slash.

    >>> resolved("s3://bucket/store/"), resolved("/a/../b/")
    ('s3://bucket/store', '/b')
    """
    given = os.fspath(place)
    return given.rstrip("/") if is_remote(given) else os.path.realpath(given)


def split_uri(place: str) -> tuple[str, str, str]:
    """Scheme, bucket and key of the URI of an object store; the key is without slashes at its ends.

    >>> split_uri("s3://bucket/a/store/")
    ('s3', 'bucket', 'a/store')
    """
    scheme, _, rest = place.partition("://")
    scheme = scheme.lower()
    shown = without_secrets(place)
    bucket, _, key = rest.partition("/")
    if "@" in bucket or "?" in rest or "#" in rest:
        raise StoreError(
            f"{shown} was given with credentials, a query or a fragment: expected scheme://bucket/key alone",
            hint="credentials belong into the environment or a profile, where no log shows them",
        )
    if scheme not in SCHEMES:
        raise StoreError(
            f"{shown} is not a place of results: expected a path or {', '.join(f'{s}://' for s in SCHEMES)}",
            hint=did_you_mean(scheme, SCHEMES) + "the documentation of object stores lists them",
        )
    key = key.strip("/")
    if not bucket or any(part in ("", ".", "..") for part in key.split("/") if key):
        hint = f"write {scheme}://bucket/key"
        raise StoreError(f"{shown} names no bucket, or has an empty part, '.' or '..' in its key", hint=hint)
    return scheme, bucket, key


def without_secrets(place: str) -> str:
    """Place as messages show it: without user, password, query and fragment.

    >>> without_secrets("https://user:word@host/a?sig=x"), without_secrets("a?b@c")
    ('https://host/a', 'a?b@c')
    """
    return USER.sub(r"\1", re.split("[?#]", place)[0]) if is_remote(place) else place


def refuse_secrets(uri: str) -> None:
    """Refuse an input's address with credentials, since recipe and manifest contain it.

    A user name alone is none where it may be a container (`abfs://CONTAINER@ACCOUNT...`).
    """
    if not is_remote(uri):
        return
    user, parameter = USER.search(uri), CREDENTIAL.search(uri)
    if user and (":" in user[2] or user[1].lower().startswith("http")):
        found = "address has a user name or password"
    elif parameter:
        found = f"parameter {parameter[1][1:-1]} is a credential"
    else:
        return
    raise InputError(
        f"{without_secrets(uri)}: the {found}, which the manifest would publish",
        hint="download the file, or read it by s3://, gs:// or az:// with credentials from the environment",
    )


def store_beside(out: str | os.PathLike[str]) -> str:
    """Place of the store that is kept beside an export."""
    return f"{os.fspath(out).rstrip('/') if is_remote(out) else Path(out)}.store"


def refuse_remote(place: str | os.PathLike[str], what: str) -> None:
    """Refuse the URI of an object store where only a local path works."""
    if is_remote(place):
        raise StoreError(
            f"{without_secrets(os.fspath(place))}: {what} is written to a local path, found a URI",
            hint="write it to a local path, then copy it: packline push FOLDER URI",
        )


def open_results(place: str) -> Storage:
    """Storage of a result that is written; as `open_storage`, and with the user's promise of one writer."""
    storage = open_storage(place)
    if is_remote(place) and os.environ.get(ONE_WRITER):
        storage.one_writer = True  # type: ignore[attr-defined]
    return storage


def open_storage(place: str | os.PathLike[str], *, reached: bool = False) -> Storage:
    """Storage of a place; nothing is read or written yet.

    Args:
        reached: an object store that has answered before, perhaps to another process, is waited for when it
            does not answer; the address of any other may be wrong.
    """
    start = os.fspath(place)
    if start.startswith(HUB):
        from packline.storage.hub_inputs import HubFolder  # the modules load libraries

        return HubFolder(start)
    if is_remote(start):
        from packline.storage.objects import ObjectFolder

        return ObjectFolder(start, reached=reached)
    from packline.storage.local import LocalFolder

    return LocalFolder(Path(start))
