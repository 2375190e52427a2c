"""Merge finished stores into one, by hard links: no token is read, and none of the stores is changed.

Interrupted at any time, the same command continues: units whose receipts are there are kept, other files are
linked again, or copied across file systems.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from packline.errors import CorruptStore, RecipeError, StoreError
from packline.jobs.events import Note, OnEvent, Planned
from packline.jobs.folder import (
    TOKENIZER_FILE,
    Asked,
    BuildIdentity,
    StoreFolder,
    differences,
    digest_inputs,
    read_published,
    refuse_differences,
)
from packline.jobs.resources import require_disk
from packline.storage.local import disk_errors, share_file, sync_file, sync_folder
from packline.storage.places import refuse_remote
from packline.store.files import HINT, FileEntry, StoreFiles, store_files
from packline.store.manifest import Manifest, manifest_files, refuse_empty, to_json, units_of
from packline.store.manifest_check import read_manifest
from packline.store.merging import merge_manifests
from packline.store.tables import RECEIPTS, REJECTS, InputRows

COPIED_TOGETHER = 1 << 30
"""Bytes of copies after which the units so far are committed."""


class Merged(msgspec.Struct, frozen=True):
    manifest: Manifest
    seconds: float
    linked_bytes: int
    """Bytes that the store shares with the merged ones."""
    copied_bytes: int
    """Bytes that were copied, because the file system has no hard links between the places."""
    nothing_to_do: bool = False


class _Part(NamedTuple):
    files: StoreFiles
    manifest: Manifest

    @property
    def place(self) -> Any:
        return self.files.place

    def refuse_changed(self) -> None:
        found = ""
        with contextlib.suppress(StoreError):
            found = read_manifest(self.files).checksum
        if found != self.manifest.checksum:
            raise StoreError(
                f"{self.place} changed while it was merged: expected the manifest {self.manifest.checksum}, "
                f"found {found or 'none that can be read'}",
                hint="run the command again once nothing writes into it",
            )


def run_merge(stores: Sequence[str | Path], out: str | Path, *, on_event: OnEvent | None = None) -> Merged:
    """Merge stores, or resume a merge.

    Args:
        stores: folders of two or more finished stores; their sources come in this order.
        out: folder of the merged store: new, empty, or with this merge unfinished.
    """
    started = time.monotonic()
    places = [store_files(store) for store in stores]
    if len(places) < 2:
        raise RecipeError(f"found {len(places)} store to merge: expected two or more")
    refuse_remote(out, "a merged store")
    parts = [_Part(files, read_manifest(files)) for files in places]
    manifests = [part.manifest for part in parts]
    manifest = merge_manifests([part.place for part in parts], manifests)
    folder, tell = StoreFolder(out), on_event or (lambda event: None)
    shared = Counter[str]()

    def result(*, nothing_to_do: bool = False) -> Merged:
        if left := folder.clean():
            tell(Note(left))
        merged, seconds = read_manifest(folder.path), time.monotonic() - started
        return Merged(merged, seconds, shared["linked"], shared.total() - shared["linked"], nothing_to_do)

    with folder:
        if (found := read_published(folder.place)) is not None:
            _refuse_other(folder, found, manifest)
            return result(nothing_to_do=True)
        files = {entry.name: parts[0].files.read(entry) for entry in parts[0].manifest.tokenizer_files}
        merged = {f"the store of {', '.join(one.sources)}": one.checksum for one in manifests}
        identity = BuildIdentity(manifest.recipe, manifest.tokenizer.fingerprint, merged, digest_inputs([]))
        folder.begin(identity, files[TOKENIZER_FILE].decode("utf-8"))
        tell(Planned(units=len(manifest.units), units_done=0, workers=0))
        disk = os.stat(folder.path).st_dev
        apart = (one for one in parts if not one.files.is_local or os.stat(one.place).st_dev != disk)
        copied = sum(one.manifest.store_bytes for one in apart)
        require_disk(folder.path, copied, "copies of the stores")
        with disk_errors(folder.path):
            for name, data in files.items():
                folder.storage.put_new(name, data)
            _take_over(folder, parts, shared)
        for part in parts:
            part.refuse_changed()
        folder.publish(manifest_files(manifest))
        done = result()
        refuse_empty(folder.path, manifest)
        return done


def _take_over(folder: StoreFolder, parts: Sequence[_Part], shared: Counter[str]) -> None:
    """Share the files of units that are not committed, and commit them; `shared` adds up bytes."""
    path, have = folder.path, folder.receipt_names()
    (path / REJECTS).mkdir(exist_ok=True)
    receipts: list[tuple[_Part, FileEntry]] = []
    copies: list[Path] = []
    synced = 0

    def share(part: _Part, entry: FileEntry) -> None:
        how = _share(part, entry, path / entry.name)
        shared[how] += entry.bytes
        if how != "linked":
            copies.append(path / entry.name)

    def sync(*folders: Path) -> None:
        for copy in copies:
            sync_file(copy)
        copies.clear()
        for one in folders:
            sync_folder(one)

    def commit() -> None:
        sync(path, path / REJECTS)
        for part, receipt in receipts:
            share(part, receipt)
        receipts.clear()
        sync(path / RECEIPTS)

    for part in parts:
        for unit in units_of(part.manifest):
            if unit.name in have:
                continue
            for entry in unit.files:
                share(part, entry)
            if unit.receipt is not None:
                receipts.append((part, unit.receipt))
            if (copied := shared.total() - shared["linked"]) - synced >= COPIED_TOGETHER:
                commit()
                synced = copied
    commit()
    with contextlib.suppress(OSError):  # there are some
        (path / REJECTS).rmdir()


def _share(part: _Part, entry: FileEntry, target: Path) -> str:
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
    return how


def _refuse_other(folder: StoreFolder, found: Manifest, manifest: Manifest) -> None:
    if to_json(found) == to_json(manifest):
        return
    folder.clean()
    there, wanted = (
        Asked(one.recipe, one.tokenizer.fingerprint, {}, _sizes(one.inputs)) for one in (found, manifest)
    )
    lines = differences(there, wanted) or ["its manifest is another"]
    refuse_differences(folder.path, lines, "a store", "choose another --out")


def _sizes(inputs: InputRows) -> list[tuple[str, int]]:
    names = zip(inputs.names("source"), inputs.names("name"), strict=True)
    sizes = inputs.numbers("bytes").tolist()
    return [(f"{name} of source {source}", size) for (source, name), size in zip(names, sizes, strict=True)]
