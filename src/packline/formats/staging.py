"""The folder in which an export is made, next to its destination.

    .OUT.packline/lock             held by the process that writes
    .OUT.packline/export.json      which export this is: its identity
    .OUT.packline/parts/000000.json  receipts: the commit record of each finished part
    .OUT.packline/tmp/HOST-PID/    unfinished files of a process, where several share the parts
    .OUT.packline/files/           becomes OUT, by one rename, when all is there

A crash leaves parts with receipts, which the next run keeps, and files without one, which it deletes. OUT
does not exist before the export is complete.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
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
from packline.jobs.work import PARTS, WorkFolder, staging_folder
from packline.recipe import recipe_difference
from packline.storage.local import LocalFolder, disk_errors, publish_bytes, publish_folder
from packline.storage.sharing import sync_files
from packline.store.files import FileEntry
from packline.store.manifest import to_json
from packline.store.report import Findings


def finished_export(out: Path, identity: ExportIdentity) -> ExportRecord | None:
    """The record of the same export at OUT; None if nothing is there yet.

    Raises:
        StoreError: OUT is something else.
        ResumeMismatch: OUT is another export; lists the differences.
        CorruptStore: OUT is this export, but files are missing or truncated.
    """
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


def clear_leftovers(out: Path, identity: ExportIdentity) -> None:
    """Remove the leftovers next to OUT of an export that was stopped just after its publication."""
    if not staging_folder(out).is_dir():
        return
    staging = Staging(out)
    try:
        staging.__enter__()
    except StoreError:
        return  # its process is about to remove it, or no one may
    staging.close(discard=staging.is_of(identity))


def refuse_another(place: Path, old: ExportIdentity, new: ExportIdentity) -> None:
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
    """An export in progress; only one process can have it open.

    Raises:
        StoreBusy: another process is writing it.
        StoreError: the folder cannot be written.
    """

    busy = "another export is writing"

    def __init__(self, out: Path) -> None:
        folder = staging_folder(out)
        super().__init__(LocalFolder(folder), folder, ExportIdentity, record="export.json", receipts=PARTS)
        self.out, self.folder, self.files = out, folder, folder / "files"
        self._parts = folder / PARTS
        self._began = False

    @property
    def place(self) -> str:
        """Path of the export."""
        return str(self.out)

    @property
    def parent(self) -> Path:
        """Folder that must be writable."""
        return self.out.parent

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
            refuse_another(self.folder, earlier, identity)
        self._began = True
        if earlier is not None:
            self.clear_unfinished()
        with disk_errors(self.folder):
            for folder in (self.files, self._parts):
                folder.mkdir(exist_ok=True)
            if earlier is None:
                self.storage.put_new(self._record, to_json(identity))
        kept: dict[str, PartReceipt] = {}
        for number, part in enumerate(parts):
            place = self._receipt(number)
            if not place.exists():
                continue
            receipt = msgspec.json.decode(place.read_bytes(), type=PartReceipt)
            if receipt.part == part and all(
                _size(self.files / entry.name) == entry.bytes for entry in receipt.files
            ):
                kept[part.unit] = receipt
            else:
                place.unlink()
        self._delete_all_but({entry.name for receipt in kept.values() for entry in receipt.files})
        return kept

    def find_receipt(self, number: int, part: ExportPart) -> PartReceipt | None:
        """Receipt of a part; None if it is not finished."""
        try:
            receipt = msgspec.json.decode(self._receipt(number).read_bytes(), type=PartReceipt)
        except FileNotFoundError:
            return None
        return receipt if receipt.part == part else None

    def admit(self, names: Sequence[str]) -> None:
        """Move complete files of this process to those of the export; equal ones may be there already."""
        with disk_errors(self.folder):
            sync_files(self.tmp, names)
            for name in names:
                place = self.files / name
                place.parent.mkdir(parents=True, exist_ok=True)
                (self.tmp / name).replace(place)

    def commit(self, number: int, receipt: PartReceipt) -> None:
        """Record that a part is finished; its files are on the disk."""
        self.commit_record(f"{number:06d}", receipt)

    def publish(self, record: ExportRecord) -> None:
        """Publish the export at OUT, all at once.

        Raises:
            PacklineError: a file was not entered, or entered twice.
        """
        _check_files(self.files, record.files)
        publish_bytes(self.files / RECORD, record_bytes(record))
        try:
            publish_folder(self.files, self.out)
        except FileExistsError as error:
            raise StoreError(
                f"{self.out} was made by something else while the export ran",
                hint="move it away and run the same command again",
            ) from error

    def close(self, *, discard: bool = False) -> None:
        """Release the folder; it is removed if it holds nothing worth keeping, or if `discard` is set."""
        kept = not discard and self._parts.is_dir() and any(self._parts.iterdir()) and self.files.is_dir()
        if (discard or self._began or not (self.folder / "export.json").exists()) and not kept:
            shutil.rmtree(self.folder, ignore_errors=True)
        super().close()

    def _receipt(self, number: int) -> Path:
        return self._parts / f"{number:06d}.json"

    def _delete_all_but(self, names: set[str]) -> None:
        for path in sorted(self.files.rglob("*"), reverse=True):  # files of a folder before the folder itself
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(self.files).as_posix() not in names:
                path.unlink()


def _check_files(folder: Path, entries: tuple[FileEntry, ...]) -> None:
    """Check the files of a folder against the record; an unknown file is a bug in the format."""
    counts = Counter(entry.name for entry in entries)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    wrong = found.symmetric_difference(counts) or {name for name, count in counts.items() if count > 1}
    if wrong - {RECORD}:
        raise PacklineError(f"{folder}: expected every file to be entered once, found {min(wrong)!r} is not")


def _size(path: Path) -> int:
    """Size of a file in bytes; -1 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
