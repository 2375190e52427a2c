"""The place in which an export is made: next to its destination, or in an object store at it.

    local                            at a URI
    .OUT.packline/lock               SCRATCH/lock             held by the process that writes, or shared
    .OUT.packline/export.json        .packline/export.json    which export this is: its identity
    .OUT.packline/parts/000000.json  .packline/parts/...      receipts: the commit records of finished parts
    .OUT.packline/tmp/HOST-PID/      SCRATCH/tmp/HOST-PID/    unfinished files, where several processes write
    .OUT.packline/files/             OUT itself               files of finished parts
    OUT, by one rename               packline.json, last      the export is there from now on

A crash leaves parts with receipts, which the next run keeps, and files without one, which it deletes, or in
an object store finds to be equal. Processes that share an export write apart and name finished files with
`put_files`: equal files may be there already, others stop the export. Each of them may sum up and publish:
in a local folder it renames a private folder with links to the files of all parts, and one succeeds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.formats.export_record import (
    RECORD,
    ExportIdentity,
    ExportRecord,
    check_places,
    read_record,
    record_bytes,
)
from packline.formats.types import ExportPart
from packline.jobs.identity import refuse_differences
from packline.jobs.receipts import READERS
from packline.jobs.work import PARTS, WorkFolder, open_results, staging_folder, store_work_folder
from packline.recipe import recipe_difference
from packline.storage.local import LocalFolder, disk_errors, publish_bytes, publish_folder, sync_files
from packline.storage.places import is_remote
from packline.store.files import FileEntry
from packline.store.manifest import WORK
from packline.store.report import Findings

IDENTITY = "export.json"


def finished_export(out: str | Path, identity: ExportIdentity) -> ExportRecord | None:
    """The record of the same export at OUT; None if it is not complete.

    Raises:
        StoreError: OUT is something else.
        ResumeMismatch: OUT is another export; lists the differences.
        CorruptStore: OUT is this export, but files are missing or truncated.
    """
    return _finished_remote(str(out), identity) if is_remote(out) else _finished_local(Path(out), identity)


def _finished_local(out: Path, identity: ExportIdentity) -> ExportRecord | None:
    try:
        if not out.is_dir():
            if out.exists():
                raise StoreError(f"{out} is a file: expected a new folder", hint="choose another --out")
            return None
        first = min((path.name for path in out.iterdir()), default=None)
    except PermissionError as error:
        raise StoreError(f"cannot read {out}: {error.strerror}", hint="choose another --out") from error
    if first is None:
        return None
    record = read_record(out)
    if record is None:
        raise StoreError(
            f"{out} is not empty and holds no export of packline: found {first}",
            hint="choose a new or empty folder for --out",
        )
    refuse_another(out, record.identity, identity)
    check_places(out, record, findings := Findings())
    if findings.problems:
        raise CorruptStore(f"{out}: {findings.problems[0]}", hint=f"delete {out} and export again")
    return record


def _finished_remote(out: str, identity: ExportIdentity) -> ExportRecord | None:
    storage = open_results(out)
    sizes = {one.name: one.size for one in storage.walk()}
    if RECORD not in sizes:
        first = next((name for name in sizes if not name.startswith(f"{WORK}/")), None)
        if first is not None and f"{WORK}/{IDENTITY}" not in sizes:
            raise StoreError(
                f"{out} is not empty and holds no export of packline: found {first}",
                hint="choose a new or empty place for --out",
            )
        return None
    with tempfile.TemporaryDirectory(prefix="packline-") as copy:
        Path(copy, RECORD).write_bytes(storage.read(RECORD))
        record = read_record(Path(copy))
    assert record is not None
    refuse_another(out, record.identity, identity)
    for entry in record.files:
        if sizes.get(entry.name) != entry.bytes:
            found = "nothing" if entry.name not in sizes else f"{sizes[entry.name]:,}"
            raise CorruptStore(
                f"{out}/{entry.name}: expected {entry.bytes:,} bytes, found {found}",
                hint=f"delete what is at {out} and export again",
            )
    return record


def clear_leftovers(out: str | Path, identity: ExportIdentity) -> None:
    """Remove the leftovers of an export that was stopped just after its publication."""
    staging = Staging(out)
    if staging.is_remote:
        staging.clear_records()
        return
    if not staging.folder.is_dir():
        return
    try:
        staging.__enter__()
    except StoreError:
        return  # its process is about to remove it, or no one may
    staging.close(discard=staging.is_of(identity))


def refuse_another(place: str | Path, old: ExportIdentity, new: ExportIdentity) -> None:
    """Raise `ResumeMismatch` if two exports differ."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    if old.format != new.format:  # options then differ anyway
        before, after = {"format": old.format}, {"format": new.format}
    refuse_differences(
        place,
        recipe_difference(before, after),
        kind="an export",
        hint=f"choose another --out, or delete {place}",
    )


QUICK = 1 << 20
"""Bytes, apart from links, below which a part is not synced to disk."""


class PartReceipt(msgspec.Struct, frozen=True):
    """Commit record of a part whose files are on the disk."""

    part: ExportPart
    facts: dict[str, Any]
    files: tuple[FileEntry, ...]
    shared: dict[str, int]

    @property
    def linked_bytes(self) -> int:
        """Bytes of files that take no extra disk space."""
        return self.shared.get("linked", 0) + self.shared.get("reflinked", 0)

    @property
    def own_bytes(self) -> int:
        """Bytes of the other files."""
        return sum(entry.bytes for entry in self.files) - self.linked_bytes

    @property
    def is_quick(self) -> bool:
        """True if the part is little more than links: writing it again is faster than syncing its receipt."""
        return self.linked_bytes > 0 and self.own_bytes <= QUICK


class Staging(WorkFolder[ExportIdentity]):
    """An export in progress; unless it is shared, only one process can have it open.

    Args:
        out: place of the export: a local folder, or a URI.

    Raises:
        StoreBusy: another process is writing it.
        StoreError: the folder cannot be written.
    """

    busy, last = "another export is writing", RECORD

    def __init__(self, out: str | Path) -> None:
        self.out = str(out).rstrip("/") if is_remote(out) else str(out)
        if is_remote(out):
            folder, within = store_work_folder(self.out), f"{WORK}/"
            storage = open_results(self.out)
        else:
            folder, within = staging_folder(Path(out)), ""
            storage = LocalFolder(folder)
        records = {"record": f"{within}{IDENTITY}", "receipts": f"{within}{PARTS}"}
        super().__init__(self.out, storage, folder, ExportIdentity, **records)
        self.folder = folder
        self.files = folder / "files"
        """Folder of the files of finished parts, of a local export."""
        self._prefix = "" if self.is_remote else "files/"
        self._began = False

    @property
    def parent(self) -> Path:
        """Folder that must be writable."""
        return self.folder if self.is_remote else Path(self.out).parent

    def is_of(self, identity: ExportIdentity) -> bool:
        """True if the folder's content belongs to this export."""
        earlier = self.identity()
        return earlier is not None and msgspec.to_builtins(earlier) == msgspec.to_builtins(identity)

    def begin(self, identity: ExportIdentity, parts: tuple[ExportPart, ...]) -> dict[str, PartReceipt]:
        """Start, or resume an earlier run: the receipts of finished parts, by name.

        Raises:
            ResumeMismatch: the folder holds another export.
        """
        if (earlier := self.identity()) is not None:
            refuse_another(self.folder if not self.is_remote else self.out, earlier, identity)
        self._began = True
        self.record_run()
        alone = self.alone()
        if alone and earlier is not None:
            self.clear_unfinished()
        with disk_errors(self.folder):
            if not self.is_remote:
                for folder in (self.files, self.folder / PARTS):
                    folder.mkdir(exist_ok=True)
            if earlier is None and (other := self.record_identity(identity)) is not None:
                refuse_another(self.out, other, identity)
        kept = self.kept(parts)
        if alone and not self.is_remote:
            numbers = {f"{number:06d}" for number, part in enumerate(parts) if part.unit in kept}
            lost = [name for name in self.receipt_names() if name not in numbers]
            self.storage.delete([f"{self._receipts}/{name}.json" for name in lost])
            self._delete_all_but({entry.name for receipt in kept.values() for entry in receipt.files})
        self.admit_others()
        return kept

    def kept(self, parts: Sequence[ExportPart]) -> dict[str, PartReceipt]:
        """Receipts of finished parts by now, by name: those whose files are there, each of its size."""
        names = set(self.receipt_names())
        numbers = [number for number in range(len(parts)) if f"{number:06d}" in names]
        if not numbers:
            return {}
        start = len(self._prefix)
        sizes = {one.name[start:]: one.size for one in self.storage.walk(self._prefix.rstrip("/"))}
        return {
            part.unit: receipt
            for number, receipt in self._read(numbers, parts)
            if receipt is not None and receipt.part == (part := parts[number])
            if all(sizes.get(entry.name) == entry.bytes for entry in receipt.files)
        }

    def _read(
        self, numbers: Sequence[int], parts: Sequence[ExportPart]
    ) -> Iterator[tuple[int, PartReceipt | None]]:
        """Receipts of these parts, many at the same time where each is a request."""
        with ThreadPoolExecutor(READERS if self.is_remote else 1) as threads:
            found = threads.map(lambda number: self.find_receipt(number, parts[number]), numbers)
            yield from zip(numbers, found, strict=True)

    def find_receipt(self, number: int, part: ExportPart) -> PartReceipt | None:
        """Receipt of a part; None if it is not finished."""
        try:
            data = self.storage.read(f"{self._receipts}/{number:06d}.json")
        except FileNotFoundError:
            return None
        receipt = msgspec.json.decode(data, type=PartReceipt)
        return receipt if receipt.part == part else None

    def folder_of_parts(self, *, shared: bool) -> Path:
        """Folder in which this process writes parts: apart where others may write the same ones.

        Args:
            shared: other processes may write parts of the export.
        """
        return self.tmp if shared or self.is_remote else self.files

    def commit(self, number: int, receipt: PartReceipt, *, shared: bool = False) -> None:
        """Make the files of a part durable, and record that it is finished.

        Quick parts of an export that no other process writes are left to the next run instead.
        """
        names = [entry.name for entry in receipt.files]
        if shared or self.is_remote:
            self._put(self.tmp, names)
        elif receipt.is_quick:
            return
        else:
            sync_files(self.files, names)
        self.commit_record(f"{number:06d}", receipt)

    def _put(self, folder: Path, names: Iterable[str]) -> None:
        """Give files of a folder their names in the export; equal ones may be there already."""
        self.storage.put_files({f"{self._prefix}{name}": folder / name for name in names})

    def gather(self, names: Iterable[str]) -> Path:
        """Folder in which the files that sum up the parts are written; one to be renamed has all parts.

        Args:
            names: names of the files of all parts.
        """
        if self.is_remote:
            return self.tmp
        if not self.shared:
            return self.files
        folder = self.tmp / "whole"
        with disk_errors(self.folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.files / name, folder / name)
        return folder

    def publish(self, record: ExportRecord, folder: Path | None = None, own: Sequence[str] = ()) -> None:
        """Publish the export, all at once; another process may have published the same.

        Args:
            folder: folder with the files that sum up the parts (`gather`); None: that of all files.
            own: names of these files.

        Raises:
            PacklineError: a file was not entered, or entered twice.
            StoreError: something else is there.
        """
        folder = folder or self.files
        if self.is_remote:
            self._put(folder, own)
            names = (one.name for one in self.storage.walk())
            _check_files(self.out, {name for name in names if not name.startswith(f"{WORK}/")}, record.files)
            self.storage.put_new(RECORD, record_bytes(record))
            self.clear_records()
            return
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        _check_files(folder, files, record.files)
        publish_bytes(folder / RECORD, record_bytes(record))
        try:
            publish_folder(folder, Path(self.out))
        except FileExistsError as error:
            found = finished_export(self.out, record.identity) if self.shared else None
            if found is not None and record_bytes(found) == record_bytes(record):
                return
            raise StoreError(
                f"{self.out} was made by something else while the export ran",
                hint="move it away and run the same command again",
            ) from error

    def close(self, *, discard: bool = False) -> None:
        """Release the folder; it is removed if it holds nothing worth keeping, or if `discard` is set."""
        if self.descriptor >= 0 and self.alone():
            parts = self.folder / PARTS
            kept = not discard and parts.is_dir() and any(parts.iterdir()) and self.files.is_dir()
            if (discard or self._began or not (self.folder / IDENTITY).exists()) and not kept:
                shutil.rmtree(self.folder, ignore_errors=True)
        super().close()

    def _delete_all_but(self, names: set[str]) -> None:
        for path in sorted(self.files.rglob("*"), reverse=True):  # files of a folder before the folder itself
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(self.files).as_posix() not in names:
                path.unlink()


def _check_files(place: str | Path, found: set[str], entries: tuple[FileEntry, ...]) -> None:
    """Check the files of an export against the record; an unknown file is a bug in the format."""
    counts = Counter(entry.name for entry in entries)
    wrong = found.symmetric_difference(counts) or {name for name, count in counts.items() if count > 1}
    if wrong - {RECORD}:
        raise PacklineError(f"{place}: expected every file to be entered once, found {min(wrong)!r} is not")
