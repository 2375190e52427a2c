"""Run units in processes: assignment of tasks, and handling of dead workers.

    coordinator ──fork──> worker 0, worker 1, ...   encode units, commit them
                └─fork──> spooler                   reads streams, spills slices

The coordinator has no threads, so forking is safe at any time, and it encodes nothing; it holds the
loaded tokenizer, which all forked processes share. Each worker has up to two tasks queued, so that it
never waits for an answer. The spooler may be ahead by a few slices only. All processes end with the
coordinator.

Order: plain units and slices are assigned as they become ready; with a limit, in document order, and only
until the limit is reached.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from packline.encoders.encoder import Encoder
from packline.errors import ERRORS, PacklineError, WorkerDied
from packline.jobs.events import Failed, Progress, as_failed
from packline.jobs.folder import BuildFolder
from packline.jobs.inline import cut_stream, unit_task
from packline.jobs.prepare import Work
from packline.jobs.publish import LimitWatch
from packline.jobs.resources import die_with_parent
from packline.jobs.signals import ignore_signals
from packline.jobs.unit import Task
from packline.jobs.units import Stream, Unit
from packline.jobs.worker import WORKER_EVENTS, Committed, Retired
from packline.jobs.worker import work as worker_main
from packline.sources.slices import Slice, StreamEnd
from packline.store.manifest import Receipt, StreamReceipt

AT_HAND = 2
FORK = multiprocessing.get_context("fork")


class Cut(msgspec.Struct, frozen=True, tag=True):
    """The spooler spilled a slice."""

    stream: str
    piece: Slice


class CutEnd(msgspec.Struct, frozen=True, tag=True):
    """The spooler reached the end of a stream."""

    stream: str
    end: StreamEnd


SPOOLER_EVENTS = msgspec.msgpack.Decoder(Cut | CutEnd | Failed)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    tasks: list[Task] = field(default_factory=list)


class Pool:
    """Workers and spooler of one build."""

    def __init__(
        self,
        build: Work,
        folder: BuildFolder,
        encoder: Encoder,
        *,
        workers: int,
        memory_bytes: int,
        tell: Callable[[Progress | Committed], None],
    ) -> None:
        self._build, self._folder = build, folder
        self._encoder = encoder
        self._wanted, self._memory = workers, memory_bytes
        self._tell = tell
        self._receipts: dict[str, Receipt] = folder.committed()
        self._streams: dict[str, StreamReceipt] = folder.streams()
        self._ready: deque[Task] = deque()
        self._workers: list[_Worker] = []
        self._spooler: tuple[BaseProcess, Connection] | None = None
        self._cutting: deque[Stream] = deque()
        self._limit = LimitWatch(build, self._receipts, self._streams)
        self._limited = self._limit.given
        self._todo: deque[Unit | Stream] = deque(self._unfinished())

    def _unfinished(self) -> list[Unit | Stream]:
        todo: list[Unit | Stream] = []
        for unit in self._build.units:
            if isinstance(unit, Unit):
                if unit.name not in self._receipts:
                    todo.append(unit)
            elif unit.name not in self._streams or any(
                unit.unit_name(number) not in self._receipts
                for number in range(self._streams[unit.name].units)
            ):
                todo.append(unit)
        return todo

    def run(self) -> None:
        """Run all units without a receipt.

        Raises:
            PacklineError: the first error of any process; all others are stopped.
        """
        try:
            while not self._done():
                self._fill()
                self._start_spooler()
                self._start_workers()
                self._hand_out()
                self._listen()
            for worker in self._workers:
                worker.pipe.close()
            for worker in self._workers:
                worker.process.join()
        finally:
            self._stop()

    def _done(self) -> bool:
        if self._limit.reached():
            return True
        busy = any(worker.tasks for worker in self._workers)
        return not (self._todo or self._cutting or self._ready or busy)

    def _fill(self) -> None:
        """Move work that may start from the plan to the queues."""
        while self._todo and len(self._ready) < AT_HAND * self._wanted:
            if isinstance(self._todo[0], Stream):
                if self._limited and self._cutting:
                    return
                self._cutting.append(self._todo.popleft())  # type: ignore[arg-type]
            elif self._limited and self._cutting:
                return  # in document order: the preceding stream comes first
            else:
                unit = self._todo.popleft()
                assert isinstance(unit, Unit)
                self._ready.append(unit_task(self._build, unit.name, unit.source, spans=unit.spans))

    def _start_workers(self) -> None:
        tasks = len(self._ready) + sum(len(worker.tasks) for worker in self._workers)
        wanted = self._wanted if self._cutting or self._todo else min(self._wanted, tasks)
        while len(self._workers) < wanted:
            ours, theirs = FORK.Pipe()
            build = self._build
            process = FORK.Process(
                target=_in_child,
                args=(
                    [ours, *(worker.pipe for worker in self._workers), *self._spooler_pipe()],
                    worker_main,
                    theirs,
                    build.job,
                    self._encoder,
                    self._folder,
                    build.names,
                    self._memory,
                ),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _spooler_pipe(self) -> list[Connection]:
        return [self._spooler[1]] if self._spooler else []

    def _start_spooler(self) -> None:
        if self._spooler is not None or not self._cutting:
            return
        ours, theirs = FORK.Pipe()
        process = FORK.Process(
            target=_in_child,
            args=(
                [ours, *(worker.pipe for worker in self._workers)],
                _spool,
                theirs,
                self._build,
                self._folder,
                self._cutting[0],
                set(self._receipts),
                AT_HAND * self._wanted + 1,
            ),
            daemon=True,
        )
        process.start()
        theirs.close()
        self._spooler = (process, ours)

    def _hand_out(self) -> None:
        """Assign tasks to workers; a second one only while there are plenty, so that none waits."""
        for at_hand in range(AT_HAND):
            for worker in self._workers:
                plenty = at_hand == 0 or len(self._ready) >= len(self._workers)
                if self._ready and len(worker.tasks) == at_hand and plenty:
                    task = self._ready.popleft()
                    worker.tasks.append(task)
                    try:
                        worker.pipe.send_bytes(msgspec.msgpack.encode(task))
                    except OSError:
                        continue  # it has just retired, as its pipe will report

    def _listen(self) -> None:
        """Wait for messages and handle all that have arrived."""
        pipes: dict[Any, _Worker | None] = {worker.pipe: worker for worker in self._workers}
        if self._spooler is not None:
            pipes[self._spooler[1]] = None
        for pipe in wait(list(pipes)):
            worker = pipes[pipe]
            try:
                data = pipe.recv_bytes()  # type: ignore[union-attr]
            except (EOFError, ConnectionResetError):
                self._someone_ended(worker)
                continue
            if worker is None:
                self._hear_spooler(SPOOLER_EVENTS.decode(data))
            else:
                self._hear_worker(worker, WORKER_EVENTS.decode(data))

    def _hear_worker(self, worker: _Worker, event: Any) -> None:
        if isinstance(event, Failed):
            raise revive(event)
        if isinstance(event, Progress):
            self._tell(event)
        elif isinstance(event, Committed):
            done = next(task for task in worker.tasks if task.unit == event.unit)
            worker.tasks.remove(done)
            if self._limited:
                self._receipts[event.unit] = self._folder.receipt(event.unit)
            if done.piece is not None and self._spooler is not None:
                with contextlib.suppress(BrokenPipeError):  # it has read its stream to the end
                    self._spooler[1].send_bytes(b"next")
            self._tell(event)
        elif isinstance(event, Retired):
            self._workers.remove(worker)
            self._ready.extendleft(reversed(worker.tasks))
            worker.pipe.close()
            worker.process.join()

    def _hear_spooler(self, event: Cut | CutEnd | Failed) -> None:
        if isinstance(event, Failed):
            raise revive(event)
        stream = self._cutting[0]
        if isinstance(event, Cut):
            name = stream.unit_name(event.piece.number)
            self._ready.append(unit_task(self._build, name, stream.source, piece=event.piece))
            return
        receipt = StreamReceipt(stream.file, event.end.slices, event.end.checksum)
        self._folder.commit_stream(stream.name, receipt)
        self._streams[stream.name] = receipt
        self._cutting.popleft()
        assert self._spooler is not None
        self._spooler[1].close()
        self._spooler[0].join()
        self._spooler = None

    def _someone_ended(self, worker: _Worker | None) -> None:
        process = worker.process if worker is not None else self._spooler[0] if self._spooler else None
        if process is None:
            return
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = f"unit {worker.tasks[0].unit}" if worker is not None and worker.tasks else "its work"
        raise WorkerDied(
            f"a worker process ended by itself ({how}) during {what}",
            hint="memory may have run out: lower --workers; what is committed is kept, run the command again",
        )

    def _stop(self) -> None:
        processes = [worker.process for worker in self._workers]
        if self._spooler is not None:
            processes.append(self._spooler[0])
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def revive(event: Failed) -> PacklineError:
    """Convert the event of another process back to its error."""
    return ERRORS.get(event.error, PacklineError)(event.message, hint=event.hint)


def _in_child(others: list[Connection], run: Callable[..., None], *args: Any) -> None:
    """Close the connections of other processes, so that a pipe ends when its owner does."""
    for other in others:
        other.close()
    run(*args)


def _spool(
    pipe: Connection, build: Work, folder: BuildFolder, stream: Stream, committed: set[str], ahead: int
) -> None:
    """Main loop of a spooler: one stream, at most `ahead` slices before the encoders."""
    die_with_parent()
    ignore_signals()
    try:
        for task in cut_stream(build, folder, stream, lambda unit: unit not in committed):
            if isinstance(task, StreamEnd):
                pipe.send_bytes(msgspec.msgpack.encode(CutEnd(stream.name, task)))
                return
            assert task.piece is not None
            pipe.send_bytes(msgspec.msgpack.encode(Cut(stream.name, task.piece)))
            ahead -= 1
            while ahead <= 0 or pipe.poll():
                pipe.recv_bytes()
                ahead += 1
    except BaseException as error:
        pipe.send_bytes(msgspec.msgpack.encode(as_failed(error)))
