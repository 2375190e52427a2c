"""The driver of every job: look, resume, run, commit, sum up, publish.

    finished? ──yes──> its summary                              nothing is written
    begin     lock, identity, committed units, changed inputs   refusals come before work
    plan      reported; the disk is checked
    run       units on an executor, each committed with its receipt
    finish    a pure function of the results; publish

Interrupted at any time, the same job resumes with the units that have no receipt, and the bytes are the same,
whatever the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from packline.errors import RecipeError
from packline.jobs.events import Event, Progress
from packline.jobs.executor import Executor, LocalProcesses, LocalThreads, Serial
from packline.jobs.job import Job, Opening, Session, WorkUnit
from packline.jobs.on import On, Slice, check_on, cluster_executor
from packline.jobs.slices import run_slice

R = TypeVar("R")
S = TypeVar("S")


def run_job(
    job: Job[Any, Any, S],
    on_event: Callable[[Event], None] | None = None,
    executor: Executor | None = None,
    on: On = "local",
) -> S:
    """Run a job, or resume it.

    Args:
        on_event: called with every event, in this thread.
        executor: runs the units, unless `on` names one.
        on: where the units run; by default in as many processes of this machine as the job asks for.

    Raises:
        ResumeMismatch: the folder contains another job's work, or inputs have changed.
        StoreBusy: another process runs a job in the folder.
        UnitsLeft: a slice is done, and others are not.
        PacklineError: the first error of a unit; committed units stay.
    """
    if on_event is not None:
        job.tell = on_event
    on = check_on(on)
    executor = cluster_executor(on) or executor
    job.is_shared = on != "local"
    if isinstance(on, Slice):
        if job.folder is None:
            raise RecipeError(
                "this job keeps no receipts, so slices of it cannot meet",
                hint="run it on one machine, or on Ray",
            )
        job.refuse_slices()
    if job.folder is not None:
        job.folder.shared = job.is_shared and job.may_share()
        job.folder.drives = not isinstance(on, Slice)
    with ExitStack() as stack:
        if executor is not None:
            stack.callback(executor.close)
        if job.folder is not None:
            stack.enter_context(job.folder)
        if (summary := job.finished()) is not None:
            return summary
        todo = job.begin()
        if job.is_shared and job.folder is not None:
            job.folder.share_lock()
        executor = executor or _local_executor(job, len(todo))
        workers = executor.count(job, len(todo))
        job.announce(todo, workers)
        job.check()
        stack.callback(executor.close)  # before the lock is released
        session = executor.open(job, workers)
        units = job.settle(session, todo)
        if isinstance(on, Slice):
            run_slice(job, session, units, on)
        else:
            session.run(units, job.progress, job.take, job.enough())
        summary = job.finish(session)
        if job.is_shared:  # processes on other nodes have held the lock
            executor.close()
            job.clean()
        return summary


def plan_job(job: Job[Any, Any, Any], on_event: Callable[[Event], None]) -> None:
    """Report the plan of a job that has not begun, and check its room; nothing is written."""
    job.tell = on_event
    units = job.planned()
    job.announce(range(units), job.workers(units))
    job.check()


def _local_executor(job: Job[Any, Any, Any], units: int) -> Executor:
    """Executor for this number of units on this machine."""
    if not job.workers(units):
        return Serial()
    return LocalThreads() if job.in_threads else LocalProcesses()


def run_units(
    settings: Opening,
    units: Sequence[WorkUnit],
    result: type[R],
    *,
    workers: int,
    on_tokens: Callable[[int], None] = lambda tokens: None,
    on: On = "local",
) -> list[R]:
    """Run units whose results are not kept, such as counts; return the results in the order of the units.

    Args:
        settings: settings common to the units.
        result: type of the results.
        workers: maximum number of processes; 0: this one.
        on_tokens: called with the number of tokens done since the last call.
        on: where the units run.

    Raises:
        PacklineError: the error of the first unit that failed.
        WorkerDied: a process ended unexpectedly.
    """
    return run_job(_Collection(settings, units, result, workers, on_tokens), on=on)


class _Collection(Job[WorkUnit, R, list[R]]):
    """A job without a folder, whose summary is its results."""

    if_died = "use fewer workers if memory ran out"

    def __init__(
        self,
        settings: Opening,
        units: Sequence[WorkUnit],
        result: type[R],
        processes: int,
        on_tokens: Callable[[int], None],
    ) -> None:
        self._settings, self._units, self.result = settings, units, result
        self._processes, self._on_tokens = processes, on_tokens
        self._results: dict[str, R] = {}

    def begin(self) -> Sequence[WorkUnit]:
        return self._units

    def workers(self, units: int) -> int:
        return min(self._processes, units)

    def opening(self) -> Opening:
        return self._settings

    def progress(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._on_tokens(event.tokens)

    def take(self, name: str, result: R) -> None:
        self._results[name] = result

    def finish(self, session: Session) -> list[R]:
        return [self._results[unit.name] for unit in self._units]
