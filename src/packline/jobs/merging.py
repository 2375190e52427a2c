"""Merge finished stores into one, by hard links: no token is read, and none of the stores is changed.

Interrupted at any time, the same command continues: units whose receipts are there are kept, other files are
linked again, or copied across file systems.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.jobs.events import Note, OnEvent, Planned
from packline.jobs.folder import TOKENIZER_FILE, StoreFolder, read_published
from packline.jobs.identity import (
    Asked,
    BuildIdentity,
    differences,
    digest_inputs,
    refuse_differences,
)
from packline.jobs.resources import require_disk
from packline.storage.local import disk_errors, share_file, sync_file, sync_folder
from packline.storage.places import refuse_remote
from packline.store.files import HINT, FileEntry, StoreFiles, store_files
from packline.store.manifest import Manifest, manifest_files, refuse_empty, to_json
from packline.store.manifest_check import read_manifest
from packline.store.merging import merge_manifests
from packline.store.report import Findings
from packline.store.shard_check import check_file, check_files_of_shard
from packline.store.tables import RECEIPTS, REJECTS, InputRows
from packline.store.walk import StoreUnit, check_units, units_of

COPIED_TOGETHER = 1 << 30
"""Bytes of copies after which the units so far are committed."""


class Merged(msgspec.Struct, frozen=True):
    """Result of a merge."""

    manifest: Manifest
    seconds: float
    linked_bytes: int
    """Bytes that the store shares with the merged ones."""
    copied_bytes: int
    """Bytes that were copied, because the file system has no hard links between the places."""
    verified: bool
    """True if every checksum was compared, not only sizes."""
    nothing_to_do: bool = False


def run_merge(
    stores: Sequence[str | Path], out: str | Path, *, verify: bool = False, on_event: OnEvent | None = None
) -> Merged:
    """Merge stores, or resume a merge.

    Args:
        stores: folders of two or more finished stores; their sources come in this order.
        out: folder of the merged store: new, empty, or with this merge unfinished.
        verify: compare the checksum of every file, which reads all of them.

    Raises:
        StoreError: the stores do not fit together, or one has changed meanwhile.
        CorruptStore: a file is missing or damaged; names it.
        ResumeMismatch: `out` holds something else.
        OutOfSpace: the disk is full; the same command resumes.
    """
    places = [store_files(store) for store in stores]
    if len(places) < 2:
        raise RecipeError(f"found {len(places)} store to merge: expected two or more")
    refuse_remote(out, "a merged store")
    parts = [_Part(files, read_manifest(files)) for files in places]
    return _Merge(parts, Path(out), verify, on_event or (lambda event: None)).run()


class _Part(NamedTuple):
    files: StoreFiles
    manifest: Manifest

    @property
    def place(self) -> Any:
        return self.files.place

    def refuse_changed(self) -> None:
        """Refuse a store that is not the one that was read."""
        found = ""
        with contextlib.suppress(StoreError):
            found = read_manifest(self.files).checksum
        if found != self.manifest.checksum:
            raise StoreError(
                f"{self.place} changed while it was merged: expected the manifest {self.manifest.checksum}, "
                f"found {found or 'none that can be read'}",
                hint="run the command again once nothing writes into it",
            )


class _Merge:
    def __init__(self, parts: Sequence[_Part], out: Path, verify: bool, tell: OnEvent) -> None:
        self._started = time.monotonic()
        self._parts, self._verify, self._tell = parts, verify, tell
        self.manifest = merge_manifests([part.place for part in parts], [part.manifest for part in parts])
        self._folder = StoreFolder(out)
        self._linked = self._copied = 0
        self._unsynced: list[Path] = []
        """Copies that may not be on the disk yet."""
        self._receipts: list[tuple[_Part, FileEntry]] = []
        """Receipts of units whose files are there."""

    def run(self) -> Merged:
        """Link, check and publish."""
        folder = self._folder
        with folder:
            if (found := read_published(folder.place)) is not None:
                try:
                    self._refuse_other(found)
                finally:
                    self._clean()
                return self._result(nothing_to_do=True)
            first = self._parts[0]
            files = {entry.name: first.files.read(entry) for entry in first.manifest.tokenizer_files}
            folder.begin(self._identity(), files[TOKENIZER_FILE].decode("utf-8"))
            self._tell(Planned(units=len(self.manifest.units), units_done=0, workers=0))
            self._require_disk()
            with disk_errors(folder.path):
                for name, data in files.items():
                    folder.storage.put_new(name, data)
                self._take_over()
            for part in self._parts:
                part.refuse_changed()
            if self._verify:
                self._compare_checksums()
            folder.publish(manifest_files(self.manifest))
            self._clean()
            refuse_empty(folder.path, self.manifest)
            return self._result()

    def _take_over(self) -> None:
        rejects, have, synced = self._folder.path / REJECTS, set(self._folder.receipt_names()), 0
        rejects.mkdir(exist_ok=True)
        for part in self._parts:
            for unit in units_of(part.manifest):
                if unit.name in have:
                    continue
                for entry in unit.files:
                    self._share(part, entry)
                if unit.receipt is not None:
                    self._receipts.append((part, unit.receipt))
                if self._copied - synced >= COPIED_TOGETHER:
                    self._commit()
                    synced = self._copied
        self._commit()
        with contextlib.suppress(OSError):  # there are some
            rejects.rmdir()

    def _identity(self) -> BuildIdentity:
        manifest = self.manifest
        merged = {
            f"the store of {', '.join(part.manifest.sources)}": part.manifest.checksum for part in self._parts
        }
        return BuildIdentity(manifest.recipe, manifest.tokenizer.fingerprint, merged, digest_inputs([]))

    def _refuse_other(self, found: Manifest) -> None:
        if to_json(found) == to_json(self.manifest):
            return
        asked = (
            Asked(one.recipe, one.tokenizer.fingerprint, {}, _sizes(one.inputs))
            for one in (found, self.manifest)
        )
        lines = differences(*asked) or ["its manifest is another"]
        refuse_differences(self._folder.path, lines, "a store", "choose another --out")

    def _require_disk(self) -> None:
        place = os.stat(self._folder.path).st_dev
        copied = sum(
            part.manifest.store_bytes
            for part in self._parts
            if not isinstance(part.place, Path) or os.stat(part.place).st_dev != place
        )
        require_disk(self._folder.path, copied, "copies of the stores")

    def _share(self, part: _Part, entry: FileEntry) -> None:
        target = self._folder.path / entry.name
        source = part.files.local(entry)
        try:
            how = share_file(source, target, "auto" if part.files.is_local else "copy")
        except FileNotFoundError as error:
            raise CorruptStore(f"{source} disappeared while it was merged", hint=HINT) from error
        if (size := os.lstat(target).st_size) != entry.bytes:
            raise CorruptStore(
                f"{source}: expected {entry.bytes:,} bytes, found {size:,}",
                hint=f"packline verify {source.parent} shows what else is damaged",
            )
        if how == "linked":
            self._linked += entry.bytes
        else:
            self._copied += entry.bytes
            self._unsynced.append(target)

    def _commit(self) -> None:
        """Wait until the files of units are on the disk, then add their receipts."""
        path = self._folder.path
        self._sync(path, path / REJECTS)
        for part, receipt in self._receipts:
            self._share(part, receipt)
        self._receipts.clear()
        self._sync(path / RECEIPTS)

    def _sync(self, *folders: Path) -> None:
        for copied in self._unsynced:
            sync_file(copied)
        self._unsynced.clear()
        for folder in folders:
            sync_folder(folder)

    def _compare_checksums(self) -> None:
        """Read every file and compare its checksum; damage is located to the MiB."""
        findings, folder = Findings(), StoreFiles(self._folder.path)

        def check(unit: StoreUnit, findings: Findings) -> None:
            for shard in unit.shards:
                check_files_of_shard(folder, shard, findings)
            for entry in (unit.receipt, *unit.rejects):
                if entry is not None:
                    check_file(folder, entry, findings)

        for _ in check_units(folder, self.manifest, check, findings):
            pass
        for entry in self.manifest.tokenizer_files:
            check_file(folder, entry, findings)
        if findings.problems:
            problem = findings.problems[0]
            files = ((part.place, {one.name for one in part.manifest.files()}) for part in self._parts)
            places = ", ".join(str(place) for place, names in files if problem.file in names)
            raise CorruptStore(f"{places}: {problem}", hint=HINT)

    def _clean(self) -> None:
        if left := self._folder.clean():
            self._tell(Note(left))

    def _result(self, *, nothing_to_do: bool = False) -> Merged:
        manifest = read_manifest(self._folder.path)
        seconds = time.monotonic() - self._started
        return Merged(manifest, seconds, self._linked, self._copied, self._verify, nothing_to_do)


def _sizes(inputs: InputRows) -> list[tuple[str, int]]:
    names = zip(inputs.names("source"), inputs.names("name"), strict=True)
    sizes = inputs.numbers("bytes").tolist()
    return [(f"{name} of source {source}", size) for (source, name), size in zip(names, sizes, strict=True)]
