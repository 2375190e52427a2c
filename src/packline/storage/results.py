"""Results: the protocol of their storage, a folder or an object store, and how one is published.

Bytes are a function of inputs and settings alone, so a file is created once, under its final name, and never
changed: to create the same bytes again is a success, other bytes are an error. So a unit that runs twice does
no harm, and nothing is renamed or copied. A record is written last: a run that is killed leaves files without
one, which nobody takes for a result, and the same command writes what is missing. What is unfinished lies
below `.packline`, which a complete result does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from packline.errors import PacklineError, StoreError, StoreNotFound
from packline.fingerprint import Hasher
from packline.storage.places import is_hidden

WORK = ".packline"
"""Folder of an unfinished result: records of its job and, in a local folder, unfinished files."""
BUILD_BEGUN, EXPORT_BEGUN = f"{WORK}/build.json", f"{WORK}/export.json"
"""Names of the identities of jobs that have begun."""
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


def unfinished_export(place: object) -> StoreNotFound:
    """Error for a place where an export has begun, and is not complete."""
    return StoreNotFound(
        f"{place} holds an export that has not finished", hint="run its command again to resume it"
    )


class Publication:
    """Files of a result, and the record that completes it."""

    def __init__(self, storage: Storage, record: str) -> None:
        self.storage, self.record = storage, record

    def is_complete(self) -> bool:
        """True if the record is there."""
        return self.storage.facts(self.record) is not None

    def files(self) -> dict[str, int]:
        """Sizes of all files by name, unfinished ones left out."""
        return {one.name: one.size for one in self.storage.walk() if not one.name.startswith(f"{WORK}/")}

    def refuse_foreign(self, begun: str, what: str) -> None:
        """Refuse a place that has files, but neither the record nor anything of a job which began here."""
        if self.is_complete() or self.storage.facts(begun) is not None:
            return
        for name, kind in ((BUILD_BEGUN, "build"), (EXPORT_BEGUN, "export")):
            if name != begun and self.storage.facts(name) is not None:  # else it has begun by now
                raise StoreError(
                    f"{self.storage.place} holds an unfinished {kind}, and no {what}",
                    hint="run its command again to resume it, or choose another --out",
                )
        if next(iter(self.storage.walk(WORK)), None) is not None:
            return
        others = (one.name for one in self.storage.walk() if not one.name.startswith(f"{WORK}/"))
        if (found := next(others, None)) is not None and not self.is_complete():  # by now, by another process
            raise StoreError(
                f"{self.storage.place} is not empty and holds no {what}: found {found}",
                hint="choose a new or empty folder for --out",
            )

    def publish(self, files: Mapping[str, bytes], listed: Iterable[str] | None = None) -> None:
        """Create small files in their order, of which the last is the record.

        Args:
            listed: names of all files that must be there, and no others; None: not compared.
        """
        if list(files)[-1] != self.record:
            raise PacklineError(f"expected {self.record} last, found {list(files)[-1]}")
        if listed is not None:
            names = list(listed)
            wrong = {name for name in self.files() if not is_hidden(name)}
            wrong = wrong.symmetric_difference(names) - {*files}
            wrong |= {name for name, count in Counter(names).items() if count > 1}
            if wrong:
                place, name = self.storage.place, min(wrong)
                raise PacklineError(f"{place}: expected every file to be listed once, found {name!r} is not")
        for name, data in files.items():
            self.storage.put_new(name, data)

    def clear(self, names: Iterable[str]) -> None:
        """Delete the record first, then files: half a result is never taken for a whole one."""
        self.storage.delete([self.record])
        self.storage.delete(names)
