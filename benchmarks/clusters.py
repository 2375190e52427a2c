"""Rate of a build on Ray beside the same build on this machine, and random kills.

Both are whole commands in fresh processes, in turn, with the same workers on the same text; the rate is that
after start-up, from the command's own report. Ray runs before the first build, as a cluster does, and the
processor seconds of its processes are not those of the command.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.remote import describe, measure_build
from benchmarks.results import RemoteRun
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]
LOCAL, RAY = "by this machine's processes", "on Ray"
SETTLE_SECONDS = 10.0
"""Ray's own processes start in the background."""
TEXTS = ("english.jsonl", "mixed.jsonl")


def measure_ray(
    folder: Path, *, tokenizer: TokenizerFile, rounds: int, workers: int, say: Say
) -> list[RemoteRun]:
    """Builds on a node of Ray that runs already, and the same builds without Ray, in turn.

    Args:
        folder: folder of the corpus.
        workers: cores of the node, and processes of the builds.

    Raises:
        BenchmarkError: the corpus is absent, a build failed, or the stores differ.
    """
    from tests.cluster.raylets import start_raylets

    texts = [str(folder / name) for name in TEXTS]
    if not all(Path(text).exists() for text in texts):
        raise BenchmarkError(f"no corpus in {folder}", hint="python -m benchmarks corpus")
    runs: list[RemoteRun] = []
    with start_raylets() as cluster:
        cluster.add(workers)
        time.sleep(SETTLE_SECONDS)
        for number in range(1, rounds + 1):
            for contender in (LOCAL, RAY):
                run = measure_build(
                    texts,
                    folder / "ray",
                    tokenizer,
                    environment() | (cluster.environment if contender == RAY else {}),
                    contender=contender,
                    base=LOCAL,
                    number=number,
                    options=["--workers", str(workers), *(["--on", "ray"] if contender == RAY else [])],
                )
                runs.append(run)
                say(describe(run))
            if runs[-1].checksum != runs[-2].checksum:
                raise BenchmarkError("the stores of both builds differ")
    return runs


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
