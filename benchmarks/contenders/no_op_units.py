"""Run units without work, and write and read the plan of a build with as many.

python -m benchmarks.contenders.no_op_units UNITS WORKERS
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.units import NoOpJob
from packline.jobs.engine import run_job
from packline.jobs.plan import PLAN, Plan, Unit, read_plan, record_plan
from packline.jobs.resources import peak_memory, resident_memory
from packline.recipe import Recipe, Source
from packline.sources.reader import Span
from packline.storage.local import LocalFolder
from packline.storage.results import WORK
from packline.store.manifest import TokenizerEntry


def main() -> None:
    """Measure, and report."""
    count, workers = int(sys.argv[1]), int(sys.argv[2])
    before = resident_memory()
    started = time.perf_counter()
    found = run_job(NoOpJob(count, workers))
    seconds = time.perf_counter() - started
    assert found == count * (count - 1) // 2, found
    report = {"seconds": seconds, "driver_bytes": max(peak_memory() - before, 0)}
    print(json.dumps({**report, **plan(count)}))


def plan(count: int) -> dict[str, float]:
    """Bytes of the plan of a build with this number of units, and seconds to write and to read it."""

    def unit(number: int) -> Unit:
        start = (number & 63) << 28
        return Unit(f"web-{number:06d}", number, 0, (Span(number >> 6, start, start + (1 << 28)),), 1 << 28)

    entry = TokenizerEntry("t", "huggingface", "0" * 32, 50_257, 0, "e", None, None, "")
    recipe = Recipe(sources=(Source(inputs=("web",), name="web"),), tokenizer="t")
    units = [unit(number) for number in range(count)]
    made = Plan(build="b", recipe=recipe, tokenizer=entry, dtype="uint16", units=units)
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalFolder(Path(folder))
        started = time.perf_counter()
        record_plan(storage, made)
        written = time.perf_counter()
        again = read_plan(storage)
        read = time.perf_counter()
        assert again is not None and again.units == units
        size = Path(folder, WORK, PLAN).stat().st_size
    return {"plan_bytes": size, "plan_write_seconds": written - started, "plan_read_seconds": read - written}


if __name__ == "__main__":
    main()
