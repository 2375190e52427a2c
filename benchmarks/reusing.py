"""Time of builds that reuse an earlier store, by the share of the inputs that has changed.

`english.jsonl` is written, again and again, into files of equal size; every record begins with the number of
its copy, so no two texts are equal. They are built once; then some files get other text, and the store is
built again with `--reuse`, from the first store each time. Files are read again, and compared by checksum.

Every build is a whole command in a fresh process; inputs are in the page cache.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.results import ReuseRun, busy_cores
from benchmarks.suite import ROOT, environment

Say = Callable[[str], None]

FILES = 20
CHANGED = (0, 1, 5, 20)
"""Files with other text, of `FILES`."""


def measure_reuse(
    folder: Path, *, tokenizer: TokenizerFile, text_bytes: int, rounds: int, say: Say
) -> list[ReuseRun]:
    """First builds, and builds that reuse them after some files have changed.

    Args:
        folder: folder of the corpus; needs room for about three times the text.
        text_bytes: size of all files.

    Raises:
        BenchmarkError: the corpus is absent, a build failed, or another number of units was run than
            the files account for.
    """
    work = folder / "reusing"
    shutil.rmtree(work, ignore_errors=True)
    (work / "in").mkdir(parents=True)
    runs = []
    try:
        original = folder / "english.jsonl"
        files = [work / "in" / f"{number:02d}.jsonl" for number in range(FILES)]
        write_files(original, files, text_bytes // FILES, "a")
        for number in range(1, rounds + 1):
            first = measure_once(work, "first build", tokenizer, number, 0)
            runs.append(first)
            for changed in CHANGED:
                write_files(original, files[:changed], text_bytes // FILES, "b")
                runs.append(measure_once(work, "reuse", tokenizer, number, changed))
                write_files(original, files[:changed], text_bytes // FILES, "a")
            for run in runs[-1 - len(CHANGED) :]:
                say(f"round {number}: {run.contender}, {run.changed} changed: {run.wall_seconds:.1f} s")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return runs


def write_files(original: Path, files: list[Path], size: int, mark: str) -> None:
    """Write files of about this size with distinct texts.

    Args:
        mark: beginning of all texts; another mark gives other texts of the same size.

    Raises:
        BenchmarkError: there is no corpus.
    """
    if not files:
        return
    try:
        lines = _marked_lines(original, mark)
        for path in files:
            done = 0
            with path.open("wb") as out:
                while done < size:
                    done += out.write(next(lines))
    except (OSError, StopIteration) as error:
        raise BenchmarkError(
            f"no corpus in {original}: {error}", hint="python -m benchmarks corpus"
        ) from error


def _marked_lines(original: Path, mark: str) -> Iterator[bytes]:
    """Records of the corpus, again and again; texts begin with the mark and the number of the copy."""
    for copy in range(1 << 20):
        with original.open("rb") as lines:
            for line in lines:
                head, quote, rest = line.partition(b'"text": "')
                if not quote:
                    head, quote, rest = line.partition(b'"text":"')
                yield head + quote + f"{mark}{copy} ".encode() + rest


def measure_once(work: Path, contender: str, tokenizer: TokenizerFile, number: int, changed: int) -> ReuseRun:
    """One build; the first one stays as the store that the others reuse."""
    out = work / ("old" if contender == "first build" else "new")
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "packline", "build", str(work / "in"), "--out", str(out), "--json"]
    command += ["--tokenizer", tokenizer.path, "--eod", tokenizer.eod]
    busy = busy_cores()
    if contender != "first build":
        command += ["--reuse", str(work / "old")]
    outcome = run_fresh(command, cwd=ROOT, env=environment())
    report = outcome.report
    run = ReuseRun(
        contender=contender,
        round=number,
        files=FILES,
        changed=changed,
        text_bytes=report["text_bytes"],
        run_text_bytes=report["run_text_bytes"],
        units=report["units"],
        units_reused=report["units_reused"],
        wall_seconds=outcome.wall_seconds,
        seconds=report["seconds"],
        busy_cores=busy,
    )
    if out.name == "new":
        shutil.rmtree(out)
        expected = run.text_bytes * changed / FILES
        if abs(run.run_text_bytes - expected) > 0.05 * run.text_bytes:
            raise BenchmarkError(
                f"{contender}, {changed} of {FILES} files changed: expected {expected / 1e6:,.0f} MB of text "
                f"to be encoded, found {run.run_text_bytes / 1e6:,.0f} MB"
            )
    return run
