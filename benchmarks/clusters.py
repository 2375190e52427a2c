"""Rate of a build on Ray beside the same build on this machine, and random kills.

Both are whole commands in fresh processes, in turn, with the same workers on the same text; the rate is that
after start-up, from the command's own report. Ray's start and end are in the wall time only.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import busy_cores
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]
PLACES: dict[str, list[str]] = {"local": [], "ray": ["--on", "ray"]}


def measure_ray(folder: Path, *, tokenizer: TokenizerFile, rounds: int, workers: int, say: Say) -> float:
    """Median rate on Ray, as a share of that on this machine.

    Args:
        folder: folder of the corpus.

    Raises:
        BenchmarkError: the corpus is absent, or a build failed.
    """
    text = folder / "english.jsonl"
    if not text.exists():
        raise BenchmarkError(f"no corpus in {folder}", hint="python -m benchmarks corpus")
    work = folder / "ray"
    rates: dict[str, list[float]] = {name: [] for name in PLACES}
    try:
        for number in range(1, rounds + 1):
            for name, words in PLACES.items():
                shutil.rmtree(work, ignore_errors=True)
                busy = busy_cores()
                command = [sys.executable, "-m", "packline", "build", str(text), "--out", str(work), "--json"]
                command += ["--tokenizer", tokenizer.path, "--eod", tokenizer.eod]
                command += ["--workers", str(workers), *words]
                outcome = run_fresh(command, cwd=ROOT, env=environment())
                rate = float(outcome.report["bytes_per_second"])
                rates[name].append(rate)
                say(
                    f"round {number}: {name}, {rate / 1e6:.1f} MB/s after start-up, "
                    f"{outcome.wall_seconds:.1f} s in all, {busy:.1f} other cores busy"
                )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    share = statistics.median(rates["ray"]) / statistics.median(rates["local"])
    say(f"on Ray: {share:.2f} of the rate on this machine (medians of {rounds})")
    return share


def run_chaos(kills: int, seed: int, say: Say) -> None:
    """Kill processes of builds on this machine, on Ray and into an object store; compare every store."""
    import subprocess

    each = {"this machine": kills * 2 // 5, "object store": kills * 2 // 5}
    each["ray"] = kills - sum(each.values())
    tests = {"this machine": "machine", "object store": "object_store", "ray": "ray"}
    for name, count in each.items():
        say(f"{name}: {count} kills")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "-q",
                    "-x",
                    "tests/cluster/test_chaos.py",
                    "-k",
                    tests[name],
                    f"--basetemp={folder}/tests",
                    "-p",
                    "no:cacheprovider",
                    "-o",
                    "timeout=7200",
                    "-o",
                    "faulthandler_timeout=7200",
                ],
                cwd=ROOT,
                env=environment() | {"PACKLINE_KILLS": str(count), "PACKLINE_SEED": str(seed)},
            )
        if done.returncode:
            raise BenchmarkError(f"{name}: a store differs or a build did not recover, seed {seed}")
    say(f"{kills} kills: every store has the bytes of a build without them")
