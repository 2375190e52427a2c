"""An export in progress: its parts, committed one by one, and the record that completes it.

    OUT/.packline/export.json          identity of the export
    OUT/.packline/parts/000000.json    commit record of a part, written after its files
    OUT/train.bin ...                  files of committed parts
    OUT/packline.json                  written last: with it the export is complete

All are created once and never changed, also by several processes that write the same export.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore
from packline.formats.export_record import RECORD, ExportIdentity, ExportRecord, parse_record
from packline.formats.types import ExportPart
from packline.jobs.identity import refuse_differences
from packline.jobs.receipts import READERS
from packline.jobs.work import PARTS, WorkFolder
from packline.recipe import recipe_difference
from packline.storage.results import EXPORT_BEGUN, WORK
from packline.store.files import FileEntry

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
    """An export in progress; unless it is shared, only one process can have it open."""

    busy, what = "another export is writing", "export of packline"

    def __init__(self, out: str | Path) -> None:
        self.out = str(out)
        super().__init__(self.out, ExportIdentity, EXPORT_BEGUN, f"{WORK}/{PARTS}", RECORD)

    def finished(self, identity: ExportIdentity) -> ExportRecord | None:
        """The record of the same export; None if it is not complete."""
        try:
            data = self.storage.read(RECORD)
        except (FileNotFoundError, NotADirectoryError):
            self.refuse_foreign(EXPORT_BEGUN, self.what)
            return None
        record = parse_record(f"{self.out}/{RECORD}", data)
        refuse_another(self.out, record.identity, identity)
        sizes = self.files()
        for entry in record.files:
            if sizes.get(entry.name) != entry.bytes:
                found = f"{sizes[entry.name]:,}" if entry.name in sizes else "nothing"
                raise CorruptStore(
                    f"{self.out}/{entry.name}: expected {entry.bytes:,} bytes, found {found}",
                    hint=f"delete {self.out} and export again",
                )
        return record

    def begin(self, identity: ExportIdentity, parts: tuple[ExportPart, ...]) -> dict[str, PartReceipt]:
        """Start, or resume an earlier run: the receipts of finished parts, by name."""
        self.resume(identity, lambda earlier: refuse_another(self.out, earlier, identity), units=len(parts))
        return self.kept(parts)

    def kept(self, parts: Sequence[ExportPart]) -> dict[str, PartReceipt]:
        """Receipts of finished parts by now, by name: those whose files are there, each of its size."""
        names = self.receipt_names()
        numbers = [number for number in range(len(parts)) if f"{number:06d}" in names]
        if not numbers:
            return {}
        sizes = self.files()
        with ThreadPoolExecutor(READERS if self.local is None else 1) as threads:  # each may be a request
            found = threads.map(lambda number: self.find_receipt(number, parts[number]), numbers)
            return {
                receipt.part.unit: receipt
                for receipt in found
                if receipt is not None
                if all(sizes.get(entry.name) == entry.bytes for entry in receipt.files)
            }

    def find_receipt(self, number: int, part: ExportPart) -> PartReceipt | None:
        try:
            data = self.storage.read(f"{self._receipts}/{number:06d}.json")
        except FileNotFoundError:
            return None
        receipt = msgspec.json.decode(data, type=PartReceipt)
        return receipt if receipt.part == part else None

    def commit(self, number: int, receipt: PartReceipt, *, shared: bool = False) -> None:
        """Publish the files of a part, then its receipt.

        Quick parts of an export that no other process writes wait for the end instead: all at once.
        """
        if receipt.is_quick and not shared and self.local is not None:
            return
        self.put(entry.name for entry in receipt.files)
        self.commit_record(f"{number:06d}", receipt)

    def put(self, names: Iterable[str]) -> None:
        """Give files of this process their names in the export, those that have not got them yet."""
        files = {name: self.tmp / name for name in names}
        self.storage.put_files({name: path for name, path in files.items() if path.exists()})

    def __exit__(self, *error: object) -> None:
        """Release the folder; nothing is left of an export that has written nothing."""
        try:
            if self.descriptor >= 0 and self.local is not None and self.alone() and not self.files():
                with contextlib.suppress(OSError):
                    self.remove_work()
                    self.path.rmdir()
        finally:
            super().__exit__(*error)


def refuse_another(place: str | Path, old: ExportIdentity, new: ExportIdentity) -> None:
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    if old.format != new.format:  # options then differ anyway
        before, after = {"format": old.format}, {"format": new.format}
    refuse_differences(
        place,
        recipe_difference(before, after),
        kind="an export",
        hint=f"choose another --out, or delete {place}",
    )
