"""A job: anything that runs work units and commits their results.

    Job      identity, units, what to do with results        in the driver (`engine.run_job`)
    Opening  a job's settings, as data                       sent to the processes that run its units
    Runner   runs and commits units                          in each of these processes

The driver holds no state that the work folder does not hold, so it may be killed at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from packline.jobs.events import OnEvent, OnResult
from packline.jobs.machines import On
from packline.jobs.plan import Unit
from packline.jobs.work import WorkFolder


class NeedsFreshProcess(Exception):
    """Raised by a runner for a unit that fits into a fresh process, but not into this one."""


U = TypeVar("U", bound=Unit)
R = TypeVar("R")
S = TypeVar("S")


ReportProgress = Callable[..., None]
"""Adds what was done since the last call: `(tokens, documents=0, text_bytes=0)`."""


class Runner(ABC, Generic[U, R]):
    """Runs units, one after another, in one process."""

    memory_bytes: int | None = None
    """Resident bytes above which a worker is replaced by a fresh one after a unit."""
    info: Any = None
    """Facts found while opening, for the driver."""
    replaceable = False
    """True in a worker that has run a unit: a fresh process would have more free memory."""

    @abstractmethod
    def run(self, unit: U, report: ReportProgress) -> Iterator[R]:
        """Run a unit: its results, each with files that are where no one takes them for finished.

        There is one result, unless the unit is committed slice by slice. A result is committed while the
        next one is made. `NeedsFreshProcess` lets a fresh worker run the unit again.
        """

    def commit(self, unit: U, result: R) -> None:
        """Make a result durable: it counts from then on. Called in a thread while the next one is made."""

    def source_of(self, unit: U) -> str:
        """Name of the source under which the progress of a unit is shown."""
        return ""


class Opening:
    """Settings common to all units of a job; they are pickled for other processes."""

    __slots__ = ()

    def open(self) -> Runner[Any, Any]:
        """Open what the units need, once per host; workers are forked afterwards, so it starts no threads."""
        raise NotImplementedError

    def left(self, units: Sequence[Any]) -> Sequence[Any]:
        """Units that are not committed, by one listing; for a process that did not begin the job."""
        return units


class Session(Protocol):
    """An open runner somewhere, as the driver sees it."""

    width: int
    """Number of processes that run units side by side on one machine; 0 or 1: one."""

    def info(self) -> Any:
        """`Runner.info` of the open runner."""

    def run(self, units: Sequence[Unit], on_event: OnEvent, on_result: OnResult) -> None:
        """Run units and commit them, started in their order; the callbacks are called in this thread."""

    def close(self) -> None:
        """End all processes; nothing is written after this."""


class Job(ABC, Generic[U, R, S]):
    """One job. See `engine.run_job` for the order of the calls.

    Attributes:
        folder: locked while the job runs; None for a job that keeps nothing.
        if_died: hint for a process that ended unexpectedly.
    """

    folder: WorkFolder[Any] | None = None
    tell: OnEvent
    """Set by `run_job`: called with the job's own events."""
    on: On = "local"
    """Set by `run_job`: where the units run."""
    is_shared = False
    """Set by `run_job`: other processes may run units of the same job at the same time."""
    in_threads = False
    """True if units spend their time outside of the interpreter: workers are threads, which start at once."""
    if_died = (
        "memory may have run out: lower --workers; what is committed is kept, run the same command again"
    )

    sources: Sequence[str] = ()
    """Names under which the progress of units is shown, by `Unit.source`."""
    planned = 0
    """Number of planned units, those with a committed result included."""
    given_workers: int | None = None
    """Number of workers that is given: of this machine, or of a task of a cluster."""
    given_memory: int | None = None
    """Bytes of memory that are given to all of them together."""

    @abstractmethod
    def begin(self) -> S | None:
        """Create or reopen the work folder, and refuse another job; the summary, if this one was finished."""

    @abstractmethod
    def todo(self) -> Sequence[U]:
        """Units without a committed result by now, also of other processes that share the job."""

    def workers(self, units: int) -> int:
        """Number of processes (threads if `in_threads`) for this number of units; 0: this one."""
        return 0

    def announce(self, todo: Sequence[Any], workers: int) -> None:
        """Report the plan, then refuse what cannot be finished."""

    @abstractmethod
    def opening(self) -> Opening:
        """Settings common to all units, for `given_workers` and `given_memory`."""

    def run(self, session: Session, units: Sequence[U]) -> None:
        """Run units; `session.info` has the facts found while opening."""
        session.run(units, self.tell, self.take)

    @abstractmethod
    def take(self, name: str, result: R) -> None:
        """Record a result of a unit."""

    @abstractmethod
    def finish(self) -> S:
        """Sum up the results and publish; a function of the results alone."""
