"""A store of very many shards, made from a small one in seconds: each shard is a unit of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store.files import FileEntry
from packline.store.manifest import InputPiece, Manifest, Receipt, join_checksums, to_json, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.naming import slug_of
from packline.store.tables import InputRows, ShardEntry, ShardRows, UnitEntry, UnitRows
from packline.testing import write_manifest

LINKS = 30_000
"""Names of one file; ext4 allows 65,000."""


def multiply(store: Store, folder: Path, count: int) -> Path:
    """Write a store of `count` shards that are all equal to the one shard of a store.

    Args:
        store: of one unit with one shard, from one input.
        folder: is made.
    """
    manifest = read_manifest(store.path)
    (model,), (listed,) = manifest.shards, manifest.units
    receipt = msgspec.json.decode((store.path / listed.receipt.name).read_bytes(), type=Receipt)
    (piece,) = receipt.inputs
    (folder / "receipts").mkdir(parents=True)
    shutil.copytree(store.path / "tokenizer", folder / "tokenizer")
    held: list[Path] = []
    shards: list[ShardEntry] = []
    receipts: list[FileEntry] = []
    size = piece.stop - piece.start
    for number in range(count):
        unit = f"{slug_of(receipt.source)}-{number:06d}"
        if number % LINKS == 0:
            held = [folder / f"train-{unit}{one.name.removeprefix(model.name)}" for one in model.files]
            for one, path in zip(model.files, held, strict=True):
                shutil.copyfile(store.path / one.name, path)
        files = tuple(
            FileEntry(f"train-{unit}{one.name.removeprefix(model.name)}", one.bytes, one.checksum)
            for one in model.files
        )
        if number % LINKS:
            for one, path in zip(files, held, strict=True):
                os.link(path, folder / one.name)
        shard = ShardEntry(f"train-{unit}", "train", model.documents, model.tokens, files)
        place = InputPiece(piece.file, number * size, (number + 1) * size, piece.checksum)
        data = to_json(msgspec.structs.replace(receipt, unit=unit, inputs=(place,), shards=(shard,)))
        name = f"receipts/{unit}.json"
        (folder / name).write_bytes(data)
        receipts.append(FileEntry(name, len(data), hash_bytes(data)))
        shards.append(shard)
    write_manifest(folder, _manifest(manifest, piece, shards, receipts))
    return folder


def _manifest(
    model: Manifest, piece: InputPiece, shards: list[ShardEntry], receipts: list[FileEntry]
) -> Manifest:
    count = len(shards)
    ledger = type(model.ledger)(
        **{
            name: getattr(model.ledger, name) * count
            for name in model.ledger.__struct_fields__
            if isinstance(getattr(model.ledger, name), int)
        }
    )
    whole = msgspec.structs.replace(
        model.inputs[0],
        bytes=(piece.stop - piece.start) * count,
        checksum=join_checksums([piece.checksum] * count),
    )
    model = msgspec.structs.replace(model, ledger=ledger, sources=dict.fromkeys(model.sources, ledger))
    named = ((shard.name.partition("-")[2], whole.source, shard) for shard in shards)
    units = (UnitEntry(Path(entry.name).stem, whole.source, entry) for entry in receipts)
    return with_tables(
        model,
        shards=ShardRows.from_entries(named),
        inputs=InputRows.from_entries([whole]),
        units=UnitRows.from_entries(units),
    )
