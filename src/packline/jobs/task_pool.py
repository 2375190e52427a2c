"""Run tasks over a store (of an export, an import, a count), in worker processes or in this one.

    for name, result in run_tasks(open_job, job, tasks, workers=2, on_tokens=bar.advance):
        ...                                      # in order of completion

Each worker (see there) has one task at a time and gets the next after returning its result, so tasks
need no balancing in advance. The first error stops everything. No process outlives the call.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import ERRORS, PacklineError, WorkerDied
from packline.jobs.events import Failed
from packline.jobs.task_worker import (
    MESSAGES,
    Advanced,
    Done,
    JobLine,
    OpenJob,
    Reporter,
    Runner,
    TaskLine,
)

IF_DIED = "what is finished is kept: run the same command again, with fewer --workers if memory ran out"

Task = tuple[str, Any]
"""A unique name, and the work to do as any JSON value."""


def run_tasks(
    open_job: OpenJob,
    job: Any,
    tasks: Sequence[Task],
    *,
    workers: int,
    on_tokens: Callable[[int], None] = lambda tokens: None,
    if_died: str = IF_DIED,
) -> Iterator[tuple[str, msgspec.Raw]]:
    """Run all tasks; yield the result of each when it is done.

    Args:
        open_job: sets up the job, once in each process; a module-level function.
        job: data common to all tasks, as a JSON value.
        workers: maximum number of processes; 0: run in this one, in order.
        on_tokens: called with the number of tokens done since the last call.
        if_died: hint for a process that ended unexpectedly.

    Raises:
        PacklineError: the error of the first task that failed.
        WorkerDied: a process ended unexpectedly.
    """
    if workers and tasks:
        yield from _Workers(open_job, job, list(tasks), min(workers, len(tasks)), on_tokens, if_died).run()
        return
    if tasks:
        yield from run_here(open_job(msgspec.Raw(msgspec.json.encode(job))), tasks, on_tokens)


def run_here(
    runner: Runner, tasks: Sequence[Task], on_tokens: Callable[[int], None]
) -> Iterator[tuple[str, msgspec.Raw]]:
    """Run tasks in this process, in order."""
    for name, task in tasks:
        reporter = Reporter(on_tokens)
        result = runner(msgspec.Raw(msgspec.json.encode(task)), reporter)
        reporter.flush()
        yield name, msgspec.Raw(msgspec.json.encode(result))


class _Worker:
    """One process, and the incomplete line of its output."""

    def __init__(self, job: bytes) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "packline.jobs.task_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            bufsize=0,
        )
        self._said = bytearray()
        self.send(job)

    @property
    def output(self) -> int:
        """File descriptor of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def send(self, line: bytes) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        rest = memoryview(line)
        try:
            while len(rest):
                rest = rest[self.process.stdin.write(rest) or 0 :]
        except BrokenPipeError:
            pass  # it died: the end of its output will show that

    def finish(self) -> None:
        """Signal that there are no more tasks."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def hear(self) -> list[bytes] | None:
        """Complete lines received; None if it has ended."""
        data = os.read(self.output, 1 << 16)
        if not data:
            return None
        self._said += data
        if b"\n" not in data:
            return []  # part of a long line: parsed once it is complete
        *lines, rest = bytes(self._said).split(b"\n")
        self._said[:] = rest
        return lines

    def close(self) -> None:
        """Wait until it has ended."""
        self.finish()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class _Workers:
    """Worker processes of one call."""

    def __init__(
        self,
        open_job: OpenJob,
        job: Any,
        tasks: list[Task],
        workers: int,
        on_tokens: Callable[[int], None],
        if_died: str,
    ) -> None:
        self._tasks, self._on_tokens, self._if_died = tasks[::-1], on_tokens, if_died
        self._left, self._count = len(tasks), workers
        encoded = msgspec.Raw(msgspec.json.encode(job))
        line = JobLine(open_job.__module__, open_job.__name__, encoded, os.getpid())
        self._job = msgspec.json.encode(line) + b"\n"

    def run(self) -> Iterator[tuple[str, msgspec.Raw]]:
        workers: list[_Worker] = []
        try:
            with selectors.DefaultSelector() as selector:
                for _ in range(self._count):
                    workers.append(_Worker(self._job))
                    selector.register(workers[-1].output, selectors.EVENT_READ, workers[-1])
                    self._give(workers[-1])
                while self._left:
                    for key, _ in selector.select():
                        lines = key.data.hear()
                        if lines is None:
                            selector.unregister(key.fd)
                            self._expect_end(key.data)
                        for line in lines or ():
                            yield from self._take(key.data, line)
        except BaseException:
            for worker in workers:
                worker.process.kill()  # the result of its task is no longer needed
            raise
        finally:
            for worker in workers:
                worker.close()

    def _give(self, worker: _Worker) -> None:
        """Send the next task, or the end of tasks."""
        if self._tasks:
            name, task = self._tasks.pop()
            line = TaskLine(name, msgspec.Raw(msgspec.json.encode(task)))
            worker.send(msgspec.json.encode(line) + b"\n")
        else:
            worker.finish()

    def _take(self, worker: _Worker, line: bytes) -> Iterator[tuple[str, msgspec.Raw]]:
        message = MESSAGES.decode(line)
        if isinstance(message, Advanced):
            self._on_tokens(message.tokens)
        elif isinstance(message, Done):
            self._left -= 1
            self._give(worker)
            yield message.name, message.result
        elif isinstance(message, Failed):
            raise ERRORS.get(message.error, PacklineError)(message.message, hint=message.hint)

    def _expect_end(self, worker: _Worker) -> None:
        """Check that a worker ended only after the end of tasks was signaled."""
        code = worker.process.wait()
        if code or not (worker.process.stdin is None or worker.process.stdin.closed):
            raise WorkerDied(f"a worker process ended by itself (exit code {code})", hint=self._if_died)


def _environment() -> dict[str, str]:
    """Environment of the workers: single-threaded libraries, this installation of packline."""
    home = str(Path(__file__).parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(paths)}
