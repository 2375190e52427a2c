"""Waits of training steps for their batches, on the accelerator of this machine or on its processor.

The store is synthetic, since the ids do not matter: lengths of documents are lognormal, so that best_fit
packs several into most rows. Each model trains in a fresh process (`contenders/training_steps.py`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.process import run_fresh
from benchmarks.suite import ROOT, environment

SHARDS, DOCUMENTS = 4, 20_000


def measure_steps(
    folder: Path, *, models: list[str], steps: int, rows: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Train each model, and say the time of a step and its wait.

    Args:
        folder: gets the store, which is deleted at the end.
        models: sizes that `contenders/training_steps.py` knows.
        steps: steps that are counted.
        rows: rows of 8,192 tokens per batch.
        say: called with one line per model.

    Returns:
        What each model's process reported.

    Raises:
        BenchmarkError: a process failed.
    """
    from packline.testing import make_store

    work = folder / "steps"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    found: dict[str, dict[str, Any]] = {}
    try:
        random = np.random.default_rng(0)
        lengths = [(random.lognormal(6, 1.2, DOCUMENTS).astype(int) + 2).tolist() for _ in range(SHARDS)]
        make_store(work / "store", lengths, vocab_size=50_000)
        for model in models:
            command = [sys.executable, "-m", "benchmarks.contenders.training_steps", str(work / "store")]
            command += ["--model", model, "--steps", str(steps), "--rows", str(rows)]
            one = found[model] = run_fresh(command, cwd=ROOT, env=environment()).report
            say(
                f"{model}: {one['parameters'] / 1e6:.1f} million parameters on {one['device']}: "
                f"a step of {one['tokens_per_step']:,} tokens takes {one['step_seconds'] * 1e3:.1f} ms, "
                f"{one['wait_seconds'] * 1e3:.3f} ms of it a wait for the batch (longest "
                f"{one['longest_wait_seconds'] * 1e3:.3f} ms; {one['share_waiting']:.2%} of all steps)"
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return found
