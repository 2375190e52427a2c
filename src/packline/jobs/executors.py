"""Executors of units: this process, its threads, or local processes.

    Serial            the driver's own process: no fork, no pipe, the same bytes
    LocalThreads      threads of it, for exports: their time is spent outside of the interpreter
    LocalProcesses    driver ──units──> host ──fork──> worker, worker, ...
                             <─progress, results─
    Ray               slices of the units as tasks of a cluster (`ray_tasks`)

An executor knows nothing of tokens, folders or formats: it opens a runner (`Opening`), hands out units, and
returns results that are committed already. To add one, implement `Cluster`, and choose it in `machines`. All
processes end with the driver, for whatever reason.

    driver ──Start, units, units, ...──> host
           <──Opened, Progress, Committed, Done, Failed──

Messages between a driver and a host are msgpack.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import Event, Failed, Progress, revive
from packline.jobs.job import Job, Opening, Runner, Session
from packline.jobs.plan import Unit

END_SECONDS = 10


class Start(msgspec.Struct, frozen=True):
    """To the host: the job. All that follows are lists of units."""

    module: str
    name: str
    """Name of the class of the settings, an `Opening`."""
    opening: msgspec.Raw
    workers: int
    if_died: str
    """Hint for a process that ended unexpectedly."""

    @classmethod
    def of(cls, job: Job[Any, Any, Any], opening: Opening, workers: int) -> Start:
        """First message for a job."""
        kind = type(opening)
        return cls(kind.__module__, kind.__qualname__, encode(opening), workers, job.if_died)

    def settings(self) -> Opening:
        """Settings of the job."""
        opening: Opening = msgspec.msgpack.decode(self.opening, type=class_of(self.module, self.name))
        return opening


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


Reply = Opened | Progress | Committed | Done | Failed
REPLIES = msgspec.msgpack.Decoder(Reply)


def encode(value: Any) -> msgspec.Raw:
    """A value in the form in which it is sent."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


def class_of(module: str, name: str) -> Any:
    """Class that another process has named."""
    return getattr(importlib.import_module(module), name)


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


class Cluster(Protocol):
    """Another place to run units."""

    def count(self, job: Job[Any, Any, Any], units: int) -> int:
        """Number of workers for this number of units."""

    def open(self, job: Job[Any, Any, Any], workers: int) -> Session:
        """Open the runner of a job, for at most this number of workers."""

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
        commit: called in the committing thread with a unit and a result; makes it durable.
        on_progress: called in this thread.
        on_result: called in this thread after a commit.
        on_done: called in the committing thread with the name of a unit once its last result is committed, or
            with the error of that commit.
    """

    def __init__(
        self,
        runner: Runner[Any, Any],
        commit: Callable[[Unit, Any], None],
        on_progress: Callable[[Progress], None],
        on_result: Callable[[str, Any], None] = lambda name, result: None,
        on_done: Callable[[str, BaseException | None], None] = lambda name, error: None,
    ) -> None:
        self._runner, self._commit, self._on_result, self._on_done = runner, commit, on_result, on_done
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

    def _end(self, pending: tuple[Future[None], str, Any] | None, name: str) -> None:
        self._on_done(name, None if pending is None else pending[0].exception())

    def wait(self) -> None:
        """Wait until the last result is committed."""
        if self._pending is not None:
            (future, name, result), self._pending = self._pending, None
            future.result()
            self._on_result(name, result)

    def close(self) -> None:
        """Wait for a running commit, whatever its outcome; nothing is written after this."""
        self._threads.shutdown()


class Serial:
    """Runs units in this process, in order; the runner is opened when it is first needed."""

    def __init__(self, job: Job[Any, Any, Any], workers: int = 0) -> None:
        self._job, self.width = job, workers

    @cached_property
    def _runner(self) -> Runner[Any, Any]:
        return self._job.opening().open()

    def info(self) -> Any:
        return msgspec.to_builtins(self._runner.info())

    def run(
        self,
        units: Iterable[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        if not units:
            return
        committer = Committer(self._runner, self._runner.commit, on_event, on_result)
        try:
            for unit in units:
                committer.run(unit)
        finally:
            committer.close()
            committer.wait()  # what is committed is reported, also before an error of the next unit

    def close(self) -> None:
        """Nothing is left to end."""


class _Stopped(Exception):
    """Ends a unit that is no longer needed."""


class LocalThreads(Serial):
    """Runs units in threads of this process, each with its own runner.

    A process needs a third of a second for its imports and a thread none, so threads are faster where nearly
    all of the time is spent in NumPy, Arrow and the kernel.
    """

    def run(
        self,
        units: Iterable[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        """See `Session.run`; the first thread has the runner that is opened in this one."""
        job, waiting = self._job, deque(units)
        events: SimpleQueue[Event | tuple[str, Any] | Future[None]] = SimpleQueue()
        stopped = threading.Event()

        def following() -> Iterator[Unit]:
            while not stopped.is_set():
                try:
                    unit = waiting.popleft()
                except IndexError:
                    return
                yield unit

        def report(event: Event) -> None:
            if stopped.is_set():
                raise _Stopped
            events.put(event)

        def work(session: Serial) -> None:
            try:
                Serial.run(session, following(), report, lambda name, result: events.put((name, result)))
            except _Stopped:
                return
            except BaseException:
                stopped.set()
                raise

        count = min(self.width, len(waiting))
        failed: BaseException | None = None
        with ThreadPoolExecutor(max(count, 1)) as threads:
            try:
                _ = self._runner if count else None
                for session in [self, *(Serial(job) for _ in range(1, count))][:count]:
                    threads.submit(work, session).add_done_callback(events.put)
                while count:
                    event = events.get()
                    if isinstance(event, Future):
                        count -= 1
                        failed = failed or event.exception()
                    elif isinstance(event, tuple):
                        on_result(*event)
                    else:
                        on_event(event)
            finally:
                stopped.set()
        if failed is not None:
            raise failed


class LocalProcesses:
    """Runs units in processes of this machine, which are forked from a host."""

    def __init__(self, job: Job[Any, Any, Any], workers: int) -> None:
        self._job, self.width = job, workers
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Open the runner of the job in a host."""
        job = self._job
        ours, theirs = map(_above_standard, socket.socketpair())
        self._pipe = Connection(os.dup(ours.fileno()))
        with ours, theirs:
            # The host imports the module of the job while the job is prepared here.
            words = [str(theirs.fileno()), str(os.getpid()), type(job).__module__]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "packline.jobs.host", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
                env=_environment(),
                pass_fds=[theirs.fileno()],
            )
            theirs.close()
            opening = job.opening()
            # A lock is held until the last process that may write has ended.
            locks = [] if job.folder is None else [job.folder.descriptor]
            with suppress(OSError):  # `_receive` gives the reason
                socket.send_fds(ours, [b"+"], locks)
        self._send(Start.of(job, opening, self.width))
        reply = self._receive()
        assert isinstance(reply, Opened)
        self._info: Any = msgspec.msgpack.decode(reply.info)

    def info(self) -> Any:
        return self._info

    def run(
        self,
        units: Sequence[Unit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
    ) -> None:
        waiting, left, sent = iter(units), len(units), 0
        # Units are sent by a thread, since the host may be sending a large result at the same time.
        with ThreadPoolExecutor(1) as sender:
            while left:
                if sent <= WINDOW // 2 and (more := list(islice(waiting, WINDOW - sent))):
                    sent += len(more)
                    sender.submit(self._send, more)
                reply = self._receive()
                if isinstance(reply, Progress):
                    on_event(reply)
                elif isinstance(reply, Committed):
                    on_result(reply.name, msgspec.msgpack.decode(reply.result, type=self._job.result))
                elif isinstance(reply, Done):
                    sent, left = sent - 1, left - 1

    def _send(self, message: Start | list[Unit]) -> None:
        """Send a message; one that cannot be sent is lost, and `_receive` gives the reason."""
        with suppress(OSError):
            self._pipe.send_bytes(encode(message))

    def _receive(self) -> Opened | Progress | Committed | Done:
        assert self._process is not None
        try:
            reply = REPLIES.decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            code = self._process.wait()
            raise WorkerDied(
                f"the process that starts the workers ended unexpectedly (exit code {code})",
                hint=self._job.if_died,
            ) from None
        if isinstance(reply, Failed):
            raise revive(reply)
        return reply

    def close(self) -> None:
        """End the host and its workers: at once after an error, else those that finish may do so."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self._pipe.close()
        if sys.exc_info()[0] is not None:
            process.kill()  # its workers end with it
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
