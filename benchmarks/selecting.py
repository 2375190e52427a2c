"""Time and memory of selecting documents of a very large store.

The store is synthetic: columns as crawls have them (a score, a language, a URL), lognormal lengths, and one
document in ten with the text of an earlier one, all from a seed. Its provenance and indexes are written by
the writers of every store; its tokens are holes in sparse files, since a selection reads none of them. Each
run is a fresh process that opens the store and makes the selection.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import SelectingRun
from benchmarks.suite import ROOT, environment
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.packing.exclusions import write_list
from packline.recipe import Source
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt, assemble, to_json
from packline.store.shard import write_index
from packline.store.tables import InputEntry, ShardEntry
from packline.store.writer import HashedFile, _ProvenanceWriter
from packline.testing import make_store, write_manifest

SHARD = 250_000
MEDIAN, SIGMA, LONGEST = 500, 1.2, 200_000
SEED = 11
CARRIED: tuple[tuple[str, Any], ...] = (("score", "float"), ("language", "string"), ("url", "string"))
LANGUAGES = np.array(["en", "de", "fr", "es", "zh"])
SHARES = [0.5, 0.15, 0.15, 0.1, 0.1]
COPIED = 0.1
"""Share of documents with the text of an earlier one."""
LISTED = 0.01
"""Share of documents in the list that is left out."""
WHERE = "score >= 3 and language in ['de', 'en'] and not url.startswith('https://site-7')"
CASES: dict[str, dict[str, Any]] = {
    "where": {"where": WHERE},
    "where, again": {"where": WHERE},
    "unique": {"unique": True},
    "exclude": {"exclude": "list.parquet"},
}
"""Settings of each case; the second finds the plan of the first."""


def measure_selecting(
    folder: Path, *, documents: int, rounds: int, say: Callable[[str], None]
) -> list[SelectingRun]:
    """Every case on a store of so many documents.

    Raises:
        BenchmarkError: two runs of a case selected different documents.
    """
    place = folder / "selecting"
    try:
        if not (place / "store" / "manifest.json").exists():
            say(f"writing a store of {documents:,} documents")
            make_large_store(place / "store", documents)
        store = Store(place / "store")
        listed = np.arange(0, documents, int(1 / LISTED))
        write_list(place / "list.parquet", [(store, listed, "every hundredth")])
        runs: list[SelectingRun] = []
        for number in range(1, rounds + 1):
            shutil.rmtree(place / "store" / "plans", ignore_errors=True)
            runs += [_measure_once(place, case, documents, number, say) for case in CASES]
        for case in CASES:
            if len({run.selected for run in runs if run.case == case}) > 1:
                raise BenchmarkError(f"{case} selected different numbers of documents")
        return runs
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _measure_once(
    place: Path, case: str, documents: int, number: int, say: Callable[[str], None]
) -> SelectingRun:
    command = [sys.executable, "-m", "benchmarks.contenders.selecting", str(place), case]
    outcome = run_fresh(command, cwd=ROOT, env=environment())
    report = outcome.report
    run = SelectingRun(
        case=case,
        documents=documents,
        round=number,
        selected=report["selected"],
        wall_seconds=outcome.wall_seconds,
        seconds=report["seconds"],
        cpu_seconds=report["cpu_seconds"],
        resident_bytes=max(report["resident_bytes"], outcome.main.resident),
        plan_bytes=report["plan_bytes"],
    )
    say(
        f"round {number}: {case}: {run.selected:,} of {documents:,} documents in {run.seconds:.1f} s, "
        f"{run.resident_bytes / 1e9:.2f} GB, plan {run.plan_bytes / 1e6:.0f} MB"
    )
    return run


def make_large_store(out: Path, documents: int) -> Store:
    """Write the store; see the module's text for what is real in it."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(out.with_name("small"), ignore_errors=True)
    small = make_store(out.with_name("small"), [[2]])
    (out / "receipts").mkdir(parents=True)
    shutil.copytree(small.path / "tokenizer", out / "tokenizer")
    counts = [SHARD] * (documents // SHARD) + ([documents % SHARD] if documents % SHARD else [])
    receipts = [_unit(out, number, count, small) for number, count in enumerate(counts)]
    manifest = small.manifest
    source = Source(inputs=("web.jsonl",), name="web")
    assembled = assemble(
        receipts,
        recipe=manifest.recipe.__class__(
            sources=(source,), tokenizer=manifest.recipe.tokenizer, eod=manifest.recipe.eod
        ),
        tokenizer=manifest.tokenizer,
        dtype=manifest.dtype,
        inputs=[InputEntry("web", "0.jsonl", 1 << 40, "jsonl", "", "text", "0" * 32)],
        receipt_files=(_entry(out, f"receipts/{receipt.unit}.json") for receipt in receipts),
        tokenizer_files=manifest.tokenizer_files,
    )
    write_manifest(out, assembled)
    return Store(out)


def _unit(out: Path, number: int, count: int, small: Store) -> Receipt:
    random = np.random.default_rng((SEED, number))
    lengths = np.clip(random.lognormal(np.log(MEDIAN), SIGMA, count), 2, LONGEST).astype(np.int32)
    tokens, unit = int(lengths.sum()), f"web-{number:06d}"
    name = f"train-{unit}"
    with (out / f"{name}.bin").open("wb") as file:
        file.truncate(tokens * small.dtype.itemsize)
    index = HashedFile(out / f"{name}.idx")
    write_index(index, lengths, small.dtype)
    docs = HashedFile(out / f"{name}.docs.parquet")
    sink = pa.PythonFile(docs, "w")
    writer = _ProvenanceWriter(sink, "web", None, CARRIED)
    texts = _texts(random, number * SHARD, count)
    hashes = _mixed(texts)
    writer.append(
        file=pa.repeat(f"{number:05d}.jsonl.zst", count),
        position=pa.array(np.cumsum(lengths, dtype=np.int64) * 4),
        id=pa.nulls(count, pa.string()),
        text_bytes=pa.array((hashes % 8000).astype(np.int64)),
        tokens=pa.array(lengths.astype(np.int64)),
        hash=pa.array(hashes),
        score=pa.array(np.round(np.clip(random.normal(2.5, 1, count), 0, 5), 2)),
        language=pa.array(LANGUAGES[random.choice(len(LANGUAGES), count, p=SHARES)]),
        url=pc.binary_join_element_wise(
            "https://site-",
            pa.array(random.zipf(1.3, count) % 1_000_000).cast(pa.string()),
            ".example/",
            pa.array(texts).cast(pa.string()),
            "",
        ),
    )
    writer.close()
    sink.close()
    files = (
        FileEntry(f"{name}.bin", tokens * small.dtype.itemsize, "0" * 32),
        index.entry(f"{name}.idx"),
        docs.entry(f"{name}.docs.parquet"),
    )
    (out / f"{name}.sums").write_bytes(b"")
    sums = FileEntry(f"{name}.sums", 0, hash_bytes(b""))
    shard = ShardEntry(name, "train", count, tokens, (*files, sums))
    ledger = Ledger(
        documents_in=count,
        documents=count,
        text_bytes=4 * tokens,
        tokens=tokens,
        text_tokens=tokens - count,
        eod_tokens=count,
    )
    receipt = Receipt(
        unit, "web", (InputPiece("0.jsonl", number, number + 1, "0" * 32),), (shard,), (), ledger, 0
    )
    (out / "receipts" / f"{unit}.json").write_bytes(to_json(receipt))
    return receipt


def _texts(random: np.random.Generator, first: int, count: int) -> np.ndarray:
    """Number of each document's text: its own, or that of an earlier document."""
    own = np.arange(first, first + count)
    earlier = (random.random(count) * own).astype(np.int64)
    return np.where(random.random(count) < COPIED, earlier, own)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers as hashes are: 64 bits, spread evenly (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _entry(folder: Path, name: str) -> FileEntry:
    data = (folder / name).read_bytes()
    return FileEntry(name, len(data), hash_bytes(data))


def plan_bytes(store: Path) -> int:
    """Bytes of all plans of a store."""
    return sum(
        os.path.getsize(Path(folder) / name)
        for folder, _, names in os.walk(store / "plans")
        for name in names
    )
