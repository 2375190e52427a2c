"""Process from which workers are forked: opens a job once, then hands out its units.

It is started fresh (`python -m packline.jobs.host`), and the threads that load a job have ended when it is
open, so forking is safe at any time. What it has opened, such as a tokenizer, all forked processes share.
A worker requests a unit while its last one is still being committed. One that has grown beyond its share of
memory ends after a unit, and is replaced. All processes end with the driver.
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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from packline.errors import PacklineError, WorkerDied
from packline.jobs.executors import Committer, sendable
from packline.jobs.job import NeedsFreshProcess, Opening, Runner
from packline.jobs.plan import Unit
from packline.jobs.resources import die_with_parent, keep_freed_memory, resident_memory
from packline.jobs.signals import ignore_signals

FORK = multiprocessing.get_context("fork")
READY, RETIRED = True, None
"""From a worker that requests a unit, and from one that ends, whose units are still to be run."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    units: list[Unit] = field(default_factory=list)
    """Units that are run or being committed."""
    waits: bool = False


class Host:
    def __init__(self, driver: Connection, runner: Runner[Any, Any], count: int, if_died: str) -> None:
        self._driver, self._runner, self._count, self._if_died = driver, runner, count, if_died
        self._todo: deque[Unit] = deque()
        self._workers: list[_Worker] = []

    def serve(self) -> None:
        """Run units until the driver closes the connection; raises the error of any process."""
        try:
            while True:
                self._start_workers()
                self._hand_out()
                if not self._listen():
                    return
        finally:
            self._kill()

    def _start_workers(self) -> None:
        units = len(self._todo) + sum(len(worker.units) for worker in self._workers)
        while len(self._workers) < min(self._count, units):
            ours, theirs = FORK.Pipe()
            others = [self._driver, ours, *(worker.pipe for worker in self._workers)]
            process = FORK.Process(target=_work, args=(others, theirs, self._runner), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _hand_out(self) -> None:
        for worker in self._workers:
            if worker.waits and self._todo:
                worker.waits = False
                worker.units.append(self._todo.popleft())
                with contextlib.suppress(OSError):  # it has just died, as its pipe will report
                    worker.pipe.send(worker.units[-1])

    def _listen(self) -> bool:
        """Wait for messages and handle all that have arrived; False if the driver has closed."""
        pipes = {worker.pipe: worker for worker in self._workers}
        for pipe in wait([self._driver, *pipes]):
            try:
                data: Any = pipe.recv()  # type: ignore[union-attr,call-arg]
            except (EOFError, OSError):
                if pipe is self._driver:
                    return False
                worker = pipes[pipe]  # type: ignore[index]
                worker.process.join()
                code = worker.process.exitcode or 0
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                what = f"unit {worker.units[0].name}" if worker.units else "its work"
                raise WorkerDied(
                    f"a worker process ended unexpectedly ({how}) during {what}", hint=self._if_died
                ) from None
            if pipe is self._driver:
                self._todo += data
                return True
            self._hear(pipes[pipe], data)  # type: ignore[index]
        return True

    def _hear(self, worker: _Worker, event: Any) -> None:
        if event is READY:
            worker.waits = True
            return
        if event is RETIRED:
            self._workers.remove(worker)
            self._todo.extendleft(reversed(worker.units))
            worker.pipe.close()
            worker.process.join()
            return
        if isinstance(event, PacklineError):
            raise event
        if isinstance(event, str):
            worker.units.pop(0)
        self._driver.send(event)

    def _kill(self) -> None:
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()
            worker.process.join()


def _work(others: list[Connection], pipe: Connection, runner: Runner[Any, Any]) -> None:
    for other in others:  # a pipe ends when its owner does
        other.close()
    die_with_parent()
    ignore_signals()
    keep_freed_memory()
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    one_at_a_time = threading.Lock()

    def send(event: Any) -> None:
        with one_at_a_time:
            pipe.send(event)

    def commit(unit: Unit, result: Any) -> None:
        runner.commit(unit, result)
        send((unit.name, result))

    def done(name: str, error: BaseException | None) -> None:
        send(name if error is None else sendable(error))

    committer = Committer(runner, commit, send, on_done=done)
    try:
        while True:
            send(READY)
            try:
                unit = pipe.recv()
            except EOFError:
                break
            try:
                committer.run(unit)
                runner.replaceable = True
            except NeedsFreshProcess:  # a fresh worker starts the unit again
                retires = True
            else:
                retires = runner.memory_bytes is not None and resident_memory() > runner.memory_bytes
            if retires:
                committer.close()
                send(RETIRED)
                return
        committer.close()
    except (ConnectionError, KeyboardInterrupt):
        return  # the unit is no longer needed
    except BaseException as error:  # the driver must learn of any error
        _trace()
        committer.close()  # a finished unit before it is still being committed
        send(sendable(error))


def _trace() -> None:
    if os.environ.get("PACKLINE_DEBUG"):
        import traceback

        traceback.print_exc()


def open_runner(opening: Opening) -> Runner[Any, Any]:
    """Open the job's runner, and prepare this process for forking."""
    gc.disable()  # it would scan the tokenizer's 300,000 strings again and again, and find nothing
    runner = opening.open()
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
        opening, workers, if_died = driver.recv()
        runner = open_runner(opening)
        driver.send(runner.info)
        Host(driver, runner, workers, if_died).serve()
    except (EOFError, ConnectionError):
        return 0  # the driver has closed, or is gone
    except BaseException as error:
        _trace()
        with contextlib.suppress(OSError):
            driver.send(sendable(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_host(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
