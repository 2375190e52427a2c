"""Executors of units: this process, or local processes.

    Serial            the driver's own process: no fork, no pipe, the same bytes
    LocalProcesses    driver ──units──> host ──fork──> worker, worker, ..., feeder
                             <─progress, results─

An executor knows nothing of tokens, folders or formats: it opens a runner (`Opening`), hands out units, and
returns results that are committed already. An executor for a cluster would start one host per node and send
each a share of the units. All processes end with the driver, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import Event, Failed, Progress, revive
from packline.jobs.job import Job, Runner, Session, WorkUnit

REPORT_SECONDS = 0.2
"""Least time between two progress events of a process."""
END_SECONDS = 10


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the host: the job. Must be first."""

    module: str
    name: str
    """Name of the class of the settings, an `Opening`."""
    opening: msgspec.Raw
    workers: int
    if_died: str


class Run(msgspec.Struct, frozen=True, tag=True):
    """To the host: more units."""

    units: list[msgspec.Raw]
    in_order: bool


class Drop(msgspec.Struct, frozen=True, tag=True):
    """To the host: abandon the units that are not committed."""


class Opened(msgspec.Struct, frozen=True, tag=True):
    """From the host: the runner is open."""

    info: msgspec.Raw


class Committed(msgspec.Struct, frozen=True, tag=True):
    """From a worker, and on from the host: a unit is committed; of a stream, all of its units are."""

    name: str
    result: msgspec.Raw


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """From the host: nothing is running."""


REQUESTS = msgspec.msgpack.Decoder(Start | Run | Drop)
REPLIES = msgspec.msgpack.Decoder(Opened | Progress | Committed | Dropped | Failed)


def encode(value: Any) -> msgspec.Raw:
    """A value in the form in which it is sent."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


class Executor(Protocol):
    """A place to run units."""

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
    """Runs units in this process, and commits each while the next one runs.

    Args:
        on_progress: called in this thread.
        on_result: called after a commit: in the committing thread if `at_once`, else in this one.
    """

    def __init__(
        self,
        runner: Runner[Any, Any],
        on_progress: Callable[[Progress], None],
        on_result: Callable[[str, Any], None],
        *,
        at_once: bool,
    ) -> None:
        self._runner, self._on_result, self._at_once = runner, on_result, at_once
        self._report = Reporter(on_progress)
        self._threads = ThreadPoolExecutor(1)
        self._pending: tuple[Future[None], str, Any] | None = None

    def run(self, unit: WorkUnit) -> None:
        """Run a unit; on return, the previous one is committed."""
        self._report.source = self._runner.source_of(unit)
        result = self._runner.run(unit, self._report)
        self._report.flush()
        self.wait()
        self._pending = (self._threads.submit(self._commit, unit, result), unit.name, result)

    def _commit(self, unit: WorkUnit, result: Any) -> None:
        self._runner.commit(unit, result)
        if self._at_once:
            self._on_result(unit.name, result)

    def wait(self) -> None:
        """Wait until the last unit is committed."""
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

    def __init__(self) -> None:
        self._job: Job[Any, Any, Any] | None = None
        self._runner: Runner[Any, Any] | None = None

    def open(self, job: Job[Any, Any, Any], workers: int = 0) -> Serial:
        """Session for a job; its runner is opened when it is first needed."""
        self._job, self._runner = job, None
        return self

    def _opened(self) -> Runner[Any, Any]:
        if self._runner is None:
            assert self._job is not None
            self._runner = self._job.open_here()
        return self._runner

    def info(self) -> Any:
        """Facts found while opening."""
        return msgspec.to_builtins(self._opened().info())

    def run(
        self,
        units: Sequence[WorkUnit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """See `Session.run`."""
        if not units or (enough is not None and enough()):
            return
        runner = self._opened()
        committer = Committer(runner, on_event, on_result, at_once=False)

        def run_all() -> None:
            for unit in units:
                if not unit.is_stream:
                    committer.run(unit)
                else:
                    for part in runner.cut(unit):
                        if isinstance(part, WorkUnit):
                            committer.run(part)
                            if enough is not None:
                                committer.wait()
                                if enough():
                                    return
                        else:
                            committer.wait()
                            runner.commit(unit, part)
                            on_result(unit.name, part)
                if enough is not None:
                    committer.wait()
                    if enough():
                        return
            committer.wait()

        try:
            run_all()
        finally:
            committer.close()

    def close(self) -> None:
        """Forget the runner."""
        self._job = self._runner = None


class LocalProcesses:
    """Runs units in processes of this machine.

    Args:
        preload: module that the host imports while the driver is still preparing the job.
    """

    def __init__(self, preload: str = "packline.jobs.host") -> None:
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        self._job: Job[Any, Any, Any] | None = None
        self._info: Any = None

    def start(self) -> None:
        """Start the host, so that it loads its modules while the job is prepared."""
        self._socket, theirs = map(_above_standard, socket.socketpair())
        self._pipe = Connection(os.dup(self._socket.fileno()))
        with theirs:
            words = [str(theirs.fileno()), str(os.getpid()), self._preload]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "packline.jobs.host", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
                env=_environment(),
                pass_fds=[theirs.fileno()],
            )

    def open(self, job: Job[Any, Any, Any], workers: int) -> LocalProcesses:
        """Session for a job, once its runner is open in the host."""
        if self._process is None:
            self.start()
        self._job = job
        # The lock is inherited: it is held until the last process that may write has ended.
        lock = [] if job.folder is None else [job.folder.descriptor]
        try:
            socket.send_fds(self._socket, [b"+"], lock)
        except OSError:
            raise self._ended() from None
        opening = job.opening()
        kind = type(opening)
        self._send(Start(kind.__module__, kind.__qualname__, encode(opening), workers, job.if_died))
        reply = self._receive()
        assert isinstance(reply, Opened)
        self._info = msgspec.msgpack.decode(reply.info)
        return self

    def info(self) -> Any:
        """Facts found while opening."""
        return self._info

    def run(
        self,
        units: Sequence[WorkUnit],
        on_event: Callable[[Event], None],
        on_result: Callable[[str, Any], None],
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """See `Session.run`."""
        assert self._job is not None
        left = {unit.name for unit in units}
        if not left or (enough is not None and enough()):
            return
        self._send(Run([encode(unit) for unit in units], enough is not None))
        while left:
            reply = self._receive()
            if isinstance(reply, Progress):
                on_event(reply)
            elif isinstance(reply, Committed):
                left.discard(reply.name)
                on_result(reply.name, msgspec.msgpack.decode(reply.result, type=self._job.result))
                if enough is not None and enough():
                    self._drop()
                    return

    def _drop(self) -> None:
        self._send(Drop())
        while not isinstance(self._receive(), Dropped):
            pass

    def _send(self, message: Start | Run | Drop) -> None:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(message))
        except OSError:  # the host has failed, or ended: it may have given the reason
            self._receive()
            raise self._ended() from None

    def _receive(self) -> Opened | Progress | Committed | Dropped:
        try:
            reply = REPLIES.decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(reply, Failed):
            raise revive(reply)
        return reply

    def _ended(self) -> WorkerDied:
        assert self._process is not None
        return WorkerDied(
            f"the process that starts the workers ended unexpectedly (exit code {self._process.wait()})",
            hint=Job.if_died if self._job is None else self._job.if_died,
        )

    def close(self) -> None:
        """End all processes."""
        if self._process is None:
            return
        self._pipe.close()
        self._socket.close()
        if sys.exc_info()[0] is not None:
            self._process.kill()  # its workers end with it
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


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
