"""How fast a store is written in other layouts, beside a copy of the same bytes from disk to disk.

`english.jsonl` is built into a store, whose shards are then repeated, by hard links, until there are tokens
enough. Each export is the whole command, from the start of its process to the end; what it wrote is then
copied by another process, file for file, and compared with that. Inputs are in the page cache; both sides
wait for the disk. What links is measured on a small store and on the large one: it should not matter.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.loading import build_store
from benchmarks.process import run_fresh
from benchmarks.results import ExportRun, busy_cores
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]

ROWS = ["--seq-len", "4096", "--batch-size", "64"]


class Contender(msgspec.Struct, frozen=True):
    """An export to measure."""

    name: str
    format: str
    options: list[str] = []
    store: str = "large"
    """`large`, `small`, or `middle`, half of the large one: where tokens take several times as much."""
    copied: bool = True
    """Whether it is compared with a copy: not where the bytes are the store's own."""
    encodes: bool = False
    """Whether it is the work of an encoder of columns, which no copy does: shown, but without a goal."""


COPYING = [
    Contender("megatron, one pair", "megatron", ["--set", "files=single"]),
    Contender("megatron, one pair per shard, copied", "megatron", ["--link", "copy"]),
    Contender("llmc", "llmc"),
    Contender("nanogpt, joined", "nanogpt"),
    Contender("npy", "npy"),
    Contender("datatrove, copied", "datatrove", ["--link", "copy"]),
    Contender("olmo, copied", "olmo", ["--link", "copy"]),
    Contender("forager, copied", "forager", ["--link", "copy"]),
    Contender("arrow", "arrow", store="middle"),
    Contender("parquet, not compressed", "parquet", ["--set", "compression=none"], "middle", encodes=True),
    Contender("parquet, zstd", "parquet", store="middle", encodes=True),
    Contender("npz", "npz", ROWS, store="middle"),
    Contender("stacks, nothing cut", "stacks", ["--set", "max_seq_len=1000000000"], "middle"),
    Contender("litdata", "litdata", ROWS, store="middle"),
    Contender("mds", "mds", ROWS, store="middle"),
    Contender("trl", "trl", ROWS, store="middle"),
    Contender("baked", "baked", ROWS, store="middle"),
]
LINKING = [
    Contender(f"{format}, linked", format, store=store, copied=False)
    for format in ("megatron", "datatrove", "olmo", "forager")
    for store in ("small", "large")
]


def measure_exporting(
    folder: Path,
    *,
    tokenizer: TokenizerFile,
    large_bytes: int,
    small_bytes: int,
    rounds: int,
    only: list[str] | None,
    say: Say,
) -> list[ExportRun]:
    """Every contender in turn, and a copy of what it wrote.

    Args:
        folder: of the corpus; needs room for about three times the large store.
        tokenizer: whose vocabulary decides the width of tokens.
        large_bytes, small_bytes: of tokens.
        only: formats to measure; None: all.

    Raises:
        BenchmarkError: the corpus is absent, or an export failed or left out tokens.
    """
    work = folder / "exporting"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    contenders = [each for each in COPYING + LINKING if only is None or each.format in only]
    runs = []
    try:
        build_store(folder / "english.jsonl", work / "built", tokenizer)
        repeat_store(work / "built", work / "large", large_bytes)
        repeat_store(work / "built", work / "middle", large_bytes // 2)
        repeat_store(work / "built", work / "small", small_bytes)
        for number in range(1, rounds + 1):
            busy = busy_cores()
            for contender in contenders:
                run = measure_once(contender, work, number, busy)
                compared = f", {run.ratio:.2f} of copying" if run.copy_seconds else ""
                say(
                    f"round {number}: {run.contender}: {run.output_bytes / 1e6:,.0f} MB "
                    f"in {run.wall_seconds:.2f} s{compared}"
                )
                runs.append(run)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return runs


def measure_once(contender: Contender, work: Path, number: int, busy: float = 0.0) -> ExportRun:
    """One export, and a copy of it, into folders that are then removed.

    Raises:
        BenchmarkError: it failed, or wrote other tokens than the store has.
    """
    store, out, copy = work / contender.store, work / "out", work / "copy"
    command = [sys.executable, "-m", "packline", "export", str(store), "--to", contender.format]
    command += ["--out", str(out), "--json", *contender.options]
    try:
        outcome = run_fresh(command, cwd=ROOT, env=environment())
        copied = {"seconds": 0.0, "bytes": 0}
        if contender.copied:
            script = [sys.executable, "-m", "benchmarks.contenders.copying", str(out), str(copy)]
            copied = run_fresh(script, cwd=ROOT, env=environment()).report
    finally:
        for made in (out, copy, work / ".out.packline"):
            shutil.rmtree(made, ignore_errors=True)
    report = outcome.report
    tokens, size = stored_tokens(store)
    left_out = sum(lost["count"] for lost in report["lost"] if lost["what"] == "dropped tokens")
    if report["tokens"] + left_out != tokens:
        raise BenchmarkError(
            f"{contender.name} wrote {report['tokens']:,} tokens and left out {left_out:,}: "
            f"expected {tokens:,} together"
        )
    return ExportRun(
        contender=contender.name,
        format=contender.format,
        round=number,
        store_bytes=size,
        output_bytes=report["bytes"],
        shared_bytes=sum(report["shared"].values()),
        files=report["files"],
        encodes=contender.encodes,
        wall_seconds=outcome.wall_seconds,
        seconds=report["seconds"],
        copy_seconds=copied["seconds"] if contender.copied else None,
        busy_cores=busy,
    )


def stored_tokens(store: Path) -> tuple[int, int]:
    """Tokens of a store, and their bytes."""
    from packline.store.manifest_check import read_manifest

    shards = read_manifest(store).shards
    size = sum(file.bytes for shard in shards for file in shard.files if file.name.endswith(".bin"))
    return sum(shard.tokens for shard in shards), size


def repeat_store(model: Path, folder: Path, size: int) -> None:
    """A store with the shards of another, again and again, until their tokens have so many bytes.

    Args:
        model: a store.
        folder: is made; its files are hard links.
        size: bytes of tokens, at least.
    """
    from packline.store.manifest import with_tables
    from packline.store.manifest_check import read_manifest
    from packline.store.tables import ShardEntry, ShardRows
    from packline.testing import write_manifest

    manifest = read_manifest(model)
    shutil.copytree(
        model, folder, ignore=shutil.ignore_patterns("train-*", "manifest.json", "shards.parquet")
    )
    done = 0
    shards: list[ShardEntry] = []
    while done < size:
        old = manifest.shards[len(shards) % len(manifest.shards)]
        name = f"train-{len(shards):06d}"
        files = []
        for entry in old.files:
            renamed = entry.name.replace(old.name, name)
            os.link(model / entry.name, folder / renamed)
            files.append(msgspec.structs.replace(entry, name=renamed))
            done += entry.bytes if renamed.endswith(".bin") else 0
        shards.append(msgspec.structs.replace(old, name=name, files=tuple(files)))
    source = next(iter(manifest.sources))
    listed = ShardRows.from_entries((shard.name.partition("-")[2], source, shard) for shard in shards)
    write_manifest(folder, with_tables(manifest, shards=listed))
