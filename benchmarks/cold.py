"""Rates of reading from a disk whose files are not in the page cache, by the order of the loader.

The store is made up: random tokens, more than the page cache should hold of it between two runs, since its
pages are dropped before each. The rate of the disk itself is that of reading the same files from their
beginning to their end with plain reads of 8 MiB.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.contenders.cold_rows import drop_cache
from benchmarks.process import run_fresh
from benchmarks.results import ColdRun, Results, busy_cores
from benchmarks.suite import ROOT, environment

SHARD_TOKENS = 8 << 20
DOCUMENT_TOKENS = 1024
READ_BYTES = 8 << 20
CONTENDERS: list[tuple[str, list[str]]] = [
    ("stored order", ["--order", "stored"]),
    ("blocks", ["--order", "blocks"]),
    ("blocks, without reading ahead", ["--order", "blocks", "--no-read-ahead"]),
    ("global permutation", ["--order", "global"]),
]


def measure_cold(
    folder: Path, results: Results, *, size: int, rounds: int, seconds: float, say: Callable[[str], None]
) -> None:
    """Measure every order, in turns.

    Args:
        folder: work is done below it; it decides which disk is measured.
        size: bytes of tokens of the store.
        seconds: longest time of one run.
    """
    work = folder / "cold"
    folder.mkdir(parents=True, exist_ok=True)
    disk = disk_of(folder)
    shutil.rmtree(work, ignore_errors=True)
    results.cold = []
    try:
        say(f"cold: a store of {size / 1e9:.1f} GB")
        make_random_store(work / "store", size)
        for number in range(1, rounds + 1):
            results.cold.append(read_files(work / "store", number))
            busy = busy_cores()
            for name, arguments in CONTENDERS:
                command = [sys.executable, "-m", "benchmarks.contenders.cold_rows", str(work / "store")]
                command += [*arguments, "--seconds", str(seconds)]
                report = run_fresh(command, cwd=ROOT, env=environment()).report
                run = ColdRun(
                    contender=name,
                    round=number,
                    bytes=report["tokens"] * report["itemsize"],
                    seconds=report["seconds"],
                    busy_cores=busy,
                    disk=disk,
                )
                results.cold.append(run)
                say(f"round {number}: {name}: {run.rate:.0f} MB/s")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_random_store(folder: Path, size: int) -> None:
    """A store of random tokens of uint16 in documents of equal lengths, synced to the disk."""
    from packline.testing import make_store

    shards = max(size // (2 * SHARD_TOKENS), 1)
    lengths = [[DOCUMENT_TOKENS] * (SHARD_TOKENS // DOCUMENT_TOKENS)] * shards
    make_store(folder, lengths)
    for path in folder.glob("*.bin"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def read_files(store: Path, number: int) -> ColdRun:
    """Read all tokens in their order, without a loader: what the disk gives."""
    drop_cache(store)
    block, total = bytearray(READ_BYTES), 0
    start = time.perf_counter()
    for path in sorted(store.glob("*.bin")):
        with path.open("rb", buffering=0) as file:
            while read := file.readinto(block):
                total += read
    seconds = time.perf_counter() - start
    return ColdRun(contender="plain reads of whole files", round=number, bytes=total, seconds=seconds)


def disk_of(folder: Path) -> str:
    """File system and device that a folder is on; empty if the system does not tell.

    >>> disk_of(Path("/proc"))
    'proc on proc'
    """
    table = Path("/proc/mounts")
    mounts = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    whole = [one for one in mounts if folder.resolve().is_relative_to(one[1])]
    if not whole:
        return ""
    device, _, kind, *_ = max(whole, key=lambda one: len(one[1]))
    return f"{kind} on {device}"
