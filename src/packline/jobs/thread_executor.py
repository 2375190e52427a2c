"""Executor of jobs whose work is done outside of the interpreter: threads of this process.

    LocalThreads      driver ──> thread: runner, unit, unit, ...      its own runner each
                             <── progress, results ──

A process that is started needs a third of a second for its imports; a thread needs none. So this is faster if
nearly all of the time is spent in NumPy, Arrow and the kernel, which let other threads run meanwhile.
Units are as those of processes: each is committed while the next one of its thread runs, and none counts
without its commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from packline.jobs.events import Event, Progress
from packline.jobs.executor import Committer
from packline.jobs.job import Job, Runner, WorkUnit


class _Result(NamedTuple):
    """A unit was committed."""

    name: str
    result: Any


class _Stopped(Exception):
    """Ends a unit that is no longer needed."""


class LocalThreads:
    """Runs units in threads of this process; for jobs without streams (`cut`) and limits (`enough`)."""

    def __init__(self) -> None:
        self._job: Job[Any, Any, Any] | None = None
        self._runner: Runner[Any, Any] | None = None
        self._workers = 0

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """See `Executor.count`."""
        return job.workers(units)

    def open(self, job: Job[Any, Any, Any], workers: int) -> LocalThreads:
        """Session for a job; the first thread has the runner that is opened here."""
        self._job, self._runner, self._workers = job, job.open_here(), workers
        return self

    def info(self) -> Any:
        """Facts found while opening."""
        assert self._runner is not None
        return msgspec.to_builtins(self._runner.info())

    def run(
        self,
        units: Sequence[WorkUnit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """See `Session.run`."""
        assert enough is None and self._job is not None
        events: SimpleQueue[Progress | _Result | None] = SimpleQueue()
        work = _Work(iter(units), events)
        count = min(self._workers, len(units))
        with ThreadPoolExecutor(max(count, 1)) as threads:
            try:
                for number in range(count):
                    open_runner = self._opened if number == 0 else self._job.opening().open
                    threads.submit(work.run, open_runner)
                while count:
                    if (event := events.get()) is None:
                        count -= 1
                    elif isinstance(event, Progress):
                        on_event(event)
                    else:
                        on_result(event.name, event.result)
            finally:
                work.stopped.set()
        if work.error is not None:
            raise work.error

    def _opened(self) -> Runner[Any, Any]:
        assert self._runner is not None
        return self._runner

    def close(self) -> None:
        """Forget the runner: no thread is left after `run`."""
        self._job = self._runner = None


class _Work:
    """Units that threads take one by one, and what they report."""

    def __init__(self, units: Iterator[WorkUnit], events: SimpleQueue[Progress | _Result | None]) -> None:
        self._units, self._events = units, events
        self._one_at_a_time = threading.Lock()
        self.stopped = threading.Event()
        self.error: BaseException | None = None
        """The first error of a thread."""

    def run(self, open_runner: Callable[[], Runner[Any, Any]]) -> None:
        """Main function of a thread; the last event of each is None."""
        try:
            runner = open_runner()
            committer = Committer(runner, self._report, self._committed, at_once=True)
            try:
                while (unit := self._next()) is not None:
                    committer.run(unit)
                committer.wait()
            finally:
                committer.close()
        except _Stopped:
            pass
        except BaseException as error:
            with self._one_at_a_time:
                self.error = self.error or error
            self.stopped.set()
        finally:
            self._events.put(None)

    def _next(self) -> WorkUnit | None:
        with self._one_at_a_time:
            return None if self.stopped.is_set() else next(self._units, None)

    def _report(self, progress: Progress) -> None:
        if self.stopped.is_set():
            raise _Stopped
        self._events.put(progress)

    def _committed(self, name: str, result: Any) -> None:
        self._events.put(_Result(name, result))
