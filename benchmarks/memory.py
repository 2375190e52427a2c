"""Does memory stay flat as the corpus grows? Builds of ever larger inputs, watched from outside.

Each input is a beginning of `memory.jsonl` (see `corpus` for what that holds), built by a fresh
process. The watcher knows nothing of packline: it keeps the peak of every process that the build
started. packline's own figure stands beside it, and the two must be of one mind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.catalogue import TokenizerFile, packline
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import MemoryRun
from benchmarks.suite import ROOT, environment

DISAGREEMENT = 0.15
"""How far packline's figure may be below the watcher's."""


def measure_memory(
    folder: Path, tokenizer: TokenizerFile, sizes: list[int], say: Callable[[str], None]
) -> list[MemoryRun]:
    """Build the first `size` bytes of `memory.jsonl` for each size.

    Raises:
        BenchmarkError: the file is shorter than the largest size, or packline understates its memory.
    """
    source = folder / "memory.jsonl"
    longest = source.stat().st_size if source.exists() else 0
    if longest < max(sizes):
        raise BenchmarkError(
            f"{source} has {longest / 1e9:.1f} GB: expected {max(sizes) / 1e9:.1f} GB",
            hint="python -m benchmarks corpus --memory-size 5.2GB",
        )
    runs = []
    for size in sizes:
        run = _measure_size(source, size, tokenizer)
        say(
            f"{size / 1e9:.1f} GB: largest worker {run.worker_resident_bytes / 2**20:.0f} MiB "
            f"({run.worker_private_bytes / 2**20:.0f} private), first process "
            f"{run.main_resident_bytes / 2**20:.0f} MiB, {run.wall_seconds:.0f} s"
        )
        runs.append(run)
    return runs


def _measure_size(source: Path, size: int, tokenizer: TokenizerFile) -> MemoryRun:
    part, out = source.with_name("memory-part.jsonl"), source.with_name("out")
    shutil.rmtree(out, ignore_errors=True)
    try:
        written = write_beginning(source, part, size)
        command = [word.replace("{out}", str(out)) for word in packline("", "", part, tokenizer).command]
        outcome = run_fresh(command, cwd=ROOT, env=environment(), interval=0.05)
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
    if not outcome.workers:
        raise BenchmarkError("the build started no process of its own: expected a worker a core")
    run = MemoryRun(
        tokenizer=tokenizer.name,
        input_bytes=written,
        documents=outcome.report["documents"],
        wall_seconds=outcome.wall_seconds,
        worker_resident_bytes=max(peak.resident for peak in outcome.workers),
        worker_private_bytes=max(peak.private for peak in outcome.workers),
        main_resident_bytes=outcome.main.resident,
        together_private_bytes=outcome.together,
        reported_bytes=outcome.report["peak_rss_bytes"],
    )
    if run.reported_bytes < (1 - DISAGREEMENT) * run.worker_resident_bytes:
        raise BenchmarkError(
            f"packline reports {run.reported_bytes / 2**20:.0f} MiB a worker: "
            f"the watcher saw {run.worker_resident_bytes / 2**20:.0f} MiB"
        )
    return run


def write_beginning(source: Path, target: Path, size: int) -> int:
    """Copy at most `size` bytes of a JSONL file, up to the end of a line; returns how many."""
    with source.open("rb") as whole, target.open("wb") as part:
        left = size
        while left and (block := whole.read(min(left, 16 << 20))):
            part.write(block)
            left -= len(block)
    with target.open("rb+") as part:
        end = os.fstat(part.fileno()).st_size
        step = 1 << 20
        begin = max(0, end - step)
        while True:
            part.seek(begin)
            newline = part.read(end - begin).rfind(b"\n")
            if newline >= 0:
                part.truncate(begin + newline + 1)
                return begin + newline + 1
            if begin == 0:
                raise BenchmarkError(f"{source}: its first line is longer than {size} bytes")
            begin = max(0, begin - step)
