"""The driver of every job: look, resume, run, commit, sum up, publish.

Interrupted at any time, the same job resumes with the units that have no receipt, and the bytes are the same,
whatever the executor.

Slices: several processes share the units of a job without a coordinator.

    units in the order of a keyed permutation      0  1  2  3  4  5  6  7  8  9 10 11
    slice 0 of 3 begins with                       ^        ^        ^        ^
    then with what has no receipt, from the end    other slices are gone, late or slow

Every slice runs its units in rounds: before each it looks at one listing of receipts. So slices that help
each other meet in the middle, and at most a round is run twice, with the same bytes. No clock is compared, so
nothing depends on whether a machine is alive. A file that cannot be cut is read from its start, so no slice
helps with those of another. A slice that sees the last receipt publishes.
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
KEY = 15
LISTINGS = 10
"""Time of a round, in listings of receipts."""


class SliceShares:
    """Division of a job's units among its slices.

    Args:
        units: number of planned units, done or not.

    >>> shares = SliceShares(5, Slice(0, 2))
    >>> [shares.owns(number) for number in range(5)].count(True)
    3
    """

    def __init__(self, units: int, slice: Slice) -> None:
        self._slice = slice
        self._order: list[int] = Permutation(units, KEY)(np.arange(units)).tolist() if units else []
        """Place of each unit in the common order."""

    def owns(self, number: int) -> bool:
        """True for a unit that the slice begins with, by its place in the plan."""
        return self._order[number] % self._slice.count == self._slice.number

    def own(self, units: Sequence[U]) -> list[U]:
        """Units that the slice begins with, in their order."""
        return sorted((unit for unit in units if self.owns(unit.number)), key=self._place)

    def help(self, units: Sequence[U]) -> list[U]:
        """Units of other slices to help with: their last ones first, and each slice begins elsewhere."""
        others = sorted((unit for unit in units if not unit.slice_bytes), key=self._place, reverse=True)
        start = len(others) * self._slice.number // self._slice.count
        return others[start:] + others[:start]

    def _place(self, unit: Unit) -> int:
        return self._order[unit.number]


def run_slice(job: Job[U, Any, Any], session: Session, todo: Sequence[U], slice: Slice) -> None:
    """Run a slice's units, then help with others."""
    shares, left, listing, each = SliceShares(job.planned, slice), todo, 0.0, 1.0
    if not todo:
        job.run(session, todo)
    while units := (own := shares.own(left)) or shares.help(left):
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

    >>> round_size(1000, 8, 0.1, 1.0), round_size(20, 8, 0.1, 1.0), round_size(1000, 1, 60.0, 1.0)
    (250, 16, 600)
    """
    return max(left // 4, 2 * max(workers, 1), int(LISTINGS * listing / max(each, 1e-3)))


R = TypeVar("R")
S = TypeVar("S")


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

    Raises:
        ResumeMismatch: the folder contains another job's work, or inputs have changed.
        StoreBusy: another process runs a job in the folder.
        UnitsLeft: a slice is done, and others are not.
        PacklineError: the first error of a unit; committed units stay.
    """
    if on_event is not None:
        job.tell = on_event
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
    """Run units whose results are not kept, such as counts; return the results in the order of the units.

    Args:
        workers: maximum number of processes; 0: this one.
        on_tokens: called with the number of tokens done since the last call.
    """
    return run_job(_Collection(settings, units, workers, on_tokens), on=on)


class _Collection(Job[Unit, R, list[R]]):
    """A job without a folder, whose summary is its results."""

    if_died = "use fewer workers if memory ran out"

    def __init__(
        self,
        settings: Opening,
        units: Sequence[Unit],
        processes: int,
        on_tokens: Callable[[int], None],
    ) -> None:
        self._settings, self._units = settings, units
        self._processes, self._on_tokens = processes, on_tokens
        self._results: dict[str, R] = {}

    def begin(self) -> None:
        """Nothing is kept."""

    def todo(self) -> Sequence[Unit]:
        return self._units

    def workers(self, units: int) -> int:
        return min(self._processes, units)

    def opening(self) -> Opening:
        return self._settings

    def run(self, session: Session, units: Sequence[Unit]) -> None:
        def hear(event: Event) -> None:
            if isinstance(event, Progress):
                self._on_tokens(event.tokens)

        session.run(units, hear, self.take)

    def take(self, name: str, result: R) -> None:
        self._results[name] = result

    def finish(self) -> list[R]:
        return [self._results[unit.name] for unit in self._units]
