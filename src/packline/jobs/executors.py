"""Executors of units: this process, its threads, or local processes.

    Serial            the driver's own process: no fork, no pipe, the same bytes
    LocalThreads      threads of it, for exports: their time is spent outside of the interpreter
    LocalProcesses    driver ──opening, units, units, ...──> host ──fork──> worker, worker, ...
                             <──info, messages────────────
    Ray               slices of the units as tasks of a cluster (`ray_tasks`)

Messages: `Progress`; `(name, result)` of a unit, committed; its name once all results are; an error. An
executor knows nothing of tokens, folders or formats. All processes end with the driver, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from packline.errors import PacklineError, WorkerDied
from packline.jobs.events import Event, OnEvent, OnResult, Progress
from packline.jobs.job import Job, Runner
from packline.jobs.plan import Unit
from packline.storage.local import plain_error

END_SECONDS = 10


def sendable(error: BaseException) -> PacklineError:
    """An error in a form in which it can be sent to another process."""
    if isinstance(error, PacklineError):
        return error
    if isinstance(error, MemoryError):
        return WorkerDied("a worker ran out of memory", hint="lower --workers or raise --memory")
    if isinstance(error, OSError) and (plain := plain_error(error)) is not None:
        return plain
    last = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    return PacklineError(f"{type(error).__name__}: {error}{where}")


def _above_standard(one: socket.socket) -> socket.socket:
    """The same socket with a descriptor above those of the standard streams, which may be closed."""
    with one:
        return socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _environment() -> dict[str, str]:
    """Environment of a host: single-threaded libraries, this installation of packline, and huge pages.

    An engine looks words up in a table of hundreds of MB: with pages of 2 MB encoding takes a fifth less.
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
        if any(self._counts):
            self._send(Progress(self.source, *self._counts))
        self._counts, self._sent = [0, 0, 0], time.monotonic()


class Committer:
    """Runs units in this process, and commits each result while the next one is made.

    Args:
        commit: called in the committing thread; makes the result of a unit durable.
        on_result: called in this thread after a commit.
        on_done: called in the committing thread once the last result of a unit is committed, or has failed.
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
        return self._runner.info

    def run(self, units: Iterable[Unit], on_event: OnEvent, on_result: OnResult) -> None:
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
        return None


class _Stopped(Exception):
    """Ends a unit that is no longer needed."""


class LocalThreads(Serial):
    """Runs units in threads of this process, each with its own runner.

    A process needs a third of a second for its imports and a thread none, so threads are faster where nearly
    all of the time is spent in NumPy, Arrow and the kernel.
    """

    def run(self, units: Iterable[Unit], on_event: OnEvent, on_result: OnResult) -> None:
        waiting, stopped = deque(units), threading.Event()
        calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

        def following() -> Iterator[Unit]:
            with suppress(IndexError):
                while not stopped.is_set():
                    yield waiting.popleft()

        def hear(event: Event) -> None:
            if stopped.is_set():
                raise _Stopped
            calls.put(partial(on_event, event))

        def work(session: Serial) -> None:
            try:
                Serial.run(session, following(), hear, lambda *found: calls.put(partial(on_result, *found)))
            except _Stopped:
                pass
            except BaseException:
                stopped.set()
                raise

        if not waiting:
            return
        _ = self._runner  # opened in this thread
        sessions = [self, *(Serial(self._job) for _ in range(1, min(self.width, len(waiting))))]
        with ThreadPoolExecutor(len(sessions)) as threads:
            try:
                running = [threads.submit(work, session) for session in sessions]
                for one in running:
                    one.add_done_callback(lambda _: calls.put(None))
                for _ in running:
                    while (call := calls.get()) is not None:
                        call()
            finally:
                stopped.set()
        for one in running:
            one.result()


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
        self._send((opening, self.width, job.if_died))
        self._info = self._receive()

    def info(self) -> Any:
        return self._info

    def run(self, units: Sequence[Unit], on_event: OnEvent, on_result: OnResult) -> None:
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
                elif isinstance(reply, tuple):
                    on_result(*reply)
                else:
                    sent, left = sent - 1, left - 1

    def _send(self, message: Any) -> None:
        """Send a message; one that cannot be sent is lost, and `_receive` gives the reason."""
        with suppress(OSError):
            self._pipe.send(message)

    def _receive(self) -> Any:
        assert self._process is not None
        try:
            reply = self._pipe.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            raise WorkerDied(
                f"the process that starts the workers ended unexpectedly (exit code {code})",
                hint=self._job.if_died,
            ) from None
        if isinstance(reply, PacklineError):
            raise reply
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
