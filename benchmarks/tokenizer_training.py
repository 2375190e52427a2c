"""How fast tokenizers are trained, beside rustbpe, gigatoken and HF.

`python -m benchmarks.tokenizer_training FILE`, of JSONL with `text`. Every run is a fresh process, contenders
in turn, round after round; medians of wall and of CPU time are printed, the second because on a busy machine
the first says little. HF is left out with --without huggingface: it takes minutes. Merges of packline,
gigatoken and HF must be the same, or the rates are of different work.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.process import run_fresh
from benchmarks.suite import ROOT, environment


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizer_training")
    parser.add_argument("file", type=Path)
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--patterns", default="gpt2,nanochat")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="trainers to leave out, with commas between them")
    options = parser.parse_args()
    print("| pattern | trainer | text | seconds | CPU seconds | memory | packline is faster by (wall, CPU) |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for pattern in options.patterns.split(","):
        names = ["packline", "rustbpe", *(["gigatoken"] if pattern == "gpt2" else []), "huggingface"]
        names = [name for name in names if name not in options.without.split(",")]
        runs: dict[str, list[dict[str, object]]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                runs[name].append(measure(name, options.file, options.vocab_size, pattern))
        merges = {run["merges"] for found in runs.values() for run in found} - {None}
        if len(merges) != 1:
            raise BenchmarkError(f"{pattern}: the trainers found different merges: expected the same")
        medians = {
            name: [median(found, field) for field in ("seconds", "cpu_seconds", "resident_bytes")]
            for name, found in runs.items()
        }
        for name, (seconds, cpu, resident) in medians.items():
            wall_ratio, cpu_ratio = seconds / medians["packline"][0], cpu / medians["packline"][1]
            size = f"{median(runs[name], 'text_bytes') / 1e6:.0f} MB"
            print(
                f"| {pattern} | {name} | {size} | {seconds:.1f} | {cpu:.1f} | {resident / 1e6:.0f} MB"
                f" | {wall_ratio:.1f}, {cpu_ratio:.1f} |",
                flush=True,
            )


def measure(name: str, file: Path, vocab_size: int, pattern: str) -> dict[str, object]:
    """One run in a fresh process."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.contenders.training",
        name,
        str(file),
        str(vocab_size),
        pattern,
    ]
    return run_fresh(words, cwd=ROOT, env=environment()).report


def median(runs: list[dict[str, object]], field: str) -> float:
    """Of a field of some runs."""
    return statistics.median(float(str(run[field])) for run in runs)


if __name__ == "__main__":
    main()
