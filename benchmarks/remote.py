"""Builds that read their inputs from an object store, beside those that read them from the disk.

The server is `benchmarks.object_server`: one process on the same machine, which sends files by `sendfile`. So
the figures show what the client costs, not a network: server and workers share the cores. Every build is a
whole command in a fresh process; inputs are in the page cache; the store is written to the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import RemoteRun, busy_cores
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]

INPUTS = ("english.jsonl", "english.parquet", "english.jsonl.zst")
LOCAL, REMOTE = "from the disk", "from the object server"
BUCKET = "corpus"


@contextmanager
def serve(folder: Path, made: int = 0, latency: float = 0.0) -> Iterator[dict[str, str]]:
    """Serve the folders in a folder as buckets; the environment in which obstore finds them.

    Args:
        made: number of files in the bucket `made`, which exist in the server only.
        latency: seconds before an answer with bytes.
    """
    command = [sys.executable, "-m", "benchmarks.object_server", str(folder), "--made", str(made)]
    command += ["--latency", str(latency)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "benchmark",
            "AWS_SECRET_ACCESS_KEY": "benchmark",
            "AWS_REGION": "us-east-1",
        }
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def measure_remote(
    folder: Path, *, inputs: Sequence[str], tokenizer: TokenizerFile, rounds: int, say: Say
) -> list[RemoteRun]:
    """Builds of each input, from the disk and from the server by turns.

    Args:
        folder: folder of the corpus.

    Raises:
        BenchmarkError: the corpus is absent, or the bytes of the stores differ.
    """
    work = folder / "remote"
    shutil.rmtree(work, ignore_errors=True)
    (work / BUCKET).mkdir(parents=True)
    runs: list[RemoteRun] = []
    try:
        for name in inputs:
            if not (folder / name).exists():
                raise BenchmarkError(f"no corpus in {folder / name}", hint="python -m benchmarks corpus")
            (work / BUCKET / name).symlink_to(folder / name)
        with serve(work) as variables:
            for number in range(1, rounds + 1):
                for name in inputs:
                    for contender in (LOCAL, REMOTE):
                        place = f"s3://{BUCKET}" if contender == REMOTE else str(work / BUCKET)
                        run = measure_build(
                            [f"{place}/{name}"],
                            work / "out",
                            tokenizer,
                            environment() | variables,
                            contender=contender,
                            base=LOCAL,
                            number=number,
                        )
                        runs.append(run)
                        say(describe(run))
                        if run.checksum != runs[-1 - (contender == REMOTE)].checksum:
                            raise BenchmarkError(f"{name}: the stores of both builds differ")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return runs


def describe(run: RemoteRun) -> str:
    """One line about a build."""
    return (
        f"round {run.round}: {run.input} {run.contender}: {run.wall_seconds:.1f} s, "
        f"{run.steady_rate / 1e6:.0f} MB/s after start-up, {run.cpu_seconds:.1f} s of "
        f"processors, {run.largest_worker_bytes / 1e6:.0f} MB"
    )


def measure_build(
    inputs: Sequence[str],
    out: Path,
    tokenizer: TokenizerFile,
    variables: dict[str, str],
    *,
    contender: str,
    base: str,
    number: int,
    options: Sequence[str] = (),
) -> RemoteRun:
    """One build; its store is removed.

    Args:
        variables: environment of the command.
        base: contender to compare with.
        number: number of the round.
        options: further words of the command.
    """
    from packline.fingerprint import hash_bytes

    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "packline", "build", *inputs, "--out", str(out), "--json"]
    command += ["--tokenizer", tokenizer.path, "--eod", tokenizer.eod, *options]
    busy = busy_cores()
    before = os.times()
    outcome = run_fresh(command, cwd=ROOT, env=variables)
    after, report = os.times(), outcome.report
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    receipts = b"".join(path.read_bytes() for path in sorted((out / "receipts").glob("*.json")))
    shutil.rmtree(out)
    return RemoteRun(
        contender=contender,
        input=" and ".join(name.rpartition("/")[2] for name in inputs),
        round=number,
        text_bytes=report["text_bytes"],
        wall_seconds=outcome.wall_seconds,
        startup_seconds=report["first_unit_seconds"],
        seconds=report["seconds"],
        cpu_seconds=cpu,
        largest_worker_bytes=report["peak_rss_bytes"],
        checksum=hash_bytes(receipts),
        base=base,
        busy_cores=busy,
    )
