"""Threads as workers: each unit is run and committed once; after an error or interruption none goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from packline.jobs.events import Event, Progress
from packline.jobs.executors import LocalThreads
from packline.jobs.job import Job, Opening, ReportProgress, Runner
from packline.jobs.plan import Unit


class Broken(Exception):
    """The injected fault."""


class Noted(Opening):
    """Units that the runners of a job have run and committed."""

    def __init__(self, fail_run: str = "", fail_commit: str = "") -> None:
        self.fail_run, self.fail_commit = fail_run, fail_commit
        self.runners: list[Noting] = []
        self.ran: list[str] = []
        self.committed: list[str] = []

    def open(self) -> Noting:
        self.runners.append(Noting(self))
        return self.runners[-1]


class Noting(Runner[Unit, str]):
    """A runner that is used by one thread alone, but for commits."""

    def __init__(self, noted: Noted) -> None:
        self.noted, self.threads = noted, set[int]()

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[str]:
        self.threads.add(threading.get_ident())
        self.noted.ran.append(unit.name)
        if unit.name == self.noted.fail_run:
            raise Broken
        for _ in range(3):
            report(1)
        yield unit.name.upper()

    def commit(self, unit: Unit, result: str) -> None:
        if unit.name == self.noted.fail_commit:
            raise Broken
        self.noted.committed.append(unit.name)


class Here(Job[Unit, str, None]):
    """A job with these runners."""

    result = str

    def __init__(self, noted: Noted) -> None:
        self.noted = noted

    def opening(self) -> Noted:
        return self.noted

    begin = todo = take = finish = Any  # type: ignore[assignment]


def names(count: int) -> list[str]:
    return [f"u{number}" for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_unit_is_run_and_committed_once_by_a_thread_with_a_runner_of_its_own(
    count: int, workers: int
) -> None:
    noted, here = Noted(), threading.get_ident()
    results: dict[str, str] = {}
    tokens = 0

    def heard(event: Event) -> None:
        nonlocal tokens
        assert isinstance(event, Progress) and threading.get_ident() == here
        tokens += event.tokens

    def done(name: str, result: str) -> None:
        assert name in noted.committed and name not in results and threading.get_ident() == here
        results[name] = result

    session = LocalThreads(Here(noted), workers)
    session.run([Unit(name) for name in names(count)], heard, done)
    session.close()
    assert results == {name: name.upper() for name in names(count)} and tokens == 3 * count
    assert sorted(noted.ran) == sorted(noted.committed) == sorted(names(count))
    assert len(noted.runners) == min(workers, count)
    assert all(len(runner.threads) <= 1 for runner in noted.runners)


@pytest.mark.parametrize("fault", ["fail_run", "fail_commit"])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_is_raised_here_and_what_is_reported_was_committed(workers: int, fault: str) -> None:
    noted = Noted(**{fault: "u7"})
    results: list[str] = []
    session = LocalThreads(Here(noted), workers)
    with pytest.raises(Broken):
        session.run(
            [Unit(name) for name in names(500)],
            lambda event: None,
            lambda name, result: results.append(name),
        )
    assert sorted(results) == sorted(noted.committed) and "u7" not in results
    assert len(noted.ran) < 500


def test_after_an_interruption_no_thread_is_left() -> None:
    noted, before = Noted(), threading.active_count()

    def interrupt(name: str, result: str) -> None:
        raise KeyboardInterrupt

    session = LocalThreads(Here(noted), 3)
    with pytest.raises(KeyboardInterrupt):
        session.run([Unit(name) for name in names(5000)], lambda event: None, interrupt)
    assert threading.active_count() == before
    assert len(noted.ran) < 5000
