"""The driver of every job: look, resume, run, commit, sum up, publish.

Interrupted at any time, the same job resumes with the units that have no receipt, and the bytes are the same,
whatever the executor.

Slices: several processes share the units of a job without a coordinator.

    units in the order of a keyed permutation      0  1  2  3  4  5  6  7  8  9 10 11
    slice 0 of 3 begins with                       ^        ^        ^        ^
    then with what has no receipt, from the end    other slices are gone, late or slow

Every slice runs its units in rounds: before each it looks at one listing of receipts. So slices that help
each other meet in the middle, and at most a round is run twice, with the same bytes. A file that cannot be
cut is read from its start, so no slice helps with those of another. A slice that sees the last receipt
publishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np

from packline.errors import RecipeError, UnitsLeft
from packline.jobs.events import Event, Progress
from packline.jobs.executors import LocalProcesses, LocalThreads, Serial
from packline.jobs.job import Job, Opening, Session
from packline.jobs.machines import On, Slice, check_on, cluster_executor
from packline.jobs.plan import Unit
from packline.permutation import Permutation

U = TypeVar("U", bound=Unit)
R = TypeVar("R")
S = TypeVar("S")
KEY = 15
LISTINGS = 10
"""Time of a round, in listings of receipts."""


def common_order(units: int) -> list[int]:
    """Place of each planned unit in the order that all slices share."""
    return Permutation(units, KEY)(np.arange(units)).tolist() if units else []


def units_of_slice(left: Sequence[U], places: Sequence[int], slice: Slice) -> tuple[list[U], list[U]]:
    """Units that a slice begins with, and those of others to help with: their last ones first.

    Each slice begins to help elsewhere.

    Args:
        places: `common_order` of all units, done or not.
    """
    ordered = sorted(left, key=lambda unit: places[unit.number])
    own = [unit for unit in ordered if places[unit.number] % slice.count == slice.number]
    others = [unit for unit in reversed(ordered) if not unit.slice_bytes]
    start = len(others) * slice.number // slice.count
    return own, others[start:] + others[:start]


def run_slice(job: Job[U, Any, Any], session: Session, todo: Sequence[U], slice: Slice) -> None:
    places, left, listing, each = common_order(job.planned), todo, 0.0, 1.0
    if not todo:
        job.run(session, todo)
    while any(found := units_of_slice(left, places, slice)):
        own, others = found
        units = own or others
        began, size = time.monotonic(), round_size(len(own), session.width, listing, each)
        job.run(session, units[:size])
        ran = time.monotonic()
        left = job.todo()
        listing, each = time.monotonic() - ran, (ran - began) / min(size, len(units))
    if left:
        files = sum(unit.slice_bytes > 0 for unit in left)
        what = f"{len(left) - files:,} units" + (f" and {files:,} compressed files" if files else "")
        raise UnitsLeft(
            f"slice {slice} is done; {what} are left to other slices",
            hint="the slice that commits the last unit publishes; if one was lost, run its command again",
        )


def round_size(left: int, workers: int, listing: float, each: float) -> int:
    """Units of a slice's next round: few at the end, where slices meet, and enough to be worth a listing.

    Args:
        left: units left of those that the slice begins with; 0 if it helps others.
        listing: seconds of the last listing of receipts.
        each: seconds of a unit in the last round, with all workers.
    """
    return max(left // 4, 2 * max(workers, 1), int(LISTINGS * listing / max(each, 1e-3)))


def run_job(
    job: Job[Any, Any, S],
    on_event: Callable[[Event], None] | None = None,
    cluster: Any = None,
    on: On = "local",
) -> S:
    """Run a job, or resume it.

    Args:
        on_event: called with every event, in this thread.
        cluster: runs the units, unless `on` names one; has the methods of `RayTasks`.
        on: where the units run; by default in as many processes of this machine as the job wants.
    """
    job.tell = on_event or (lambda event: None)
    if on != "local":
        on = check_on(on)
        cluster = cluster_executor(on) or cluster
    job.on, job.is_shared = on, on != "local"
    if isinstance(on, Slice) and job.folder is None:
        raise RecipeError(
            "this job keeps no receipts, so slices of it cannot meet", hint="run it on one machine, or on Ray"
        )
    if job.folder is not None:
        job.folder.shared = job.is_shared
    with ExitStack() as stack:
        if cluster is not None:
            stack.callback(cluster.close)
        if job.folder is not None:
            stack.enter_context(job.folder)
        if (summary := job.begin()) is not None:
            return summary
        todo = job.todo()
        session: Session
        workers = job.workers(len(todo)) if cluster is None else cluster.count(job, len(todo))
        job.announce(todo, workers)
        if cluster is not None:
            stack.callback(cluster.close)  # before the lock is released
            session = cluster.open(job, workers)
        else:
            local = (LocalThreads if job.in_threads else LocalProcesses) if workers else Serial
            session = local(job, workers)
            stack.callback(session.close)
        if isinstance(on, Slice):
            run_slice(job, session, todo, on)
        else:
            job.run(session, todo)
            if job.is_shared and job.folder is not None:
                job.todo()  # what tasks of a cluster had committed before they were run again
        session.close()  # processes on other nodes have held the lock
        return job.finish()


def plan_job(job: Job[Any, Any, Any], on_event: Callable[[Event], None]) -> None:
    """Report the plan of a job that has not begun, and check its room; nothing is written."""
    job.tell = on_event
    job.announce(range(job.planned), job.workers(job.planned))


def run_units(
    settings: Opening,
    units: Sequence[Unit],
    *,
    workers: int,
    on_tokens: Callable[[int], None] = lambda tokens: None,
    on: On = "local",
) -> list[Any]:
    """Results, which are not kept, of units such as counts, in their order.

    Args:
        workers: maximum number of processes; 0: this one.
        on_tokens: called with the number of tokens done since the last call.
    """

    def hear(event: Event) -> None:
        if isinstance(event, Progress):
            on_tokens(event.tokens)

    return run_job(_Collection(settings, units, workers), hear, on=on)


class _Collection(Job[Unit, R, list[R]]):
    """A job without a folder, whose summary is its results."""

    if_died = "use fewer workers if memory ran out"

    def __init__(self, settings: Opening, units: Sequence[Unit], processes: int) -> None:
        self._settings, self._units, self._processes = settings, units, processes
        self._results: dict[str, R] = {}

    def begin(self) -> None:
        return None

    def todo(self) -> Sequence[Unit]:
        return self._units

    def workers(self, units: int) -> int:
        return min(self._processes, units)

    def opening(self) -> Opening:
        return self._settings

    def take(self, name: str, result: R) -> None:
        self._results[name] = result

    def finish(self) -> list[R]:
        return [self._results[unit.name] for unit in self._units]
