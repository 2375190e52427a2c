"""Executors: results are committed once and in order, nothing after a failure, and progress adds up."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import executors
from packline.jobs.events import Event, Progress
from packline.jobs.executors import (
    Committer,
    LocalThreads,
    Reporter,
    Serial,
)
from packline.jobs.host import open_runner
from packline.jobs.job import Job, Opening, ReportProgress, Runner
from packline.jobs.plan import Unit

UNITS = st.lists(st.integers(0, 3), max_size=5)
"""Number of results of each unit."""


class Broken(Exception):
    """The injected fault."""


class Noting(Runner[Unit, str]):
    """A runner that notes what it makes and commits, and fails where it is told to."""

    def __init__(self, noted: Noted) -> None:
        self.noted, self.threads = noted, set[int]()

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[str]:
        self.threads.add(threading.get_ident())
        self.noted.ran.append(unit.name)
        if unit.name == self.noted.fail_run:
            raise Broken
        report(3)
        for number in range(self.noted.results.get(unit.name, 1)):
            own = [one for one in self.noted.committed if one.startswith(f"{unit.name}-")]
            assert number - len(own) <= 1, "one commit at a time, while the next is made"
            yield f"{unit.name}-{number}"

    def commit(self, unit: Unit, result: str) -> None:
        assert result.startswith(f"{unit.name}-")
        if result == self.noted.fail_commit:
            raise Broken
        self.noted.committed.append(result)


class Noted(Opening):
    """Notes of the runners of a job on what they have done.

    Args:
        results: number of results of each unit, by name; one of those that are not named.
    """

    def __init__(
        self, results: dict[str, int] | None = None, fail_run: str = "", fail_commit: str = ""
    ) -> None:
        self.results, self.fail_run, self.fail_commit = results or {}, fail_run, fail_commit
        self.runners: list[Noting] = []
        self.ran: list[str] = []
        self.committed: list[str] = []

    def open(self) -> Noting:
        self.runners.append(Noting(self))
        return self.runners[-1]


class Here(Job[Unit, str, None]):
    """A job with these runners."""

    def __init__(self, noted: Noted) -> None:
        self.noted = noted

    def opening(self) -> Noted:
        return self.noted

    begin = todo = take = finish = Any  # type: ignore[assignment]


def units_of(count: int) -> list[Unit]:
    return [Unit(f"u{number}", number) for number in range(count)]


def noted_of(counts: list[int], fail: str = "") -> Noted:
    return Noted({f"u{number}": count for number, count in enumerate(counts)}, fail_commit=fail)


def flat(results: list[int]) -> list[str]:
    """Results in the order in which they are committed."""
    return [f"u{number}-{place}" for number, count in enumerate(results) for place in range(count)]


def run_here(counts: list[int], fail: str = "") -> tuple[Noted, list[str]]:
    noted, results = noted_of(counts, fail), list[str]()

    def on_result(name: str, result: str) -> None:
        assert result in noted.committed and result.startswith(name)
        results.append(result)

    session = Serial(Here(noted))
    with pytest.raises(Broken) if fail else nullcontext():
        session.run(units_of(len(counts)), lambda event: None, on_result)
    return noted, results


@given(UNITS, st.data())
def test_results_are_committed_once_in_order_and_nothing_after_a_commit_that_failed(
    counts: list[int], data: st.DataObject
) -> None:
    names = flat(counts)
    fail = data.draw(st.sampled_from(["", *names]))
    noted, results = run_here(counts, fail)
    assert noted.committed == results == (names[: names.index(fail)] if fail else names)


@given(UNITS, st.booleans())
def test_a_unit_is_done_after_its_last_commit_or_never(counts: list[int], fails: bool) -> None:
    """As a worker sees it: messages come from the thread that commits."""
    names = flat(counts)
    fail = names[-1] if fails and names else ""
    runner, heard = noted_of(counts, fail).open(), list[str]()

    def done(name: str, error: BaseException | None) -> None:
        heard.append(f"done {name}" if error is None else f"failed {name}")

    def commit(unit: Unit, result: str) -> None:
        runner.commit(unit, result)
        heard.append(result)

    committer = Committer(runner, commit, lambda event: None, on_done=done)
    for unit in units_of(len(counts)):
        committer.run(unit)
    committer.close()
    expected: list[str] = []
    for number, count in enumerate(counts):
        own = [f"u{number}-{place}" for place in range(count)]
        expected += [one for one in own if one != fail]
        expected.append(f"failed u{number}" if fail in own and fail else f"done u{number}")
    if fail:  # units without any result after it may be done before its failure is noticed
        end = next(at for at, one in enumerate(expected) if one.startswith("failed"))
        assert heard[: end + 1] == expected[: end + 1]
    else:
        assert heard == expected


COUNT = st.integers(0, 9)


@given(st.lists(st.tuples(COUNT, COUNT, COUNT, st.floats(0, 0.3))))
def test_progress_adds_up_whatever_the_clock(steps: list[tuple[int, int, int, float]]) -> None:
    sent: list[Progress] = []
    now = [100.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        report = Reporter(sent.append)
        for tokens, documents, text_bytes, seconds in steps:
            report(tokens, documents, text_bytes)
            now[0] += seconds
        report.flush()
    totals = [(one.tokens, one.documents, one.text_bytes) for one in sent]
    assert [sum(column) for column in zip(*totals, strict=True)] == (
        [sum(step[place] for step in steps) for place in range(3)] if sent else []
    )
    assert bool(sent) == any(any(step[:3]) for step in steps)
    assert all(map(any, totals)), "an empty report is not sent"
    assert len(sent) <= 2 + sum(step[3] for step in steps) / executors.REPORT_SECONDS


# ------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("count", [0, 2, 40])
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
        assert result in noted.committed and name not in results and threading.get_ident() == here
        results[name] = result

    session = LocalThreads(Here(noted), workers)
    session.run(units_of(count), heard, done)
    session.close()
    names = [unit.name for unit in units_of(count)]
    assert results == {name: f"{name}-0" for name in names} and tokens == 3 * count
    assert sorted(noted.ran) == sorted(names) and sorted(noted.committed) == sorted(results.values())
    assert len(noted.runners) == min(workers, count)
    assert all(len(runner.threads) <= 1 for runner in noted.runners)


@pytest.mark.parametrize(("fail_run", "fail_commit"), [("u7", ""), ("", "u7-0")])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_is_raised_here_and_what_is_reported_was_committed(
    workers: int, fail_run: str, fail_commit: str
) -> None:
    noted, results = Noted(None, fail_run, fail_commit), list[str]()
    session = LocalThreads(Here(noted), workers)
    with pytest.raises(Broken):
        session.run(units_of(500), lambda event: None, lambda name, result: results.append(result))
    assert sorted(results) == sorted(noted.committed) and "u7-0" not in results
    assert len(noted.ran) < 500


def test_after_an_interruption_no_thread_is_left() -> None:
    noted, before = Noted(), threading.active_count()

    def interrupt(name: str, result: str) -> None:
        raise KeyboardInterrupt

    session = LocalThreads(Here(noted), 3)
    with pytest.raises(KeyboardInterrupt):
        session.run(units_of(5000), lambda event: None, interrupt)
    assert threading.active_count() == before
    assert len(noted.ran) < 5000


# ---------------------------------------------------------------- the host that workers are forked from


class Collecting(Noting):
    """A runner that notes whether the garbage collector is on while it is opened."""

    def __init__(self) -> None:
        self.collecting = gc.isenabled()


class Settings(Opening):
    """Settings without any."""

    def open(self) -> Collecting:
        """Runner."""
        return Collecting()


def test_workers_are_forked_with_the_collector_on_and_nothing_to_look_through() -> None:
    """It is off while the tokenizer is loaded; a worker without it would keep every cycle of its life."""
    before = len(gc.get_objects())
    try:
        runner = open_runner(Settings())
        assert isinstance(runner, Collecting) and not runner.collecting
        assert gc.isenabled()
        assert len(gc.get_objects()) < before / 10
    finally:
        gc.enable()
        gc.unfreeze()
