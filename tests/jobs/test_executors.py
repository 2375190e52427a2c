"""Executors: results are committed in order, a failure commits nothing after it, and progress adds up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import executors
from packline.jobs.events import Failed, Progress
from packline.jobs.executors import (
    REPLIES,
    Committed,
    Committer,
    Done,
    Opened,
    Reporter,
    Serial,
    encode,
)
from packline.jobs.job import Job, Opening, ReportProgress, Runner
from packline.jobs.plan import Unit

UNITS = st.lists(st.integers(0, 3), max_size=5)
"""Number of results of each unit."""


class Broken(Exception):
    """The injected fault."""


class Noting(Runner[Unit, str]):
    """A runner that notes what it makes and commits, and fails to commit one result."""

    def __init__(self, results: list[int], fail: str = "") -> None:
        self.results, self.fail = results, fail
        self.made: list[str] = []
        self.committed: list[str] = []

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[str]:
        for number in range(self.results[unit.number]):
            assert len(self.made) - len(self.committed) <= 1, "one commit at a time, while the next is made"
            self.made.append(f"{unit.name}-{number}")
            yield self.made[-1]

    def commit(self, unit: Unit, result: str) -> None:
        assert result.startswith(unit.name)
        if result == self.fail:
            raise Broken
        self.committed.append(result)


class Ready(Opening):
    """Settings of a runner that is open."""

    def __init__(self, runner: Noting) -> None:
        self.runner = runner

    def open(self) -> Noting:
        return self.runner


class Here(Job[Unit, str, None]):
    """A job with this runner."""

    result = str

    def __init__(self, runner: Noting) -> None:
        self.runner = runner

    def opening(self) -> Opening:
        return Ready(self.runner)

    begin = todo = take = finish = Any  # type: ignore[assignment]


def units_of(results: list[int]) -> list[Unit]:
    return [Unit(f"u{number}", number) for number in range(len(results))]


def flat(results: list[int]) -> list[str]:
    """Results in the order in which they are committed."""
    return [f"u{number}-{place}" for number, count in enumerate(results) for place in range(count)]


def run_here(counts: list[int], fail: str = "") -> tuple[Noting, list[str]]:
    runner, results = Noting(counts, fail), list[str]()

    def on_result(name: str, result: str) -> None:
        assert result in runner.committed and result.startswith(name)
        results.append(result)

    session = Serial(Here(runner))
    try:
        session.run(units_of(counts), lambda event: None, on_result)
    except Broken:
        assert fail
    else:
        assert not fail
    return runner, results


@given(UNITS)
def test_all_results_of_units_are_committed_once_in_order(counts: list[int]) -> None:
    runner, results = run_here(counts)
    assert results == runner.committed == flat(counts)


@given(UNITS.filter(any), st.data())
def test_nothing_is_committed_after_a_commit_that_failed(counts: list[int], data: st.DataObject) -> None:
    names = flat(counts)
    fail = data.draw(st.sampled_from(names))
    runner, results = run_here(counts, fail)
    assert runner.committed == results == names[: names.index(fail)]


@given(UNITS, st.booleans())
def test_a_unit_is_done_after_its_last_commit_or_never(counts: list[int], fails: bool) -> None:
    """As a worker sees it: messages come from the thread that commits."""
    names = flat(counts)
    fail = names[-1] if fails and names else ""
    runner, heard = Noting(counts, fail), list[str]()

    def done(name: str, error: BaseException | None) -> None:
        heard.append(f"done {name}" if error is None else f"failed {name}")

    def commit(unit: Unit, result: str) -> None:
        runner.commit(unit, result)
        heard.append(result)

    committer = Committer(runner, commit, lambda event: None, on_done=done)
    for unit in units_of(counts):
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


def test_each_message_is_told_from_the_others() -> None:
    raw = encode({"a": [1, "é"]})
    replies = (Opened(raw), Progress("web", 1, 2, 3), Committed("u", raw), Done("u"))
    for reply in (*replies, Failed("StoreError", "m", "h")):
        assert REPLIES.decode(encode(reply)) == reply
