"""Process from which workers are forked: opens a job once, then hands out its units.

    driver ──socket──> host ──fork──> worker 0, worker 1, ...   run units, commit them
                            └─fork──> feeder                    cuts streams into units

It is started fresh (`python -m packline.jobs.host`), and the threads that load a job have ended when it is
open, so forking is safe at any time. It runs nothing itself; what it has opened, such as a tokenizer, all
forked processes share. Each worker has up to two units queued, so that it never waits for an answer; a unit
counts only when its result is committed, which happens while the next one runs. The feeder may be ahead by a
few units only. All processes end with the driver.

Memory: a worker that has grown beyond its share ends after a unit and is replaced by a fresh one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import Failed, Progress, as_failed
from packline.jobs.executor import Committer
from packline.jobs.host_process import REQUESTS, Committed, Drop, Dropped, Opened, Run, Start, encode
from packline.jobs.job import NeedsFreshProcess, Runner, WorkUnit
from packline.jobs.resources import die_with_parent, keep_freed_memory, resident_memory
from packline.jobs.signals import ignore_signals

AT_HAND = 2
"""Units queued per worker."""
FORK = multiprocessing.get_context("fork")


class Retired(msgspec.Struct, frozen=True, tag=True):
    """From a worker that ends; its units without a commit are still to be run."""


class Cut(msgspec.Struct, frozen=True, tag=True):
    """From the feeder: a unit of the stream is ready."""

    unit: msgspec.Raw


class CutEnd(msgspec.Struct, frozen=True, tag=True):
    """From the feeder: the stream was read to its end."""

    result: msgspec.Raw


EVENTS = msgspec.msgpack.Decoder(Progress | Committed | Retired | Cut | CutEnd | Failed)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    units: list[WorkUnit] = field(default_factory=list)


@dataclass
class _Stream:
    """A stream that is being cut."""

    unit: WorkUnit
    parts: set[str] = field(default_factory=set)
    """Names of its units that are not committed yet."""
    result: msgspec.Raw | None = None
    """Set when it was read to its end."""


class Host:
    """Workers and feeder of one job."""

    def __init__(self, driver: Connection, start: Start, runner: Runner[Any, Any]) -> None:
        self._driver, self._runner = driver, runner
        self._count, self._if_died = start.workers, start.if_died
        self._decoder = msgspec.msgpack.Decoder(runner.unit)
        self._todo: deque[WorkUnit] = deque()
        self._in_order = False
        self._ready: deque[WorkUnit] = deque()
        self._workers: list[_Worker] = []
        self._waiting: deque[WorkUnit] = deque()
        """Streams to be cut, one after another."""
        self._streams: list[_Stream] = []
        """Streams with units that are not committed; the last one may still be read."""
        self._feeder: tuple[BaseProcess, Connection] | None = None

    def serve(self) -> None:
        """Run units until the driver closes the connection.

        Raises:
            PacklineError: error of any process.
        """
        try:
            while True:
                self._fill()
                self._start_feeder()
                self._start_workers()
                self._hand_out()
                if not self._listen():
                    self._let_go()
                    return
        finally:
            self._kill()

    def _fill(self) -> None:
        """Move units that may start to the queues."""
        while self._todo and len(self._ready) < AT_HAND * self._count:
            cutting = bool(self._waiting or self._feeder)
            if self._in_order and cutting:
                return  # in order: the preceding stream comes first
            unit = self._todo.popleft()
            (self._waiting if unit.is_stream else self._ready).append(unit)

    def _start_feeder(self) -> None:
        if self._feeder is not None or not self._waiting:
            return
        unit = self._waiting.popleft()
        self._streams.append(_Stream(unit))
        self._feeder = self._fork(_feed, self._runner, unit, AT_HAND * self._count + 1)

    def _start_workers(self) -> None:
        units = len(self._ready) + sum(len(worker.units) for worker in self._workers)
        more = bool(self._feeder or self._waiting or self._todo)
        wanted = self._count if more else min(self._count, units)
        while len(self._workers) < wanted:
            self._workers.append(_Worker(*self._fork(_work, self._runner)))

    def _fork(self, run: Callable[..., None], *args: Any) -> tuple[BaseProcess, Connection]:
        ours, theirs = FORK.Pipe()
        others = [self._driver, ours, *(worker.pipe for worker in self._workers)]
        others += [self._feeder[1]] if self._feeder else []
        process = FORK.Process(target=_in_child, args=(others, run, theirs, *args), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _hand_out(self) -> None:
        """Assign units to workers; a second one only while there are plenty, so that no worker waits."""
        for at_hand in range(AT_HAND):
            for worker in self._workers:
                plenty = at_hand == 0 or len(self._ready) >= len(self._workers)
                if self._ready and len(worker.units) == at_hand and plenty:
                    unit = self._ready.popleft()
                    worker.units.append(unit)
                    with contextlib.suppress(OSError):  # it has just retired, as its pipe will report
                        worker.pipe.send_bytes(msgspec.msgpack.encode(unit))

    def _listen(self) -> bool:
        """Wait for messages and handle all that have arrived; False if the driver has closed."""
        pipes: dict[Any, _Worker | None] = {worker.pipe: worker for worker in self._workers}
        if self._feeder is not None:
            pipes[self._feeder[1]] = None
        for pipe in wait([self._driver, *pipes]):
            try:
                data = pipe.recv_bytes()  # type: ignore[union-attr]
            except (EOFError, OSError):
                if pipe is self._driver:
                    return False
                self._refuse_end(pipes[pipe])
                continue
            if pipe is self._driver:
                self._hear_driver(REQUESTS.decode(data))
                return True  # workers may have ended
            worker = pipes[pipe]
            event = EVENTS.decode(data)
            if isinstance(event, Failed):
                self._send(event)
                raise Reported
            if worker is None:
                self._hear_feeder(event)
            else:
                self._hear_worker(worker, event)
        return True

    def _hear_driver(self, request: Start | Run | Drop) -> None:
        if isinstance(request, Run):
            self._todo += (self._decoder.decode(unit) for unit in request.units)
            self._in_order = request.in_order
        elif isinstance(request, Drop):
            self._let_go()
            self._send(Dropped())

    def _hear_worker(self, worker: _Worker, event: Any) -> None:
        if isinstance(event, Progress):
            self._send(event)
        elif isinstance(event, Committed):
            done = next(unit for unit in worker.units if unit.name == event.name)
            worker.units.remove(done)
            self._send(event)
            for stream in list(self._streams):
                if event.name in stream.parts:
                    stream.parts.remove(event.name)
                    if self._feeder is not None and stream is self._streams[-1]:
                        with contextlib.suppress(BrokenPipeError):  # it has read its stream to the end
                            self._feeder[1].send_bytes(b"next")
                    self._check_stream(stream)
        elif isinstance(event, Retired):
            self._workers.remove(worker)
            self._ready.extendleft(reversed(worker.units))
            worker.pipe.close()
            worker.process.join()

    def _hear_feeder(self, event: Cut | CutEnd) -> None:
        assert self._feeder is not None
        stream = self._streams[-1]
        if isinstance(event, Cut):
            unit = self._decoder.decode(event.unit)
            stream.parts.add(unit.name)
            self._ready.append(unit)
            return
        stream.result = event.result
        self._feeder[1].close()
        self._feeder[0].join()
        self._feeder = None
        self._check_stream(stream)

    def _check_stream(self, stream: _Stream) -> None:
        """Report a stream that was read to its end and whose units are all committed."""
        if stream.result is not None and not stream.parts:
            self._streams.remove(stream)
            self._send(Committed(stream.unit.name, stream.result))

    def _refuse_end(self, worker: _Worker | None) -> None:
        process = worker.process if worker is not None else self._feeder[0] if self._feeder else None
        if process is None:
            return
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what = f"unit {worker.units[0].name}" if worker is not None and worker.units else "its work"
        raise WorkerDied(f"a worker process ended unexpectedly ({how}) during {what}", hint=self._if_died)

    def _send(self, reply: Progress | Committed | Dropped | Failed) -> None:
        self._driver.send_bytes(msgspec.msgpack.encode(reply))

    def _let_go(self) -> None:
        """Abandon all units; a worker ends when it notices, at the next report of progress at the latest."""
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join()
        self._workers = []
        self._kill()
        self._feeder = None
        for queue in (self._todo, self._ready, self._waiting, self._streams):
            queue.clear()

    def _kill(self) -> None:
        processes = [worker.process for worker in self._workers]
        if self._feeder is not None:
            processes.append(self._feeder[0])
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


class Reported(Exception):
    """An error that was sent to the driver already."""


def _in_child(others: list[Connection], run: Callable[..., None], *args: Any) -> None:
    """Close the connections of other processes, so that a pipe ends when its owner does."""
    for other in others:
        other.close()
    die_with_parent()
    ignore_signals()
    run(*args)


def _work(pipe: Connection, runner: Runner[Any, Any]) -> None:
    """Main loop of a worker."""
    keep_freed_memory()
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    one_at_a_time = threading.Lock()
    decoder = msgspec.msgpack.Decoder(runner.unit)

    def send(event: Progress | Committed | Retired | Failed) -> None:
        with one_at_a_time:
            pipe.send_bytes(msgspec.msgpack.encode(event))

    def committed(name: str, result: Any) -> None:
        send(Committed(name, encode(result)))

    committer = Committer(runner, send, committed, at_once=True)
    try:
        while True:
            try:
                unit = decoder.decode(pipe.recv_bytes())
            except EOFError:
                break
            try:
                committer.run(unit)
            except NeedsFreshProcess:  # nothing of the unit is committed: a fresh worker starts it again
                committer.wait()
                send(Retired())
                return
            runner.replaceable = True
            if runner.memory_bytes is not None and resident_memory() > runner.memory_bytes:
                committer.wait()
                send(Retired())
                return
        committer.wait()
    except (ConnectionError, KeyboardInterrupt):
        return  # the unit is no longer needed
    except BaseException as error:  # the driver must learn of any error
        _trace()
        committer.close()  # a finished unit before it is still being committed
        send(as_failed(error))


def _feed(pipe: Connection, runner: Runner[Any, Any], stream: WorkUnit, ahead: int) -> None:
    """Main loop of the feeder: one stream, at most `ahead` units before those that are committed."""
    try:
        for part in runner.cut(stream):
            if not isinstance(part, WorkUnit):
                runner.commit(stream, part)
                pipe.send_bytes(msgspec.msgpack.encode(CutEnd(encode(part))))
                return
            pipe.send_bytes(msgspec.msgpack.encode(Cut(encode(part))))
            ahead -= 1
            while ahead <= 0 or pipe.poll():
                pipe.recv_bytes()
                ahead += 1
    except (ConnectionError, EOFError):
        return
    except BaseException as error:
        _trace()
        pipe.send_bytes(msgspec.msgpack.encode(as_failed(error)))


def _trace() -> None:
    if os.environ.get("PACKLINE_DEBUG"):
        import traceback

        traceback.print_exc()


def open_runner(start: Start) -> Runner[Any, Any]:
    """Open the job's runner, and prepare this process for forking."""
    kind = getattr(importlib.import_module(start.module), start.name)
    gc.disable()  # it would scan the tokenizer's 300,000 strings again and again, and find nothing
    runner: Runner[Any, Any] = msgspec.msgpack.decode(start.opening, type=kind).open()
    runner.is_shared = start.is_shared
    gc.collect()
    gc.freeze()  # else each worker's garbage collector would touch, and so copy, shared pages
    gc.enable()
    return runner


def run_host(descriptor: int, parent: int, module: str) -> int:
    """Open the job that the driver sends, of a class in this module, and serve it."""
    die_with_parent()
    ignore_signals()
    if os.getppid() != parent:
        return 1  # the driver ended before this process was set to end with it
    os.dup2(2, 1)  # no output but on standard error
    driver = Connection(descriptor)
    with contextlib.suppress(ImportError):  # it is reported when the job is opened
        importlib.import_module(module)
    try:
        with socket.socket(fileno=os.dup(descriptor)) as channel:
            got, *_ = socket.recv_fds(channel, 1, 1)  # a lock, held by every process forked from here
        if not got:
            return 0
        start = REQUESTS.decode(driver.recv_bytes())
        assert isinstance(start, Start)
        runner = open_runner(start)
        driver.send_bytes(msgspec.msgpack.encode(Opened(encode(runner.info()))))
        Host(driver, start, runner).serve()
    except (EOFError, ConnectionError):
        return 0  # the driver has closed, or is gone
    except Reported:
        return 1
    except BaseException as error:
        _trace()
        with contextlib.suppress(OSError):
            driver.send_bytes(msgspec.msgpack.encode(as_failed(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_host(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
