"""Executors: results are committed in order, a failure commits nothing after it, and progress adds up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.jobs import executor
from packline.jobs.events import Failed, Progress
from packline.jobs.executor import (
    Reporter,
    Serial,
)
from packline.jobs.host_process import REPLIES, REQUESTS, Committed, Drop, Opened, Run, Start, encode
from packline.jobs.job import Job, ReportProgress, Runner, WorkUnit

UNITS = st.lists(st.none() | st.integers(0, 3), max_size=5)
"""Units, and streams with this number of units."""


class Broken(Exception):
    """The injected fault."""


class Noting(Runner[WorkUnit, str]):
    """A runner that notes what it runs and commits, and fails to commit one unit."""

    unit = WorkUnit

    def __init__(self, parts: list[int | None], fail: str = "") -> None:
        self.parts, self.fail = parts, fail
        self.ran: list[str] = []
        self.committed: list[str] = []

    def run(self, unit: WorkUnit, report: ReportProgress) -> str:
        assert len(self.ran) - len(self.committed) <= 1, "one commit at a time, while the next unit runs"
        self.ran.append(unit.name)
        return unit.name.upper()

    def commit(self, unit: WorkUnit, result: str) -> None:
        if unit.name == self.fail:
            raise Broken
        self.committed.append(unit.name)

    def cut(self, unit: WorkUnit) -> Iterator[WorkUnit | str]:
        for part in range(self.parts[int(unit.name[1:])] or 0):
            yield WorkUnit(name=f"{unit.name}-{part}")
        yield unit.name.upper()


class Here(Job[WorkUnit, str, None]):
    """A job with this runner."""

    result = str

    def __init__(self, runner: Noting) -> None:
        self.runner = runner

    def open_here(self) -> Noting:
        return self.runner

    begin = opening = take = finish = Any  # type: ignore[assignment]


def units_of(parts: list[int | None]) -> list[WorkUnit]:
    return [WorkUnit(name=f"u{n}", is_stream=count is not None) for n, count in enumerate(parts)]


def flat(parts: list[int | None]) -> list[str]:
    """Names in the order in which they are committed."""
    names = ([*(f"u{n}-{part}" for part in range(count or 0)), f"u{n}"] for n, count in enumerate(parts))
    return list(itertools.chain.from_iterable(names))


def run_here(parts: list[int | None], fail: str = "", most: int | None = None) -> tuple[Noting, list[str]]:
    runner, results = Noting(parts, fail), list[str]()

    def on_result(name: str, result: str) -> None:
        assert name in runner.committed and result == name.upper()
        results.append(name)

    enough = None if most is None else lambda: len(results) >= most
    session = Serial().open(Here(runner))
    try:
        session.run(units_of(parts), lambda event: None, on_result, enough)
    except Broken:
        assert fail
    else:
        assert not fail
    return runner, results


@given(UNITS)
def test_units_and_parts_of_streams_are_committed_once_in_order(parts: list[int | None]) -> None:
    runner, results = run_here(parts)
    assert results == runner.committed == flat(parts)


@given(UNITS, st.integers(0, 12))
def test_no_result_is_taken_after_there_are_enough(parts: list[int | None], most: int) -> None:
    runner, results = run_here(parts, most=most)
    assert results == runner.committed == flat(parts)[:most]


@given(UNITS.filter(bool), st.data())
def test_nothing_is_committed_after_a_commit_that_failed(
    parts: list[int | None], data: st.DataObject
) -> None:
    names = flat(parts)
    fail = data.draw(st.sampled_from(names))
    runner, results = run_here(parts, fail)
    assert runner.committed == results == names[: names.index(fail)]


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
    assert len(sent) <= 2 + sum(step[3] for step in steps) / executor.REPORT_SECONDS


def test_each_message_is_told_from_the_others() -> None:
    raw = encode({"a": [1, "é"]})
    for message in (Start("m", "n", raw, 2, "d"), Run([raw, raw], True), Drop()):
        assert REQUESTS.decode(encode(message)) == message
    for reply in (Opened(raw), Progress("web", 1, 2, 3), Committed("u", raw), Failed("StoreError", "m", "h")):
        assert REPLIES.decode(encode(reply)) == reply
