"""What the tests of the store share: building one, damaging one, and making the damage hold together.

A flipped bit is found by a checksum. To see that what lies behind the checksums is checked too, `reseal`
writes receipts and manifest anew, as somebody would who changed a store and covered the traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import packline
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store.files import FileEntry
from packline.store.manifest import Manifest, Receipt, StreamReceipt, assemble, to_json, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.report import Report
from packline.store.shard import BlockSums
from packline.store.tables import InputEntry, InputRows, ShardEntry, ShardRows, UnitEntry, UnitRows
from packline.testing import write_manifest

EOD = "<|endoftext|>"


def build_store(source: Path, tokenizer: Path, out: Path, **settings: Any) -> Store:
    return packline.build(source, tokenizer, out=out, workers=0, **{"eod": EOD, **settings})


def names(manifest: Manifest) -> list[str]:
    return [entry.name for entry in manifest.files()]


def said(report: Report) -> str:
    return "\n".join(map(str, report.problems))


def edit_tokens(folder: Path, shard: str, change: Callable[[np.ndarray], None]) -> None:
    path = folder / f"{shard}.bin"
    tokens = np.fromfile(path, np.dtype(read_manifest(folder).dtype))
    change(tokens)
    tokens.tofile(path)


def relist(folder: Path) -> Store:
    """Write into the manifest what the shards' files are now, loss masks that were added included."""

    def shard(old: ShardEntry) -> ShardEntry:
        renew_sums(folder, old.name)
        entries = []
        for ending in ("bin", "idx", "docs.parquet", "loss", "sums"):
            path = folder / f"{old.name}.{ending}"
            if path.exists():
                data = path.read_bytes()
                entries.append(FileEntry(path.name, len(data), hash_bytes(data)))
        return msgspec.structs.replace(old, files=tuple(entries))

    manifest = read_manifest(folder)
    write_manifest(folder, with_rows(manifest, shards=map(shard, manifest.shards)))
    return Store(folder)


def renew_sums(folder: Path, shard: str) -> None:
    found = []
    for ending in ("bin", "idx", "docs.parquet", "loss"):
        path = folder / f"{shard}.{ending}"
        if path.exists():
            sums = BlockSums()
            sums.update(path.read_bytes())
            found.append(sums.finish())
    np.concatenate(found).tofile(folder / f"{shard}.sums")


def with_rows(
    manifest: Manifest,
    *,
    shards: Iterable[ShardEntry] | None = None,
    inputs: Iterable[InputEntry] | None = None,
    units: Iterable[UnitEntry] | None = None,
) -> Manifest:
    if inputs is not None:
        manifest = with_tables(manifest, inputs=InputRows.from_entries(inputs))
    if units is not None:
        manifest = with_tables(manifest, units=UnitRows.from_entries(units))
    if shards is not None:
        listed_units = manifest.units
        sources = dict(zip(listed_units.names("unit"), listed_units.names("source"), strict=True))
        named = ((shard.name.partition("-")[2], shard) for shard in shards)
        some = next(iter(manifest.sources))
        listed = ((unit, sources.get(unit, some), shard) for unit, shard in named)
        manifest = with_tables(manifest, shards=ShardRows.from_entries(listed))
    return with_tables(manifest)


def reseal(
    folder: Path,
    change_receipt: Callable[[Receipt], Receipt] = lambda receipt: receipt,
    change_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    *,
    renew: bool = True,
) -> None:
    """Write receipts and manifest so that every size and checksum is that of the file as it is now."""
    manifest = read_manifest(folder)

    def entry(old: FileEntry) -> FileEntry:
        data = (folder / old.name).read_bytes()
        return FileEntry(old.name, len(data), hash_bytes(data))

    def shard(old: ShardEntry) -> ShardEntry:
        if renew:
            renew_sums(folder, old.name)
        return msgspec.structs.replace(old, files=tuple(map(entry, old.files)))

    receipts, streams = [], {}
    for old in manifest.units:
        path = folder / old.receipt.name
        if path.name.endswith(".stream.json"):
            name = path.name.removesuffix(".stream.json")
            streams[name] = msgspec.json.decode(path.read_bytes(), type=StreamReceipt)
            continue
        receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
        receipt = msgspec.structs.replace(
            receipt, shards=tuple(map(shard, receipt.shards)), rejects=tuple(map(entry, receipt.rejects))
        )
        receipt = change_receipt(receipt)
        path.write_bytes(to_json(receipt))
        receipts.append(receipt)
    made = assemble(
        receipts,
        recipe=manifest.recipe,
        tokenizer=manifest.tokenizer,
        dtype=manifest.dtype,
        inputs=manifest.inputs,
        receipt_files=[
            entry(old.receipt)
            for old in sorted(manifest.units, key=lambda unit: unit.unit.endswith(".stream"))
        ],
        tokenizer_files=tuple(map(entry, manifest.tokenizer_files)),
        streams=streams,
        imported=manifest.imported,
        val_share=manifest.val_share,
    )
    write_manifest(folder, change_manifest(made))
