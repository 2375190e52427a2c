"""Executors of units: this process, its threads, or local processes.

    Serial            the driver's own process: no fork, no pipe, the same bytes
    LocalThreads      threads of it, for exports: their time is spent outside of the interpreter
    LocalProcesses    driver ──units──> host ──fork──> worker, worker, ...
                             <─progress, results─
    Ray               slices of the units as tasks of a cluster (`ray_tasks`)

An executor knows nothing of tokens, folders or formats: it opens a runner (`Opening`), hands out units, and
returns results that are committed already. To add one, implement `Executor`, and choose it in `engine`. All
processes end with the driver, for whatever reason.

    driver ──Start, Run──> host
           <──Opened, Progress, Committed, Done, Failed──

Messages between a driver and a host are msgpack.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import Event, Failed, Progress, revive
from packline.jobs.job import Job, Runner, Session
from packline.jobs.plan import Unit

END_SECONDS = 10


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the host: the job. Must be first."""

    module: str
    name: str
    """Name of the class of the settings, an `Opening`."""
    opening: msgspec.Raw
    workers: int
    if_died: str
    is_shared: bool = False
    """True if other processes run units of the same job."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """To the host: more units."""

    units: list[msgspec.Raw]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """From the host: the runner is open."""

    info: msgspec.Raw


class Committed(msgspec.Struct, frozen=True, tag=True):
    """From a worker, and on from the host: a result of a unit is committed."""

    name: str
    """Name of the unit."""
    result: msgspec.Raw


class Done(msgspec.Struct, frozen=True, tag=True):
    """From a worker, and on from the host: all results of a unit are committed."""

    name: str


Request = Start | Run
Reply = Opened | Progress | Committed | Done | Failed
REQUESTS = msgspec.msgpack.Decoder(Request)
REPLIES = msgspec.msgpack.Decoder(Reply)


def encode(value: Any) -> msgspec.Raw:
    """A value in the form in which it is sent."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


def start_message(opening: Any, workers: int, if_died: str, *, shared: bool = False) -> Start:
    """First message to a host.

    Args:
        opening: settings of the job, an `Opening`.
        workers: maximum number of worker processes.
        if_died: hint for a process that ended unexpectedly.
        shared: True if other processes run units of the same job.
    """
    kind = type(opening)
    return Start(kind.__module__, kind.__qualname__, encode(opening), workers, if_died, shared)


class HostProcess:
    """A host and the connection to it.

    Args:
        module: module of the job, which the host imports while the job is prepared here.
    """

    def __init__(self, module: str) -> None:
        self._if_died = ""
        self._socket, theirs = map(_above_standard, socket.socketpair())
        self._pipe = Connection(os.dup(self._socket.fileno()))
        with theirs:
            words = [str(theirs.fileno()), str(os.getpid()), module]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "packline.jobs.host", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
                env=_environment(),
                pass_fds=[theirs.fileno()],
            )

    def open(self, start: Start, locks: Sequence[int] = ()) -> None:
        """Send the job; the next reply is `Opened` or `Failed`.

        Args:
            locks: descriptor of a lock, which is held until the last process that may write has ended.
        """
        self._if_died = start.if_died
        try:
            socket.send_fds(self._socket, [b"+"], list(locks))
        except OSError:
            raise self._ended() from None
        self.send(start)

    def send(self, message: Request) -> None:
        """Send a message; one that cannot be sent is lost, and `receive` gives the reason."""
        self.send_bytes(msgspec.msgpack.encode(message))

    def send_bytes(self, message: bytes) -> None:
        """Send an encoded message."""
        try:
            self._pipe.send_bytes(message)
        except OSError:
            return

    def poll(self, seconds: float) -> bool:
        """True if a reply has arrived within this time, or the host has ended."""
        return self._pipe.poll(seconds)

    def receive(self) -> bytes:
        """Next reply, encoded.

        Raises:
            WorkerDied: the host has ended.
        """
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> WorkerDied:
        return WorkerDied(
            f"the process that starts the workers ended unexpectedly (exit code {self._process.wait()})",
            hint=self._if_died,
        )

    def close(self, *, kill: bool) -> None:
        """End the host and its workers; wait for those that are about to finish unless `kill` is set."""
        self._pipe.close()
        self._socket.close()
        if kill:
            self._process.kill()  # its workers end with it
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _above_standard(one: socket.socket) -> socket.socket:
    """The same socket with a descriptor above those of the standard streams, which may be closed."""
    with one:
        return socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _environment() -> dict[str, str]:
    """Environment of a host: single-threaded libraries, huge pages, this installation of packline.

    An engine looks up every word in a table of hundreds of MB. With pages of 4 KB nearly every lookup also
    misses the TLB; with pages of 2 MB encoding takes a fifth less time.
    """
    given = dict(os.environ)
    paths = [str(Path(__file__).parents[2]), *filter(None, [given.get("PYTHONPATH")])]
    tunables = [*filter(None, [given.get("GLIBC_TUNABLES")]), "glibc.malloc.hugetlb=1"]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **given,
        **one_thread,
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",
        "GLIBC_TUNABLES": ":".join(tunables),
    }


REPORT_SECONDS = 0.2
"""Least time between two progress events of a process."""
WINDOW = 4096
"""Units that are sent to the host and not done: a job may have a million."""


class Executor(Protocol):
    """A place to run units."""

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """Number of workers for this number of units; 0: the driver's own process."""

    def open(self, job: Job[Any, Any, Any], workers: int) -> Session:
        """Open the runner of a job, for at most this number of workers; closed by `close`."""

    def close(self) -> None:
        """End all processes; nothing is written after this."""


class Reporter:
    """Collects progress of one unit after another, and passes it on a few times per second."""

    def __init__(self, send: Callable[[Progress], None]) -> None:
        self._send, self.source = send, ""
        self._counts, self._sent = [0, 0, 0], 0.0

    def __call__(self, tokens: int, documents: int = 0, text_bytes: int = 0) -> None:
        for place, count in enumerate((documents, text_bytes, tokens)):
            self._counts[place] += count
        if time.monotonic() - self._sent > REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Report the pending counts."""
        if any(self._counts):
            self._send(Progress(self.source, *self._counts))
        self._counts, self._sent = [0, 0, 0], time.monotonic()


class Committer:
    """Runs units in this process, and commits each result while the next one is made.

    Args:
        on_progress: called in this thread.
        on_result: called after a commit: in the committing thread if `at_once`, else in this one.
        on_done: called in the committing thread with the name of a unit once its last result is committed, or
            with the error of that commit.
    """

    def __init__(
        self,
        runner: Runner[Any, Any],
        on_progress: Callable[[Progress], None],
        on_result: Callable[[str, Any], None],
        on_done: Callable[[str, BaseException | None], None] = lambda name, error: None,
        *,
        at_once: bool,
    ) -> None:
        self._runner, self._on_result, self._on_done = runner, on_result, on_done
        self._at_once = at_once
        self._report = Reporter(on_progress)
        self._threads = ThreadPoolExecutor(1)
        self._pending: tuple[Future[None], str, Any] | None = None

    def run(self, unit: Unit) -> None:
        """Run a unit; on return, all its results but the last are committed."""
        self._report.source = self._runner.source_of(unit)
        for result in self._runner.run(unit, self._report):
            self._report.flush()
            self.wait()
            self._pending = (self._threads.submit(self._commit, unit, result), unit.name, result)
        self._threads.submit(self._end, self._pending, unit.name)

    def _commit(self, unit: Unit, result: Any) -> None:
        self._runner.commit(unit, result)
        if self._at_once:
            self._on_result(unit.name, result)

    def _end(self, pending: tuple[Future[None], str, Any] | None, name: str) -> None:
        self._on_done(name, None if pending is None else pending[0].exception())

    def wait(self) -> None:
        """Wait until the last result is committed."""
        if self._pending is not None:
            (future, name, result), self._pending = self._pending, None
            future.result()
            if not self._at_once:
                self._on_result(name, result)

    def close(self) -> None:
        """Wait for a running commit, whatever its outcome; nothing is written after this."""
        self._threads.shutdown()


class Serial:
    """Runs units in this process, in order."""

    width = 0

    def __init__(self) -> None:
        self._job: Job[Any, Any, Any] | None = None
        self._runner: Runner[Any, Any] | None = None

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """See `Executor.count`."""
        return 0

    def open(self, job: Job[Any, Any, Any], workers: int = 0) -> Serial:
        """Session for a job; its runner is opened when it is first needed."""
        self._job, self._runner = job, None
        return self

    def _opened(self) -> Runner[Any, Any]:
        if self._runner is None:
            assert self._job is not None
            self._runner = self._job.opening().open()
            self._runner.is_shared = self._job.is_shared
        return self._runner

    def info(self) -> Any:
        """Facts found while opening."""
        return msgspec.to_builtins(self._opened().info())

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """See `Session.run`."""
        if not units:
            return
        committer = Committer(self._opened(), on_event, on_result, at_once=False)
        try:
            for unit in units:
                committer.run(unit)
            committer.wait()
        finally:
            committer.close()

    def close(self) -> None:
        """Forget the runner."""
        self._job = self._runner = None


class _Stopped(Exception):
    """Ends a unit that is no longer needed."""


class LocalThreads(Serial):
    """Runs units in threads of this process, each with its own runner; for units with one result each.

    A process needs a third of a second for its imports and a thread none, so threads are faster where nearly
    all of the time is spent in NumPy, Arrow and the kernel.
    """

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """See `Executor.count`."""
        return job.workers(units)

    def open(self, job: Job[Any, Any, Any], workers: int = 0) -> LocalThreads:
        """Session for a job; the first thread has the runner that is opened in this one."""
        super().open(job)
        self.width = workers
        return self

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """See `Session.run`."""
        assert self._job is not None
        job, waiting, one_at_a_time = self._job, iter(units), threading.Lock()
        events: SimpleQueue[Progress | tuple[str, Any] | Future[None]] = SimpleQueue()
        stopped = threading.Event()

        def report(progress: Progress) -> None:
            if stopped.is_set():
                raise _Stopped
            events.put(progress)

        def work(runner: Runner[Any, Any] | None) -> None:
            runner = runner or job.opening().open()
            runner.is_shared = job.is_shared
            committer = Committer(
                runner, report, lambda name, result: events.put((name, result)), at_once=True
            )
            try:
                while not stopped.is_set():
                    with one_at_a_time:
                        unit = next(waiting, None)
                    if unit is None:
                        break
                    committer.run(unit)
                committer.wait()
            except _Stopped:
                return
            except BaseException:
                stopped.set()
                raise
            finally:
                committer.close()

        count = min(self.width, len(units))
        failed: BaseException | None = None
        with ThreadPoolExecutor(max(count, 1)) as threads:
            try:
                for number in range(count):
                    started = threads.submit(work, None if number else self._opened())
                    started.add_done_callback(events.put)
                while count:
                    event = events.get()
                    if isinstance(event, Future):
                        count -= 1
                        failed = failed or event.exception()
                    elif isinstance(event, Progress):
                        on_event(event)
                    else:
                        on_result(*event)
            finally:
                stopped.set()
        if failed is not None:
            raise failed


class LocalProcesses:
    """Runs units in processes of this machine."""

    def __init__(self) -> None:
        self._host: HostProcess | None = None
        self._job: Job[Any, Any, Any] | None = None
        self._info: Any = None
        self.width = 0

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """See `Executor.count`."""
        return job.workers(units)

    def open(self, job: Job[Any, Any, Any], workers: int) -> LocalProcesses:
        """Session for a job, once its runner is open in the host."""
        self._job, self._host = job, HostProcess(type(job).__module__)
        self.width = workers
        locks = [] if job.folder is None else [job.folder.descriptor]
        self._host.open(start_message(job.opening(), workers, job.if_died, shared=job.is_shared), locks)
        reply = self._receive()
        assert isinstance(reply, Opened)
        self._info = msgspec.msgpack.decode(reply.info)
        return self

    def info(self) -> Any:
        """Facts found while opening."""
        return self._info

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """See `Session.run`."""
        assert self._job is not None and self._host is not None
        waiting, left, sent = iter(units), len(units), 0
        # Units are sent by a thread, since the host may be sending a large result at the same time.
        with ThreadPoolExecutor(1) as sender:
            while left:
                if sent <= WINDOW // 2 and (more := list(islice(waiting, WINDOW - sent))):
                    sent += len(more)
                    sender.submit(self._host.send, Run([encode(unit) for unit in more]))
                reply = self._receive()
                if isinstance(reply, Progress):
                    on_event(reply)
                elif isinstance(reply, Committed):
                    on_result(reply.name, msgspec.msgpack.decode(reply.result, type=self._job.result))
                elif isinstance(reply, Done):
                    sent, left = sent - 1, left - 1

    def _receive(self) -> Opened | Progress | Committed | Done:
        assert self._host is not None
        reply = REPLIES.decode(self._host.receive())
        if isinstance(reply, Failed):
            raise revive(reply)
        return reply

    def close(self) -> None:
        """End all processes."""
        if self._host is not None:
            self._host.close(kill=sys.exc_info()[0] is not None)
            self._host = None
