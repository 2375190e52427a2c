"""The driver of a build with many units: planned, resumed, recorded and published as always; no unit is run.

python -m benchmarks.contenders.planned_build UNITS TOKENIZER END_OF_DOCUMENT

The inputs are files without contents, so that a plan of any size is real. A unit is a receipt like that of a
worker, in the folder of receipts. What is measured is therefore the driver alone: its plan, the units on
their way, the receipts, the tables of the store.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from packline.encoders.parity import Reference
from packline.jobs.build_job import BuildJob
from packline.jobs.cut_inputs import LARGEST_UNIT
from packline.jobs.engine import run_job
from packline.jobs.events import EnginesTried, Event
from packline.jobs.job import Job
from packline.jobs.plan import Unit
from packline.jobs.resources import peak_memory, resident_memory
from packline.jobs.text_unit import BuildInfo, Built
from packline.recipe import Recipe, RunOptions, Source
from packline.store.files import FileEntry
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt, to_json
from packline.store.tables import SHARD_FILES, ShardEntry

FILE_UNITS = 1 << 12
"""Units of a file."""


class Pretended:
    """Executor whose units are committed without work."""

    width = 0

    def __init__(self, out: Path, text: str) -> None:
        tried = EnginesTried([], ["tokenizers"], "")
        self._out, self._info = out, BuildInfo(0.0, tried, Reference(text).round_trip)
        self.started = self.ended = 0.0

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """No process."""
        return 0

    def open(self, job: Job[Any, Any, Any], workers: int) -> Pretended:
        """See `RayTasks.open`."""
        self._job: Any = job
        return self

    def info(self) -> Any:
        """Facts of a host."""
        return self._info

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """Write the receipts of units."""
        self.started = time.perf_counter()
        for number, unit in enumerate(units):
            receipt = receipt_of(self._job, unit, number)
            path = self._out / "receipts" / f"{receipt.unit}.json"
            path.write_bytes(to_json(receipt))
            on_result(unit.name, Built(receipt, {}, {}, 0, 1.0, 0))
        self.ended = time.perf_counter()

    def close(self) -> None:
        """See `RayTasks.close`."""


def receipt_of(job: Any, unit: Any, number: int) -> Receipt:
    """Receipt of a unit with one shard, as a worker writes it."""
    mark = f"{number * 0x9E3779B97F4A7C15 % 2**128:032x}"
    name = f"train-{unit.name}"
    files = tuple(FileEntry(f"{name}{end}", 1_000_000 + number, mark) for end in SHARD_FILES.values())
    pieces = tuple(InputPiece(job.files[span.file].name, span.start, span.stop, mark) for span in unit.spans)
    ledger = Ledger(documents=60_000, tokens=60_000_000 + number, text_bytes=LARGEST_UNIT)
    shard = ShardEntry(name, "train", ledger.documents, ledger.tokens, files)
    return Receipt(unit.name, job.work.names[unit.source], pieces, (shard,), (), ledger, 8, settings=mark)


def main() -> None:
    """Measure, and report."""
    count, tokenizer, eod = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    text = Path(tokenizer).read_text()
    with tempfile.TemporaryDirectory(prefix="packline-units-") as folder:
        inputs, out = Path(folder, "in"), Path(folder, "out")
        inputs.mkdir()
        for number in range(-(-count // FILE_UNITS)):
            path = inputs / f"{number:06d}.jsonl"
            path.write_bytes(b'{"text": "a"}\n')
            os.truncate(path, min(count - number * FILE_UNITS, FILE_UNITS) * LARGEST_UNIT)
        recipe = Recipe(sources=(Source(inputs=(str(inputs),)),), tokenizer=tokenizer, eod=eod)
        executor = Pretended(out, text)  # loads the reference library
        before, started = resident_memory(), time.perf_counter()
        job = BuildJob(recipe, str(out), RunOptions(workers=0), time.monotonic(), "local")
        planned, units = time.perf_counter(), len(job.units)
        finished = run_job(job, cluster=executor)
        ended = time.perf_counter()
        assert finished.units == units, finished
    report = {
        "units": units,
        "driver_bytes": peak_memory() - before,
        "plan_seconds": planned - started,
        "begin_seconds": executor.started - planned,
        "unit_seconds": executor.ended - executor.started,
        "finish_seconds": ended - executor.ended,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
