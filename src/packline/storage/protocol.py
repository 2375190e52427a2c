"""Storage of results: the protocol that local folders and object stores implement.

Bytes are a function of inputs and settings alone, so a file is created once, under its final name, and never
changed: to create the same bytes again is a success, other bytes are an error. So a unit that runs twice does
no harm, and nothing is renamed or copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from packline.errors import StoreError
from packline.fingerprint import Hasher

PIECE_BYTES = 16 << 20
"""Bytes of one request of a file that is read to be compared or copied."""


class FileFacts(msgspec.Struct, frozen=True, gc=False):
    """Name, size and state of a file in a storage."""

    name: str
    """Relative to the place, with `/`."""
    size: int
    etag: str
    """Changes with every change of the file: an ETag, a time or a commit; compared, never published."""
    checksum: str = ""
    """xxh3-128 of its bytes, if the storage has it and was asked for this one file."""


class Storage(Protocol):
    """Files by name; names are relative paths with `/`.

    To add a storage, inherit from this protocol, and open it in `storage.places`.
    """

    place: str
    """Path or URI, for messages; never a secret."""
    folder: Path | None = None
    """Local folder of the files; None where each is reached by a request."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes `start` to `stop` of a file; to its end by default, fewer where it ends before.

        Raises:
            FileNotFoundError: there is no such file.
            StoreError: the storage cannot be reached or refuses.
        """

    def facts(self, name: str) -> FileFacts | None:
        """Size and state of a file; None if there is none."""

    def walk(self, folder: str = "") -> Iterator[FileFacts]:
        """All files in a folder and in those below it, in order of name; unfinished ones are left out."""

    def list(self, folder: str) -> Sequence[str]:
        """Names of the files directly in a folder, sorted; those that begin with a dot are left out."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Create a small file, complete or not at all; durable on return.

        Returns:
            False if it existed with the same bytes.

        Raises:
            StoreError: it exists with other bytes; the message has both checksums.
            OutOfSpace: the disk is full.
        """

    def put_files(self, files: Mapping[str, Path]) -> None:
        """Take over finished local files, each under its name; all durable on return.

        The local files are consumed. One that exists with the same bytes is a success.

        Raises:
            StoreError: one exists with other bytes; the message has both checksums.
            OutOfSpace: the disk is full.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, those that exist; durable on return."""


def hash_contents(storage: Storage, name: str, size: int) -> str:
    """Checksum of a file by reading it."""
    hasher = Hasher()
    for start in range(0, size, PIECE_BYTES):
        hasher.update(storage.read(name, start, min(start + PIECE_BYTES, size)))
    return str(hasher.hexdigest())


def other_content(place: str | Path, expected: str, found: str) -> StoreError:
    """Error for a file that exists with other bytes; `expected` and `found` are their checksums."""
    return StoreError(
        f"{place} exists with another content: expected {expected}, found {found}",
        hint="something else writes into this folder, or the memory of a machine is damaged",
    )
