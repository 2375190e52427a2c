"""A worker process of `task_pool.run_tasks`: one job, then a task at a time, until there are no more.

    standard input     a line for the job, then a line a task
    standard output    lines: how far it is, what came of each task, or what went wrong

All lines are JSON. The process is started fresh (`python -m packline.runtime.task_worker`), never forked, so
nothing that the asking process has loaded or locked is in it, and its main module does not run again.
What anything prints here goes to standard error.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from packline.runtime.events import Failed, as_failed
from packline.runtime.resources import die_with_parent, keep_freed_memory
from packline.runtime.signals import ignore_signals

REPORT_SECONDS = 0.1

Runner = Callable[[msgspec.Raw, Callable[[int], None]], Any]
"""Does a task; is given a function to call with tokens that are done; returns what JSON knows."""

OpenJob = Callable[[msgspec.Raw], Runner]
"""Makes ready for the tasks of a job; a function of a module, which a process finds by its name."""


class JobLine(msgspec.Struct, frozen=True):
    """The first line of input."""

    module: str
    name: str
    """Of the function that opens the job."""
    job: msgspec.Raw
    parent: int
    """Process that asked."""


class TaskLine(msgspec.Struct, frozen=True):
    """Each other line."""

    name: str
    task: msgspec.Raw


class Advanced(msgspec.Struct, frozen=True, tag=True):
    """So many tokens more are done."""

    tokens: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A task is done."""

    name: str
    result: msgspec.Raw


Message = Advanced | Done | Failed
"""`Failed`: of a task, and the worker ends."""
MESSAGES = msgspec.json.Decoder(Message)


class Reporter:
    """Collects tokens that are done, and tells of them ten times a second."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._waiting, self._told = tell, 0, 0.0

    def __call__(self, tokens: int) -> None:
        self._waiting += tokens
        if time.monotonic() - self._told > REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Tell of what waits."""
        if self._waiting:
            self._tell(self._waiting)
        self._waiting, self._told = 0, time.monotonic()


def main() -> int:
    """Work until the input ends."""
    die_with_parent()
    ignore_signals()
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def tell(message: Message) -> None:
        messages.write(msgspec.json.encode(message) + b"\n")

    lines = sys.stdin.buffer
    try:
        line = msgspec.json.decode(lines.readline(), type=JobLine)
        if os.getppid() != line.parent:
            return 1  # it ended before the kernel was told to end this one with it
        keep_freed_memory()
        open_job: OpenJob = getattr(importlib.import_module(line.module), line.name)
        runner = open_job(line.job)
        while text := lines.readline():
            task = msgspec.json.decode(text, type=TaskLine)
            reporter = Reporter(lambda tokens: tell(Advanced(tokens)))
            result = runner(task.task, reporter)
            reporter.flush()
            tell(Done(task.name, msgspec.Raw(msgspec.json.encode(result))))
    except BrokenPipeError:
        return 1  # nobody listens any more
    except BaseException as error:  # told, not raised: the asking process shows it
        if os.environ.get("PACKLINE_DEBUG"):
            import traceback

            traceback.print_exc()
        tell(as_failed(error, short_of_memory="lower --workers"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
