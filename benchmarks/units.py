"""Units without work: what the engine itself takes for each, and the plan of a build with many.

Everything is measured in a fresh process (`contenders.no_op_units`), on the executor of every local build: a
host and its workers. The units are made when they are sent, as those of a build are from its plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import msgspec

from benchmarks.catalogue import TokenizerFile
from benchmarks.process import run_fresh
from benchmarks.results import busy_cores
from benchmarks.suite import ROOT, environment
from benchmarks.units_run import UnitsRun
from packline.jobs.job import Job, Opening, ReportProgress, Runner
from packline.jobs.plan import Unit

Say = Callable[[str], None]
STEPS = ("plan", "begin", "unit", "finish")
"""Steps of a driver that are timed."""


class NoOpSettings(Opening, msgspec.Struct, frozen=True):
    """Settings of units without work."""

    def open(self) -> NoOpRunner:
        """Runner of the units."""
        return NoOpRunner()


class NoOpRunner(Runner[Unit, int]):
    """Returns the number of a unit."""

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[int]:
        """The unit's number."""
        yield unit.number


class NumberedUnits(Sequence[Unit]):
    """Units that are made when they are used."""

    def __init__(self, count: int) -> None:
        self._numbers = range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Unit: ...

    @overload
    def __getitem__(self, place: slice) -> list[Unit]: ...

    def __getitem__(self, place: int | slice) -> Unit | list[Unit]:
        if isinstance(place, slice):
            return [Unit.of(number) for number in self._numbers[place]]
        return Unit.of(self._numbers[place])


class NoOpJob(Job[Unit, int, int]):
    """Units without work; the sum of their numbers is the result."""

    def __init__(self, units: int, workers: int) -> None:
        self._units, self._workers, self._sum = units, workers, 0

    def begin(self) -> None:
        """Nothing is kept."""

    def todo(self) -> Sequence[Unit]:
        """All units."""
        return NumberedUnits(self._units)

    def workers(self, units: int) -> int:
        """Number of processes."""
        return self._workers

    def opening(self) -> NoOpSettings:
        """No settings."""
        return NoOpSettings()

    def take(self, name: str, result: int) -> None:
        """Add a number."""
        self._sum += result

    def finish(self) -> int:
        """The sum."""
        return self._sum


def measure_units(counts: Sequence[int], *, workers: int, rounds: int, say: Say) -> list[UnitsRun]:
    """Seconds and memory for these numbers of units."""
    runs = []
    for round in range(rounds):
        for count in counts:
            busy = busy_cores()
            command = [sys.executable, "-m", "benchmarks.contenders.no_op_units", str(count), str(workers)]
            paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
            outcome = run_fresh(command, cwd=ROOT, env={**environment(), **paths})
            report: dict[str, Any] = outcome.report
            runs.append(UnitsRun(units=count, workers=workers, round=round, busy_cores=busy, **report))
            say(f"{count:,} units: {count / runs[-1].seconds:,.0f} a second")
    return runs


def measure_drivers(counts: Sequence[int], *, tokenizer: TokenizerFile, say: Say) -> list[int]:
    """Memory of the driver of builds with about these numbers of units (`contenders.planned_build`)."""
    found = []
    for count in counts:
        words = [str(count), tokenizer.path, tokenizer.eod]
        command = [sys.executable, "-m", "benchmarks.contenders.planned_build", *words]
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
        report = run_fresh(command, cwd=ROOT, env={**environment(), **paths}).report
        found.append(int(report["driver_bytes"]))
        steps = ", ".join(f"{name} {report[f'{name}_seconds']:.1f} s" for name in STEPS)
        say(f"{report['units']:,} units: {found[-1] / 1e6:.0f} MB more in the driver; {steps}")
    return found
