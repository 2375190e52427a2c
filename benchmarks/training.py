"""How fast tokenizers are trained, beside other trainers on the same texts and the same expression.

The first documents of `english.jsonl` lie in memory as strings before anything is timed; the time is from
there to the merges. Every run is a fresh process, contenders in turn, round after round. packline, gigatoken
and HF must find the same merges, or the rates are of different work; rustbpe breaks ties in its own way.

The whole command, `packline tokenizer train` with reading and writing, is measured beside them.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError
from benchmarks.process import Outcome, run_fresh
from benchmarks.results import Results, TrainingRun
from benchmarks.suite import ROOT, environment, peer_versions
from packline.encoders.tiktoken import pattern_of

PATTERNS = ("gpt2", "gpt4", "nanochat")
COMMAND = "packline tokenizer train, whole command"

Say = Callable[[str], None]


def measure_training(
    folder: Path,
    results: Results,
    *,
    text_bytes: int,
    vocab_size: int,
    rounds: int,
    peers_python: str | None,
    say: Say,
) -> None:
    """Measure every trainer on every pattern, and put the runs into `results`, in place of older ones.

    Raises:
        BenchmarkError: the corpus is absent, a trainer failed, or two found different merges.
    """
    results.training = []
    results.left_out = [line for line in results.left_out if not line.startswith("training")]
    if peers_python is None:
        results.left_out.append("training by rustbpe: no interpreter with peers was named")
    else:
        results.versions |= peer_versions(peers_python, ("rustbpe",))
    work = folder / "training"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        size = write_beginning(folder / "english.jsonl", work / "texts.jsonl", text_bytes)
        for number in range(1, rounds + 1):
            for pattern in PATTERNS:
                for name in trainers(pattern, peers_python is not None):
                    run = measure_once(name, work, pattern, vocab_size, number, size, peers_python)
                    say(f"round {number}: {pattern}: {name}: {run.seconds:.1f} s")
                    results.training.append(run)
            check_merges(results.training)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def trainers(pattern: str, peers: bool) -> list[str]:
    """Those that know a pattern, packline first.

    >>> trainers("gpt4", peers=False)
    ['packline', 'packline tokenizer train, whole command', 'HF tokenizers']
    """
    others = ["gigatoken"] if pattern == "gpt2" else []
    return ["packline", COMMAND, *(["rustbpe"] if peers else []), *others, "HF tokenizers"]


def write_beginning(source: Path, target: Path, text_bytes: int) -> int:
    """The first documents of a file with at least so many bytes of text; how many they have.

    Raises:
        BenchmarkError: there is no such file, or less text in it.
    """
    found = 0
    try:
        with source.open("rb") as lines, target.open("wb") as out:
            for line in lines:
                if found >= text_bytes:
                    break
                found += len(json.loads(line)["text"].encode())
                out.write(line)
    except OSError as error:
        raise BenchmarkError(f"no corpus in {source}: {error}", hint="python -m benchmarks corpus") from error
    if found < text_bytes:
        raise BenchmarkError(
            f"{source} has {found / 1e6:.0f} MB of text: expected {text_bytes / 1e6:.0f} MB",
            hint="a larger `corpus --size`, or a smaller `training --size`",
        )
    return found


def measure_once(
    name: str, work: Path, pattern: str, vocab_size: int, number: int, text_bytes: int, peers: str | None
) -> TrainingRun:
    """One run in a fresh process."""
    texts, out = work / "texts.jsonl", work / "tokenizer"
    if name == COMMAND:
        command = [sys.executable, "-m", "packline", "tokenizer", "train", str(texts), "--out", str(out)]
        command += ["--vocab-size", str(vocab_size), "--pattern", pattern, "--specials", "none", "--json"]
    else:
        python = peers if name == "rustbpe" else sys.executable
        command = [str(python), "-m", "benchmarks.contenders.training", name, str(texts), str(vocab_size)]
        command += [pattern, pattern_of(pattern).expression]
    try:
        outcome = run_fresh(command, cwd=ROOT, env=environment())
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return run_of(name, pattern, vocab_size, number, text_bytes, outcome)


def run_of(
    name: str, pattern: str, vocab_size: int, number: int, text_bytes: int, outcome: Outcome
) -> TrainingRun:
    """What a trainer printed, as a run.

    Raises:
        BenchmarkError: it read other texts than it was given.
    """
    report: dict[str, Any] = outcome.report
    if report["text_bytes"] != text_bytes:
        raise BenchmarkError(f"{name} read {report['text_bytes']} bytes of text: expected {text_bytes}")
    whole = name == COMMAND
    return TrainingRun(
        contender=name,
        pattern=pattern,
        vocab_size=vocab_size,
        round=number,
        text_bytes=text_bytes,
        seconds=outcome.wall_seconds if whole else report["seconds"],
        resident_bytes=outcome.main.resident if whole else report["resident_bytes"],
        merges=None if whole else report["merges"],
    )


def check_merges(runs: list[TrainingRun]) -> None:
    """Refuse rates of different work.

    Raises:
        BenchmarkError: two trainers that follow HF's rules found different merges.
    """
    for pattern in dict.fromkeys(run.pattern for run in runs):
        found = {run.merges: run.contender for run in runs if run.pattern == pattern and run.merges}
        if len(found) > 1:
            raise BenchmarkError(f"{pattern}: {' and '.join(found.values())} found different merges")
