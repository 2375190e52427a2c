"""How long best_fit takes, how much memory, and how tight it packs, on more documents than a test can have.

Lengths are made up: lognormal with a median of 500 tokens, from 1 to 200,000, as web documents are spread,
the same in every run. Each run is a fresh process on one core that writes its plan to the disk.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import PackingRun
from benchmarks.suite import ROOT, environment

MEDIAN, SIGMA, LONGEST = 500, 1.2, 200_000
SEED = 1
BLOCK = 1 << 20


def measure_packing(
    folder: Path,
    *,
    documents: int,
    compared: int,
    seq_len: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[PackingRun]:
    """packline on all documents and, for the first `compared` of them, beside packing one piece at a time.

    Raises:
        BenchmarkError: a run packed other documents than it was given, or fewer rows than tokens need.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lengths = folder / "packing-lengths.i4"
    runs = []
    try:
        write_lengths(lengths, max(documents, compared))
        for number in range(1, rounds + 1):
            for contender, count in (("packline", documents), ("packline", compared), ("naive", compared)):
                run = _measure_once(folder, lengths, contender, count, seq_len, number)
                say(
                    f"round {number}: {contender}, {count:,} documents: {run.seconds:.1f} s, "
                    f"{run.resident_bytes / 1e9:.2f} GB, {run.rows:,} rows, "
                    f"{100 * run.padding_share:.4f}% padding"
                )
                runs.append(run)
    finally:
        lengths.unlink(missing_ok=True)
    return runs


def write_lengths(path: Path, documents: int) -> None:
    """The first so many of an endless series of lengths, int32, always the same ones."""
    generator = np.random.default_rng(SEED)
    with path.open("wb") as file:
        for start in range(0, documents, BLOCK):
            block = generator.lognormal(np.log(MEDIAN), SIGMA, BLOCK)[: documents - start]
            file.write(np.clip(block, 1, LONGEST).astype("<i4").tobytes())


def _measure_once(
    folder: Path, lengths: Path, contender: str, documents: int, seq_len: int, number: int
) -> PackingRun:
    out = folder / "packing-plan"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.contenders.best_fit", str(lengths)]
    command += ["--documents", str(documents), "--seq-len", str(seq_len)]
    command += ["--naive"] if contender == "naive" else ["--out", str(out)]
    try:
        outcome = run_fresh(command, cwd=ROOT, env=environment())
    finally:
        shutil.rmtree(out, ignore_errors=True)
    report = outcome.report
    if report["documents"] != documents or report["rows"] * seq_len < report["tokens"]:
        raise BenchmarkError(
            f"{contender} packed {report['documents']:,} documents into {report['rows']:,} rows: "
            f"expected {documents:,} documents, and rows for {report['tokens']:,} tokens"
        )
    return PackingRun(
        contender=contender,
        documents=documents,
        seq_len=seq_len,
        round=number,
        tokens=report["tokens"],
        rows=report["rows"],
        wall_seconds=outcome.wall_seconds,
        seconds=report["seconds"],
        resident_bytes=max(report["resident_bytes"], outcome.main.resident),
    )
