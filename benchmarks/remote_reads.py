"""Batches for training from an object store, beside those from the disk.

A store of synthetic documents is read from the disk, from the object server into an empty cache, and with the
cache full, each in a fresh process, by turns. The server is on the same machine (`benchmarks.object_server`),
and nothing computes between the batches: so the figures are what reading costs, where a real trainer would
rather wait for a network. Into an empty cache every byte is received, checked and written once more than from
the disk. Processor time is that of the reading process alone.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.remote import serve
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]

SHARDS, DOCUMENTS = 8, 20_000
LOCAL = "from the disk"
COLD, WARM = "from the object server, empty cache", "from the object server, full cache"


def measure_reads(folder: Path, *, rounds: int, steps: int, say: Say) -> dict[tuple[str, str], float]:
    """Read batches in both orders, and say the processor time and the shares of the disk's rate.

    Returns:
        Median of the processor time of the disk divided by that of each contender, by order and contender.

    Raises:
        BenchmarkError: the batches differ.
    """
    from packline.testing import make_store

    work = folder / "remote-reads"
    shutil.rmtree(work, ignore_errors=True)
    (work / "bucket").mkdir(parents=True)
    shares: dict[tuple[str, str], list[float]] = {}
    try:
        random = np.random.default_rng(0)
        lengths = [(random.lognormal(6, 0.9, DOCUMENTS).astype(int) + 2).tolist() for _ in range(SHARDS)]
        make_store(work / "bucket" / "store", lengths)
        with serve(work) as variables:
            for number in range(1, rounds + 1):
                for order in ("global", "blocks"):
                    shutil.rmtree(work / "cache", ignore_errors=True)
                    found = {name: _read(work, name, order, steps, variables) for name in (LOCAL, COLD, WARM)}
                    if len({one["checksum"] for one in found.values()}) > 1:
                        raise BenchmarkError(f"{order}: the batches differ")
                    for name, one in found.items():
                        share = found[LOCAL]["cpu_seconds"] / one["cpu_seconds"]
                        shares.setdefault((order, name), []).append(share)
                        say(
                            f"round {number}: {order}, {name}: {one['cpu_seconds'] / steps * 1e6:.0f} "
                            f"µs of processors a batch, {one['seconds'] / steps * 1e6:.0f} elapsed, "
                            f"{one['bytes'] / 1e6:.0f} MB fetched, {one['stalls']} stalls"
                        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    medians = {key: statistics.median(values) for key, values in shares.items()}
    for (order, name), share in medians.items():
        if name != LOCAL:
            say(f"{order}, {name}: {share:.2f} of the rate from the disk, by processor time")
    return medians


def _read(work: Path, name: str, order: str, steps: int, variables: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.contenders.remote_batches"]
    command += [str(work / "bucket" / "store")] if name == LOCAL else ["s3://bucket/store"]
    command += [str(steps), "--order", order]
    command += [] if name == LOCAL else ["--cache", str(work / "cache")]
    return run_fresh(command, cwd=ROOT, env=environment() | variables).report
