"""Speed of this checkout beside another one, such as an earlier commit.

    git worktree add ../earlier COMMIT
    python -m benchmarks against --other ../earlier --tokenizer qwen3/tokenizer.json --rounds 5

Each task runs in a fresh process of the same interpreter, in both checkouts in turn; which comes first
alternates. A task is code for both: a command, or Python calls that both have. The ratio is this checkout's
speed over the other's: below 1, this one is slower.
"""

from __future__ import annotations

import compileall
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.errors import BenchmarkError

SECONDS = 2.0
"""Duration of each measurement of batches and rows."""

OPEN = "import packline, time, itertools, json\nstore = packline.open('store')\n"
CLOCK = """
def rate(work, seconds={seconds}):
    work(0)
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        done += 1
        work(done)
    return spent / max(done, 1)
"""
BATCHES = OPEN + CLOCK
TASKS: dict[str, str] = {
    "import packline": "import packline, packline.recipe",
    "packline --version": "$ --version",
    "packline info": "$ info store",
    "build, 3 MB": "$ build small.jsonl --tokenizer tokenizer.json --eod EOD --out OUT",
    "build": "$ build large.jsonl --tokenizer tokenizer.json --eod EOD --out OUT",
    "build, one worker": "$ build large.jsonl --tokenizer tokenizer.json --eod EOD --workers 1 --out OUT",
    "verify": "$ verify store",
    "export megatron, copied": "$ export store --to megatron --link copy --out OUT",
    "export llmc": "$ export store --to llmc --out OUT",
    "export npz": "$ export store --to npz --seq-len 1024 --out OUT",
    "export mds": "$ export store --to mds --seq-len 1024 --packing best_fit --out OUT",
    "import megatron": "$ import megatron --from megatron --tokenizer tokenizer.json --eod EOD --out OUT",
    "bake": "$ export store --to baked --seq-len 1024 --packing best_fit --seed 1 --out OUT",
    "analyze": "$ analyze store",
    "open a store": OPEN,
    "loader, concat": BATCHES
    + "rows = store.rows(4096)\n"
    + "loader = packline.Loader(rows, batch_size=32, seed=1)\n"
    + "print(rate(lambda step: loader.batch(step % (len(rows) // 32))))",
    "loader, best_fit": BATCHES
    + "rows = store.rows(4096, packing='best_fit')\n"
    + "loader = packline.Loader(rows, batch_size=32, seed=1)\n"
    + "print(rate(lambda step: loader.batch(step % (len(rows) // 32))))",
    "best_fit, plan": BATCHES
    + "number = itertools.count(1)\n"
    + "rows = lambda step: store.rows(512 + next(number), packing='best_fit')\n"
    + "print(rate(rows))",
    "rows.read of 8": BATCHES
    + "rows = store.rows(1024)\n"
    + "print(rate(lambda step: rows.read(range(step % 1000, step % 1000 + 8))))",
    "rows, one by one": BATCHES
    + "rows = store.rows(1024)\n"
    + "print(rate(lambda step: rows[step % len(rows)].tokens))",
    "documents, one by one": BATCHES
    + "documents = store.documents\n"
    + "print(rate(lambda step: documents[step % len(documents)]))",
    "trace a step": "$ trace store --seq-len 1024 --batch-size 8 --seed 1 --step 20",
}
"""Tasks by name: arguments of a command after `$`, else Python that prints its seconds or is timed whole."""


@dataclass
class Compared:
    """Seconds of a task, per round."""

    this: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Speed of this checkout over the other's, by medians."""
        return statistics.median(self.other) / statistics.median(self.this)


def measure_against(
    folder: Path,
    other: Path,
    tokenizer: Path,
    eod: str,
    *,
    rounds: int,
    names: Sequence[str] = tuple(TASKS),
    seconds: float = SECONDS,
    say: Callable[[str], None],
) -> dict[str, Compared]:
    """Run every task in both checkouts, round by round.

    Args:
        folder: folder of the corpus (`english.jsonl`); work is done in a folder within.
        other: the other checkout.
        names: tasks to run.
        seconds: duration of each measurement of batches and rows.

    Raises:
        BenchmarkError: a task failed in one of them.
    """
    roots = {"this": Path(__file__).resolve().parents[1], "other": other.resolve()}
    found = {name: Compared() for name in names}
    for side in roots:
        _prepare(folder, folder / "against" / side, roots[side], tokenizer, eod)
    try:
        for number in range(rounds):
            for name in names:
                for side in sorted(roots, reverse=bool(number % 2)):
                    task = TASKS[name].replace("{seconds}", str(seconds))
                    getattr(found[name], side).append(_run(task, folder / "against" / side, roots[side], eod))
                this, that = found[name].this[-1], found[name].other[-1]
                say(f"round {number + 1}: {name}: {this:.4g} s, other {that:.4g} s, ratio {that / this:.2f}")
    finally:
        shutil.rmtree(folder / "against", ignore_errors=True)
    return found


def find_tasks(only: tuple[str, ...]) -> list[str]:
    """Names of the tasks that begin with one of these; all if there are none.

    Raises:
        BenchmarkError: no task has such a name.

    >>> find_tasks(("pack", "trace"))
    ['packline --version', 'packline info', 'trace a step']
    """
    names = [name for name in TASKS if not only or name.startswith(only)]
    if not names:
        raise BenchmarkError(f"no task begins with {', '.join(only)}: expected one of {', '.join(TASKS)}")
    return names


def table(found: dict[str, Compared]) -> Iterator[str]:
    """Lines of a table of medians and ratios."""
    yield f"{'task':34} {'this, s':>10} {'other, s':>10} {'ratio':>6}  range of ratios"
    for name, one in found.items():
        ratios = sorted(that / this for this, that in zip(one.this, one.other, strict=True))
        this, that = statistics.median(one.this), statistics.median(one.other)
        yield f"{name:34} {this:>10.4g} {that:>10.4g} {one.ratio:>6.2f}  {ratios[0]:.2f} to {ratios[-1]:.2f}"


def _prepare(folder: Path, place: Path, root: Path, tokenizer: Path, eod: str) -> None:
    """Write the inputs of the tasks: text, a store of it, and a data set to import.

    Compiles the checkout first: where Python may not write bytecode, the first import by each process would
    compile, and the size of the source would be measured too.
    """
    compileall.compile_dir(root / "src", quiet=1)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    os.symlink(folder / "english.jsonl", place / "large.jsonl")
    shutil.copy(tokenizer, place / "tokenizer.json")
    with (folder / "english.jsonl").open("rb") as lines, (place / "small.jsonl").open("wb") as small:
        while small.tell() < 3_000_000 and (line := lines.readline()):
            small.write(line)
    _run("$ build large.jsonl --tokenizer tokenizer.json --eod EOD --out store", place, root, eod)
    _run("$ export store --to megatron --out megatron", place, root, eod)


def _run(task: str, place: Path, root: Path, eod: str) -> float:
    """Run a task once and return its seconds."""
    shutil.rmtree(place / "out", ignore_errors=True)
    words = ["-c", task]
    if task.startswith("$ "):
        arguments = {"OUT": "out", "EOD": eod}
        words = ["-m", "packline", *(arguments.get(word, word) for word in task[2:].split())]
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "XDG_CACHE_HOME": str(place / "cache")}
    os.sync()
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise BenchmarkError(f"{task}: exit code {done.returncode} in {root}\n{done.stderr[-2000:]}")
    return float(done.stdout) if "print(" in task else seconds
