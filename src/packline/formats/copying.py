"""A store, an export or any folder from one storage into another, with its record last.

Files and folders whose names begin with a dot are left out: caches, and the work folders of unfinished jobs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from packline.conversion import refuse_toml
from packline.errors import CorruptStore, PacklineError, StoreError, StoreNotFound, refuse_unknown_names
from packline.fingerprint import hash_bytes
from packline.formats.export_folder import RECORD, read_record
from packline.storage.copying import Copier, forget_waiting
from packline.storage.local import Link, LocalFolder
from packline.storage.objects import ObjectFolder, probe
from packline.storage.places import is_hidden, join, open_results, open_storage, resolved
from packline.storage.results import (
    BUILD_BEGUN,
    EXPORT_BEGUN,
    FileFacts,
    Storage,
    other_content,
    unfinished_export,
)
from packline.store.files import FileEntry
from packline.store.manifest import MANIFEST
from packline.store.manifest_check import read_manifest, read_manifest_file

OnProgress = Callable[[int, int], None]


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a copy."""

    kind: str
    """`store`, `export` or `folder`."""
    files: int
    bytes: int
    found_files: int
    """Number of `files` that the target had already."""
    linked_bytes: int
    """Number of `bytes` that share their blocks with the source."""
    unlisted_files: int
    """Files that no manifest or record lists."""
    left_out: int
    """Files with a name or folder that begins with a dot."""
    verified: bool
    """The target was read and compared."""
    seconds: float


@refuse_unknown_names
def copy(
    source: str | Path,
    target: str | Path,
    *,
    verify: bool = False,
    link: Link = "auto",
    one_writer: bool = False,
    on_progress: OnProgress | None = None,
) -> Copied:
    """Copy a store, an export or any folder into another place, or resume an interrupted copy.

    Files are created, never overwritten; the manifest of a store is last, so a copy that has one is whole.
    What is read is compared with the checksums of the manifest. Hidden files are left out.

    Args:
        source: folder, or URI of an object store: s3://bucket/key, gs://bucket/key or az://container/key.
        target: the same; new, empty, or with a part of this copy.
        verify: read the target back and compare it, too.
        link: how to share bytes between two folders: links where possible (`auto`), or `copy`.
        one_writer: accept an object store that ignores conditions, because nothing else writes there.
        on_progress: called with the bytes done and the bytes of all files.

    Raises:
        StoreNotFound: there is nothing, or a build that has not finished.
        CorruptStore: a file of the source is missing or damaged.
        StoreError: the target contains something else, or a storage cannot be reached.
        OutOfSpace: the disk is full; the same call resumes.

    >>> import tempfile
    >>> from packline.testing import make_store
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = make_store(folder / "one", [[5, 2]])
    >>> copied = copy(store.path, folder / "two")
    >>> copied.kind, copied.files > 5, copy(store.path, folder / "two").found_files == copied.files
    ('store', True, True)
    """
    began = time.monotonic()
    reading, writing = open_storage(source), open_results(str(target))
    if isinstance(writing, ObjectFolder):
        writing.one_writer = one_writer or writing.one_writer
    _refuse_overlap(reading, writing)
    kind, record, listed = _contents(reading)
    found = list(reading.walk())
    visible = [facts for facts in found if not is_hidden(facts.name)]
    if not visible:
        refuse_toml(source, "the folder of a store, or another folder")
        raise StoreNotFound(f"{reading.place} has no files", hint="check the path or URI")
    files = _files(reading, visible, listed, record)
    there = {facts.name: facts for facts in writing.walk() if not is_hidden(facts.name)}
    last = reading.read(record) if record else b""
    _refuse_target(writing, there, {facts.name for facts in visible}, record, last)
    probe(writing)
    whole, done = sum(file.size for file in files) + len(last), [0]

    def hear(size: int) -> None:
        done[0] += size
        if on_progress is not None:
            on_progress(done[0], whole)

    if isinstance(writing, LocalFolder):
        writing.path.mkdir(parents=True, exist_ok=True)
    copier = Copier(reading, writing, there, link=link, verify=verify, on_bytes=hear)
    copier.run(files)
    counts = copier.counts
    if record:
        counts.found_files += not writing.put_new(record, last)
        counts.files, counts.bytes = counts.files + 1, counts.bytes + len(last)
        hear(len(last))
    forget_waiting(writing)
    names = {entry.name for entry in listed}
    return Copied(
        kind=kind,
        files=counts.files,
        bytes=counts.bytes,
        found_files=counts.found_files,
        linked_bytes=counts.linked_bytes,
        unlisted_files=sum(file.name not in names for file in files) if record else 0,
        left_out=len(found) - len(visible),
        verified=verify,
        seconds=time.monotonic() - began,
    )


def _refuse_overlap(reading: Storage, writing: Storage) -> None:
    one, other = (f"{resolved(storage.place)}/" for storage in (reading, writing))
    if one.startswith(other) or other.startswith(one):
        raise StoreError(
            f"{writing.place} overlaps {reading.place}: expected two separate places", hint="choose another"
        )


def _contents(reading: Storage) -> tuple[str, str, list[FileEntry]]:
    """Kind of a folder, the name of its record, and the files that it lists."""
    with tempfile.TemporaryDirectory(prefix="packline-") as temporary:
        folder = reading.path if isinstance(reading, LocalFolder) else Path(temporary)

        def bring(names: Iterable[str]) -> None:
            for name in names if not isinstance(reading, LocalFolder) else ():
                (folder / name).write_bytes(reading.read(name))

        try:
            if reading.facts(MANIFEST) is not None:
                bring([MANIFEST])
                bring(entry.name for entry in read_manifest_file(folder).tables)
                return "store", MANIFEST, list(read_manifest(folder).files())
            if reading.facts(BUILD_BEGUN) is not None:
                raise StoreNotFound(
                    f"{reading.place} holds a build that has not finished",
                    hint="finish it, then copy the store",
                )
            if reading.facts(RECORD) is not None:
                bring([RECORD])
                record = read_record(folder)
                return "export", RECORD, list(record.files) if record else []
        except PacklineError as error:
            error.message = error.message.replace(temporary, reading.place)
            raise
    if reading.facts(EXPORT_BEGUN) is not None:
        raise unfinished_export(reading.place)
    return "folder", "", []


def _files(reading: Storage, found: list[FileFacts], listed: list[FileEntry], record: str) -> list[FileFacts]:
    sizes = {facts.name: facts.size for facts in found}
    for entry in listed:
        if sizes.get(entry.name) != entry.bytes:
            size = sizes.get(entry.name)
            raise CorruptStore(
                f"{join(reading.place, entry.name)} disagrees with {record}: expected {entry.bytes:,} bytes, "
                f"found {'no file' if size is None else f'{size:,} bytes'}",
                hint="it cannot be copied; packline verify lists all that is wrong",
            )
    checksums = {entry.name: entry.checksum for entry in listed}
    return [
        msgspec.structs.replace(facts, checksum=checksums.get(facts.name, ""))
        for facts in found
        if facts.name != record
    ]


def _refuse_target(
    writing: Storage, there: dict[str, FileFacts], names: set[str], record: str, last: bytes
) -> None:
    if isinstance(writing, LocalFolder) and writing.path.exists() and not writing.path.is_dir():
        raise StoreError(f"{writing.place} is a file: expected a folder", hint="choose another target")
    if foreign := min(there.keys() - names, default=""):
        raise StoreError(
            f"{writing.place} is not empty: found {foreign}, which {record or 'the source'} does not have",
            hint="choose a new or empty place",
        )
    if record in there:
        if (found := writing.read(record)) != last:
            raise other_content(join(writing.place, record), hash_bytes(last), hash_bytes(found))
    elif writing.facts(BUILD_BEGUN) is not None:
        raise StoreError(f"{writing.place} holds an unfinished build", hint="choose a new or empty place")
