"""Opening of a store of very many shards, local and from an object server, and its first rows and batches.

    python -m benchmarks.opening FOLDER --shards 100000

The shards are hard links to one; the server (`object_server`) reads them from the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.remote import serve
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store.files import FileEntry
from packline.store.manifest import InputPiece, Manifest, Receipt, join_checksums, to_json, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.naming import slug_of
from packline.store.tables import InputRows, ShardEntry, ShardRows, UnitEntry, UnitRows
from packline.testing import make_store, write_manifest

READ = """
import os, resource, sys, time
import numpy as np, packline

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def report(what):
    global began, before
    print(f"{what:24} {time.perf_counter() - began:7.2f} s {cpu() - before:7.2f} s of CPU", flush=True)
    began, before = time.perf_counter(), cpu()

remote = len(sys.argv) > 2
began, before = time.perf_counter(), cpu()
store = packline.open(sys.argv[1], **({"cache": sys.argv[2]} if remote else {}))
report("open")
rows = store.rows(64)
report("rows")
rows.read(np.arange(32))
report("first batch")
rows.read(np.random.default_rng(1).integers(0, len(rows), 32))
report("batch of random rows")
for number, _ in zip(range(20), packline.Loader(rows, batch_size=32, seed=1)): pass
report("20 batches of a loader")
files, maps = len(os.listdir("/proc/self/fd")), sum(1 for _ in open("/proc/self/maps"))
print(f"{files} open files, {maps:,} maps")
if remote: print(store.files.traffic)
"""


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


def measure_opening(folder: Path, shards: int) -> None:
    """Make the store, and print what it takes to open and read it in fresh processes."""
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    one = make_store(folder / "one", [[8, 13, 18, 23]])
    place = multiply(one, folder / "bucket" / "many", shards)
    print(f"made {shards:,} shards in {time.perf_counter() - began:.1f} s", flush=True)
    print("local", flush=True)
    subprocess.run([sys.executable, "-c", READ, str(place)], check=True)
    with serve(folder) as environment:
        print("object server", flush=True)
        command = [sys.executable, "-c", READ, "s3://bucket/many", str(folder / "cache")]
        subprocess.run(command, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=100_000)
    given = parser.parse_args()
    measure_opening(given.folder / "opening", given.shards)
