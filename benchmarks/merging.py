"""Time to merge two stores, and to list the differences between two.

Two synthetic stores are written: real tokens of a small build, again and again, in shards of 64 MiB with
provenance and hashes. They are merged; then other stores are made of links to the merged one, in which the
hashes of one in a hundred documents are others, in some shards or in all. The stores can be read and compared
as any other, but are not ones that `verify` passes: their inputs do not exist.

Every measurement is a whole command in a fresh process; files are in the page cache as far as they fit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import MergeRun, busy_cores
from benchmarks.suite import ROOT, environment
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.ragged import Ragged, offsets_of
from packline.recipe import Source
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt, assemble, to_json, with_tables
from packline.store.manifest_check import read_manifest
from packline.store.naming import UnitName
from packline.store.tables import InputEntry, ShardEntry, ShardRows
from packline.store.writer import ShardWriter
from packline.testing import write_manifest

Say = Callable[[str], None]

SHARD_BYTES = 64 << 20
MEAN_TOKENS = 1000
SAMPLE_LINES = 10_000
"""Records of the corpus whose tokens are repeated."""
SOURCES = (("books", "prose"), ("web", "code"))
"""Sources of each store."""
CHANGED = 20
"""One in so many shards is changed."""
SEED = 11


def measure_merging(
    folder: Path, *, tokenizer: TokenizerFile, size: int, rounds: int, say: Say
) -> list[MergeRun]:
    """Seconds of `merge` and `diff`.

    Args:
        folder: folder of the corpus; needs room for the stores.
        size: bytes of tokens of the merged store.

    Raises:
        BenchmarkError: the corpus is absent, or a command failed.
    """
    work = folder / "merging"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    runs: list[MergeRun] = []
    try:
        small = _small_store(folder / "english.jsonl", work, tokenizer)
        for number, sources in enumerate(SOURCES):
            write_store(small, work / str(number), sources, size // 2, number)
        parts = [str(work / "0"), str(work / "1")]
        for number in range(1, rounds + 1):
            shutil.rmtree(work / "merged", ignore_errors=True)
            words = ["merge", *parts, "--out", str(work / "merged")]
            runs.append(measure("merge", words, number, work / "merged", 0))
            say(f"round {number}: merge: {runs[-1].wall_seconds:.2f} s")
            shards = len(read_manifest(work / "merged").shards)
            cases = {"diff, equal": 0, "diff, some changed": CHANGED, "diff, all changed": 1}
            for case, every in cases.items():
                other = work / case.replace(" ", "-")
                if not other.exists():
                    change_store(work / "merged", other, every)
                words = ["diff", str(work / "merged"), str(other)]
                changed = len(range(0, shards, every)) if every else 0
                runs.append(measure(case, words, number, work / "merged", changed))
                say(f"round {number}: {case}: {runs[-1].wall_seconds:.2f} s")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return runs


def _small_store(corpus: Path, work: Path, tokenizer: TokenizerFile) -> Store:
    try:
        with corpus.open("rb") as lines:
            (work / "small.jsonl").write_bytes(b"".join(islice(lines, SAMPLE_LINES)))
    except OSError as error:
        raise BenchmarkError(f"no corpus in {corpus}", hint="python -m benchmarks corpus") from error
    command = [sys.executable, "-m", "packline", "build", str(work / "small.jsonl"), "--out"]
    command += [str(work / "small"), "--tokenizer", tokenizer.path, "--eod", tokenizer.eod]
    subprocess.run(command, check=True, cwd=ROOT, env=environment(), capture_output=True)
    return Store(work / "small")


def write_store(small: Store, out: Path, sources: tuple[str, ...], size: int, seed: int) -> None:
    """Write a synthetic store.

    Args:
        small: store whose tokens are repeated.
        out: folder; is made.
        sources: names of the sources, each with the same number of shards.
        size: bytes of tokens.
        seed: other seeds give other documents.
    """
    tokens = np.concatenate([shard.tokens for shard in small.shards])
    (out / "receipts").mkdir(parents=True)
    shutil.copytree(small.path / "tokenizer", out / "tokenizer")
    each = max(size // SHARD_BYTES // len(sources), 1)
    manifest = small.manifest
    receipts = [
        _write_unit(out, name, number, tokens, small, (SEED, seed, place, number))
        for place, name in enumerate(sources)
        for number in range(each)
    ]
    made = assemble(
        receipts,
        recipe=msgspec.structs.replace(
            manifest.recipe, sources=tuple(Source(inputs=(name,), name=name) for name in sources)
        ),
        tokenizer=manifest.tokenizer,
        dtype=manifest.dtype,
        inputs=[
            InputEntry(name, f"{name}.jsonl", 1 << 40, "jsonl", "", "text", "0" * 32) for name in sources
        ],
        receipt_files=[_entry(out, f"receipts/{receipt.unit}.json") for receipt in receipts],
        tokenizer_files=manifest.tokenizer_files,
    )
    write_manifest(out, made)


def _write_unit(
    out: Path, source: str, number: int, tokens: np.ndarray, small: Store, seed: tuple[int, ...]
) -> Receipt:
    random = np.random.default_rng(seed)
    count = max(SHARD_BYTES // small.dtype.itemsize // MEAN_TOKENS, 1)
    lengths = random.integers(2, 2 * MEAN_TOKENS - 1, count)
    offsets = offsets_of(lengths)
    start = int(random.integers(0, len(tokens)))
    held = np.resize(np.roll(tokens, -start), int(offsets[-1]))
    held[offsets[1:] - 1] = small.eod_id
    unit = str(UnitName(source, number))
    writer = ShardWriter(out, f"train-{unit}", "train", source, None, small.dtype)
    positions = offsets[:-1] * 4 + number * (SHARD_BYTES << 4)
    ids: list[str | None] = [f"{unit}-{place:06x}" for place in range(count)]
    hashes = random.integers(0, 1 << 64, count, np.uint64)
    writer.append(Ragged(held, offsets), f"{source}.jsonl", positions, ids, lengths * 4, hashes)
    ledger = Ledger()
    ledger.documents_in = count
    ledger.add_documents(count, int(lengths.sum()) * 4, len(held), with_bos=False)
    piece = InputPiece(f"{source}.jsonl", number, number + 1, "0" * 32)
    receipt = Receipt(unit, source, (piece,), (writer.close(),), (), ledger, 0)
    (out / "receipts" / f"{unit}.json").write_bytes(to_json(receipt))
    return receipt


def _entry(folder: Path, name: str) -> FileEntry:
    data = (folder / name).read_bytes()
    return FileEntry(name, len(data), hash_bytes(data))


def change_store(store: Path, out: Path, every: int) -> None:
    """A store of links to another one, with other hashes of one in a hundred documents of some shards.

    Args:
        store: the store.
        out: folder; is made.
        every: one in so many shards is changed; 0: none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(store, out, copy_function=os.link)
    manifest = read_manifest(store)
    shards: list[ShardEntry] = list(manifest.shards)
    for number in range(0, len(shards), every) if every else ():
        shard = shards[number]
        name = f"{shard.name}.docs.parquet"
        table = pq.read_table(store / name)
        hashes = table["hash"].to_numpy().copy()
        hashes[::100] += np.uint64(1)
        table = table.set_column(
            table.column_names.index("hash"), table.schema.field("hash"), pa.array(hashes)
        )
        (out / name).unlink()
        pq.write_table(table, out / name, compression="zstd", write_statistics=False)
        files = tuple(_entry(out, name) if file.name == name else file for file in shard.files)
        shards[number] = msgspec.structs.replace(shard, files=files)
    units = zip(manifest.shards.names("unit"), manifest.shards.names("source"), shards, strict=True)
    listed = ShardRows.from_entries(units)
    for table_file in manifest.tables:
        (out / table_file.name).unlink()
    (out / "manifest.json").unlink()
    write_manifest(out, with_tables(manifest, shards=listed))


def measure(case: str, words: list[str], number: int, store: Path, changed: int) -> MergeRun:
    """One command in a fresh process."""
    busy = busy_cores()
    command = [sys.executable, "-m", "packline", *words, "--json"]
    outcome = run_fresh(command, cwd=ROOT, env=environment(), accepted=(0, 1))
    manifest = read_manifest(store)
    report = outcome.report
    if "error" in report or report.get("equal", not changed) == bool(changed):
        raise BenchmarkError(f"{case}: expected {changed} changed shards, found {report}")
    return MergeRun(
        case=case,
        round=number,
        store_bytes=manifest.store_bytes,
        documents=manifest.documents,
        shards=len(manifest.shards),
        changed=changed,
        wall_seconds=outcome.wall_seconds,
        peak_bytes=outcome.main.resident,
        busy_cores=busy,
    )
