"""A store of very many shards, made from a small one in seconds: each shard is a unit of its own.

    multiply(store, folder, 100_000)     shards whose files are hard links to those of the first

Receipts and manifest are written as a build would, so `verify` has nothing to say. Measure the commands on
it:

    python -m tests.store.many FOLDER 100000
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from packline.facade import Store
from packline.store.files import FileEntry
from packline.store.manifest import InputPiece, Manifest, Receipt, join_checksums, to_json, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.naming import slug_of
from packline.store.tables import InputRows, ShardEntry, ShardRows, Tables, UnitEntry, UnitRows
from packline.testing import write_manifest

LINKS = 30_000
"""Names of one file; ext4 allows 65,000."""
FILES = 256
"""Files that a process may open in the measurements."""


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
        receipts.append(FileEntry(name, len(data), hash_of(data)))
        shards.append(shard)
    write_manifest(folder, _manifest(manifest, piece, shards, receipts))
    return folder


def hash_of(data: bytes) -> str:
    """The checksum of a file."""
    from packline.fingerprint import hash_bytes

    return hash_bytes(data)


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
    rows = Tables(
        ShardRows.from_entries((shard.name.partition("-")[2], whole.source, shard) for shard in shards),
        InputRows.from_entries([whole]),
        UnitRows.from_entries(UnitEntry(Path(entry.name).stem, whole.source, entry) for entry in receipts),
    )
    model = msgspec.structs.replace(model, ledger=ledger, sources=dict.fromkeys(model.sources, ledger))
    return with_tables(model, rows)


READS = """
import sys, time, resource, threading, numpy as np, packline
began, spent = time.perf_counter(), time.process_time()
def told(what):
    global began, spent
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took, cpu = time.perf_counter() - began, time.process_time() - spent
    print(f"{what:48} {took:7.2f} s {cpu:6.2f} s of CPU {memory:6.0f} MB", flush=True)
    began, spent = time.perf_counter(), time.process_time()
told("import")
store = packline.open(sys.argv[1]); told("open")
whole = len(store.documents); some = np.random.default_rng(0).integers(0, whole, 20_000).tolist()
held = [store.documents[one] for one in some]; told("20,000 documents at random, held")
assert all(len(one) for one in held); held.clear()
store.text(whole - 1); store.provenance(whole // 2); told("a text and a provenance")
plans = sys.argv[2]
for name, settings in (
    ("concat", {}), ("best_fit", {"packing": "best_fit"}), ("pad", {"packing": "pad"}),
    ("concat, shuffled documents", {"shuffle_documents": 1}),
):
    rows = store.rows(64, plans=plans, **settings); rows.read(np.array([0, len(rows) - 1]))
    told(f"rows, {name}: first batch")
    batch = np.random.default_rng(1).integers(0, len(rows), (100, 32))
    for one in batch: rows.read(one)
    told(f"rows, {name}: 100 batches of 32")
loader = packline.Loader(store.rows(64), batch_size=32, seed=1, prefetch=2)
for _, one in zip(range(100), loader): pass
told("loader: 100 batches, prefetching")
"""


def measure(folder: Path, count: int) -> None:
    """Time everything that opens a store, in fresh processes that may open few files."""
    from tests.formats.stores import make_store

    began = time.perf_counter()
    documents = [[5 + place % 200] * (8 + 5 * place) for place in range(4)]
    make_store(folder / "one", documents, vocab_size=1000, eod_id=0)
    many = multiply(Store(folder / "one"), folder / "many", count)
    print(f"made {count:,} shards in {time.perf_counter() - began:.1f} s", flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    subprocess.run([sys.executable, "-c", READS, str(many), str(folder / "plans")], check=True)
    for command in (
        ["info", many],
        ["verify", many],
        ["pack", many, "--seq-len", "64"],
        ["view", many, "--document", str(count)],
        ["export", many, "--to", "megatron", "--out", folder / "megatron", "--workers", "2"],
        ["export", many, "--to", "parquet", "--out", folder / "parquet", "--workers", "2"],
    ):
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "packline", *map(str, command)], capture_output=True, text=True
        )
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        memory = after.ru_maxrss / 1024  # the largest child so far
        shown = " ".join(map(str, command)).replace(str(folder), "")
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{shown[:34]:34} {took:7.2f} s {memory:7.0f} MB  {spent:.2f} s of CPU, exit {done.returncode}")
        if done.returncode:
            print((done.stdout + done.stderr)[-2000:])
        sys.stdout.flush()


if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]))
