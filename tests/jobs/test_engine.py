"""The driver of a job: what is finished is not begun, and whatever fails, processes end before the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs.engine import run_job, run_units
from packline.jobs.executors import Serial
from packline.jobs.job import Job, Opening, ReportProgress, Runner, Session
from packline.jobs.plan import Unit

STEPS = ["enter", "begin", "announce", "open", "opened", "run", "commit", "take", "finish"]


class Squares(Runner[Unit, int]):
    """A runner whose result is a square, and whose progress is the number, in two parts."""

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[int]:
        report(unit.number // 2)
        report(unit.number - unit.number // 2)
        yield unit.number**2


class Settings(Opening, msgspec.Struct):
    """Settings without any."""

    def open(self) -> Squares:
        return Squares()


class Broken(Exception):
    """The injected fault."""


class NotingSquares(Squares):
    """The runner of the job below."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[int]:
        self.note("run")
        return super().run(unit, report)

    def commit(self, unit: Unit, result: int) -> None:
        self.note("commit")


class NotingSettings(Settings):
    """Settings that open it."""

    note: Callable[[str], None]

    def open(self) -> NotingSquares:
        return NotingSquares(self.note)


class Noting(Job[Unit, int, list[int]]):
    """A job, its folder and its executor in one, which notes every call and fails at one of them."""

    def __init__(self, fail: str = "", summary: list[int] | None = None) -> None:
        self.calls: list[str] = []
        self.fail, self.summary, self.results = fail, summary, list[int]()
        self.folder: Any = self

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fail:
            raise Broken(name)

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        return 0

    def __enter__(self) -> None:
        self.note("enter")

    def __exit__(self, *_: object) -> None:
        self.note("exit")

    def begin(self) -> list[int] | None:
        self.note("begin")
        return self.summary

    def todo(self) -> Sequence[Unit]:
        return [Unit.of(number) for number in (3, 1, 2)]

    def announce(self, todo: Sequence[Unit], workers: int) -> None:
        self.note("announce")

    def opening(self) -> Opening:
        return NotingSettings(self.note)

    def open(self, job: Job[Any, Any, Any], workers: int) -> Session:
        self.note("open")
        session = Serial(job, workers)
        session.close = self.close  # type: ignore[method-assign]
        return session

    def close(self) -> None:
        self.note("close")

    def run(self, session: Session, units: Sequence[Unit]) -> None:
        session.info()
        self.note("opened")
        super().run(session, units)

    def take(self, name: str, result: int) -> None:
        self.note("take")
        self.results.append(result)

    def finish(self) -> list[int]:
        self.note("finish")
        return self.results


def run_noting(job: Noting) -> list[int]:
    return run_job(job, None, job)


def test_the_steps_of_a_job_have_one_order() -> None:
    job = Noting()
    assert run_noting(job) == [9, 1, 4]
    assert list(dict.fromkeys(job.calls)) == [*STEPS[:-1], "close", "finish", "exit"]
    assert job.calls.count("commit") == job.calls.count("take") == 3
    assert all(
        job.calls[:place].count("commit") > job.calls[:place].count("take")
        for place, name in enumerate(job.calls)
        if name == "take"
    ), "a result counts once it is committed"


@pytest.mark.parametrize("fail", STEPS)
def test_a_fault_at_any_step_ends_processes_before_the_lock(fail: str) -> None:
    job = Noting(fail)
    with pytest.raises(Broken, match=fail):
        run_noting(job)
    assert "finish" not in job.calls or fail == "finish"
    assert "close" in job.calls
    if fail != "enter":
        assert job.calls[-1] in ("exit", "close") and "exit" in job.calls
        assert "close" in job.calls[: job.calls.index("exit")] or fail in STEPS[:4], "an executor may write"


def test_a_finished_job_does_nothing() -> None:
    job = Noting(summary=[7])
    assert run_noting(job) == [7]
    assert job.calls == ["enter", "begin", "exit", "close"]


@given(st.lists(st.integers(0, 50), unique=True))
def test_results_without_a_folder_are_in_the_order_of_the_units(numbers: list[int]) -> None:
    tokens: list[int] = []
    units = [Unit.of(number) for number in numbers]
    assert run_units(Settings(), units, workers=0, on_tokens=tokens.append) == [n * n for n in numbers]
    assert sum(tokens) == sum(numbers)
