"""Batches for training from an object store, beside those from the disk.

A store of synthetic documents is read from the disk, from the object server into an empty cache, and with the
cache full, each in a fresh process, by turns. The server is on the same machine (`benchmarks.object_server`),
and nothing computes between the batches: so the figures are what reading costs, where a real trainer would
rather wait for a network. Into an empty cache every byte is received, checked and written once more than from
the disk. Processor time is that of the reading process alone.

Waits are measured beside that: of steps of a tenth of a second, with a cache of a twentieth of the store, and
answers that come late.
"""

from __future__ import annotations

import itertools
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
MEANS, TOKENS = (1000, 100), 90_000_000
"""Mean lengths of documents, and tokens of a shard, where waits are measured."""
LATENCIES, PAUSE = (0.001, 0.01, 0.05), 0.1
"""Seconds before an answer, and of a step."""
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
                    found = {}
                    for name in (LOCAL, COLD, WARM):
                        place = str(work / "bucket" / "store") if name == LOCAL else "s3://bucket/store"
                        options = [] if name == LOCAL else ["--cache", str(work / "cache")]
                        found[name] = _read(place, steps, ["--order", order, *options], variables)
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


def measure_waits(folder: Path, *, steps: int, say: Say) -> None:
    """Read batches of a store that is twenty times its cache, between pauses, and say the waits."""
    from packline.testing import make_store

    work, random = folder / "remote-waits", np.random.default_rng(0)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        for mean in MEANS:
            count = TOKENS // mean
            lengths = [(random.lognormal(0, 0.9, count) * mean / 1.5 + 2).astype(int) for _ in range(SHARDS)]
            make_store(work / "bucket" / f"store-{mean}", [one.tolist() for one in lengths])
        size = sum(file.stat().st_size for file in (work / "bucket" / f"store-{MEANS[0]}").iterdir())
        for latency in LATENCIES:
            with serve(work, latency=latency) as variables:
                for mean, packing in itertools.product(MEANS, ("concat", "best_fit")):
                    shutil.rmtree(work / "cache", ignore_errors=True)
                    options = ["--cache", str(work / "cache"), "--cache-bytes", str(size // 20)]
                    options += ["--packing", packing, "--pause", str(PAUSE)]
                    found = _read(f"s3://bucket/store-{mean}", steps, options, variables)
                    say(
                        f"{latency * 1e3:.0f} ms, {packing}, documents of {mean} tokens: "
                        f"{found['waited'] / steps * 1e3:.1f} ms of waiting a step, "
                        f"{found['requests'] / steps:.0f} requests, {found['bytes'] / steps / 1e6:.1f} MB, "
                        f"{found['cpu_seconds'] / steps * 1e3:.0f} ms of processors"
                    )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _read(place: str, steps: int, options: list[str], variables: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.contenders.remote_batches", place, str(steps), *options]
    return run_fresh(command, cwd=ROOT, env=environment() | variables).report
