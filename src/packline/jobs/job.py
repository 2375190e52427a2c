"""A job: anything that runs work units and commits their results.

    Job      identity, units, what to do with results        in the driver (`engine.run_job`)
    Opening  a job's settings, as data                       sent to the processes that run its units
    Runner   runs and commits units                          in each of these processes

The driver holds no state that the work folder does not hold, so it may be killed at any time. A runner is
opened once per host and inherited by the workers forked from it (`host`); with no workers, it is opened in
the driver's own process. So `Opening.open` must not start threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from packline.jobs.events import Event, OnEvent
from packline.jobs.resources import MEMORY_A_WORKER
from packline.jobs.work import WorkFolder


class WorkUnit(msgspec.Struct, frozen=True, kw_only=True):
    """Work that is run, committed and resumed as a whole; a function of the inputs alone."""

    name: str
    """Unique within a job."""
    number: int = 0
    """Place in the plan."""
    is_stream: bool = False
    """True for a file that is cut into units while it is read (`Runner.cut`)."""


class Numbered(WorkUnit, frozen=True, kw_only=True):
    """A unit that is known by its number."""

    @classmethod
    def of(cls, number: int) -> Numbered:
        """Unit of a job without files of its own, named after its number.

        >>> Numbered.of(7).name
        '000007'
        """
        return cls(name=f"{number:06d}", number=number)


class NeedsFreshProcess(Exception):
    """Raised by a runner for a unit that fits into a fresh process, but not into this one."""


U = TypeVar("U", bound=WorkUnit)
R = TypeVar("R")
S = TypeVar("S")


class ReportProgress(Protocol):
    """Callback for progress within a unit."""

    def __call__(self, tokens: int, documents: int = 0, text_bytes: int = 0) -> None:
        """Add tokens, documents and bytes of text done since the last call."""


class Runner(ABC, Generic[U, R]):
    """Runs units, one after another, in one process."""

    unit: ClassVar[Any]
    """Type of the units."""
    memory_bytes: int | None = None
    """Resident bytes above which a worker is replaced by a fresh one after a unit."""
    is_shared = False
    """True if other processes run units of the same job: each unit is first looked for (`found`)."""
    replaceable = False
    """True in a worker that has run a unit: a fresh process would have more free memory."""

    @abstractmethod
    def run(self, unit: U, report: ReportProgress) -> R:
        """Run a unit, and write its files where no one takes them for finished.

        Raises:
            PacklineError: stops the job.
            NeedsFreshProcess: the unit is run again in a fresh worker.
        """

    def found(self, unit: U) -> R | None:
        """Result of a unit that another process has committed meanwhile; None if there is none."""
        return None

    def commit(self, unit: U, result: R) -> None:
        """Make a result durable: the unit counts from then on. Called in a thread while the next unit runs"""

    def source_of(self, unit: U) -> str:
        """Name under which the unit's progress is shown."""
        return ""

    def cut(self, unit: U) -> Iterator[U | R]:
        """Cut a stream into units while reading it. The last value is the stream's own result."""
        raise NotImplementedError

    def info(self) -> Any:
        """Facts found while opening, for the driver; a JSON-compatible value."""
        return None


class Opening(Protocol):
    """Settings common to all units of a job: a msgspec struct, which can be sent to other processes."""

    def open(self) -> Runner[Any, Any]:
        """Open what the units need; called once per host, before workers are forked."""


class Session(Protocol):
    """An open runner somewhere, as the driver sees it."""

    def info(self) -> Any:
        """`Runner.info` of the open runner, as built-in values."""

    def run(
        self,
        units: Sequence[WorkUnit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """Run units and commit them.

        Args:
            on_event: called with `Progress`, in this thread.
            on_result: called with the name and result of each unit after its commit, in this thread.
            enough: returns True when no more results are needed. If given, units are started in order, and
                those that are running when it returns True are abandoned; some may yet be committed.

        Raises:
            PacklineError: error of the first unit that failed; committed units stay.
            WorkerDied: a process ended unexpectedly.
        """


class Job(ABC, Generic[U, R, S]):
    """One job. See `engine.run_job` for the order of the calls.

    Attributes:
        result: type of the results, or a tagged union of structs.
        folder: locked while the job runs; None for a job that keeps nothing.
        if_died: hint for a process that ended unexpectedly.
    """

    result: Any
    folder: WorkFolder[Any] | None = None
    tell: OnEvent = staticmethod(lambda event: None)
    """Set by `run_job`: called with the job's own events."""
    is_shared = False
    """True if other processes may run units of the same job at the same time."""
    in_threads = False
    """True if units spend their time outside of the interpreter: workers are threads, which start at once."""
    if_died = (
        "memory may have run out: lower --workers; what is committed is kept, run the same command again"
    )

    def finished(self) -> S | None:
        """Summary of the same job, if it was finished earlier.

        Raises:
            ResumeMismatch: the folder contains the result of another job.
        """
        return None

    @abstractmethod
    def begin(self) -> Sequence[U]:
        """Create or reopen the work folder, and return the units without a committed result.

        Raises:
            ResumeMismatch: the folder contains another unfinished job, or inputs have changed.
        """

    def planned(self) -> int:
        """Number of planned units, those with a committed result included."""
        raise NotImplementedError

    def look_again(self) -> Sequence[U]:
        """Units that no process has committed by now; as those of `begin`."""
        raise NotImplementedError

    def may_share(self) -> bool:
        """True if several drivers may run the job at the same time."""
        return False

    def refuse_slices(self) -> None:
        """Refuse settings that slices without a coordinator cannot honor.

        Raises:
            RecipeError: a limit of the whole job, for example.
        """

    def workers(self, units: int) -> int:
        """Number of processes (threads if `in_threads`) for this number of units; 0: this one."""
        return 0

    def announce(self, todo: Sequence[Any], workers: int) -> None:
        """Report the plan."""

    def check(self) -> None:
        """Last check before work begins, after the plan was reported.

        Raises:
            OutOfSpace: the result will not fit on the disk.
        """

    @abstractmethod
    def opening(self) -> Opening:
        """Settings common to all units."""

    def node_workers(self) -> int | None:
        """Number of workers on each node of a cluster; None: one per core."""
        return None

    def opening_on(self, workers: int, memory_bytes: int) -> Opening:
        """Settings for a node of a cluster, with a number of workers and memory for all of them."""
        return self.opening()

    def memory_of(self, workers: int) -> int:
        """Bytes of memory that this number of workers may use together."""
        return workers * MEMORY_A_WORKER

    def open_here(self) -> Runner[U, R]:
        """Open the runner in this process."""
        runner: Runner[U, R] = self.opening().open()
        return runner

    def settle(self, session: Session, todo: Sequence[U]) -> Sequence[U]:
        """Decide once, before the first unit, what depends on all inputs. Returns the units to run."""
        return todo

    def progress(self, event: Event) -> None:
        """Pass on an event of a running unit."""
        self.tell(event)

    @abstractmethod
    def take(self, name: str, result: R) -> None:
        """Record the result of a unit."""

    def enough(self) -> Callable[[], bool] | None:
        """Function that returns True when the remaining units are not needed; None: all are."""
        return None

    def clean(self) -> None:
        """Remove the work folder of a published result, unless another process still has it open."""

    @abstractmethod
    def finish(self, session: Session) -> S:
        """Sum up the results and publish; a function of the results alone."""
