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

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from packline.jobs.events import Event
from packline.jobs.executor import Executor, LocalProcesses, Serial
from packline.jobs.job import Job

S = TypeVar("S")


def run_job(
    job: Job[Any, Any, S],
    on_event: Callable[[Event], None] | None = None,
    executor: Executor | None = None,
) -> S:
    """Run a job, or resume it.

    Args:
        on_event: called with every event, in this thread.
        executor: where the units run; by default in as many processes as the job asks for.

    Raises:
        ResumeMismatch: the folder contains another job's work, or inputs have changed.
        StoreBusy: another process runs a job in the folder.
        PacklineError: the first error of a unit; committed units stay.
    """
    if on_event is not None:
        job.tell = on_event
    with ExitStack() as stack:
        if executor is not None:
            stack.callback(executor.close)
        if job.folder is not None:
            stack.enter_context(job.folder)
        if (summary := job.finished()) is not None:
            return summary
        todo = job.begin()
        workers = job.workers(len(todo))
        job.announce(todo, workers)
        job.check()
        executor = executor or (LocalProcesses() if workers else Serial())
        stack.callback(executor.close)  # before the lock is released
        session = executor.open(job, workers)
        units = job.settle(session, todo)
        session.run(units, job.progress, job.take, job.enough())
        return job.finish(session)
