"""Worker process of `task_pool.run_tasks`: one job, then one task at a time, until there are no more.

    standard input     one line for the job, then one line per task
    standard output    lines: progress, the result of each task, or an error

All lines are JSON. The process is started fresh (`python -m packline.jobs.task_worker`), never forked, so
it inherits no loaded libraries or locks from its parent, and the parent's main module does not run again.
Anything printed here goes to standard error.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from packline.jobs.events import Failed, as_failed
from packline.jobs.resources import die_with_parent, keep_freed_memory
from packline.jobs.signals import ignore_signals

REPORT_SECONDS = 0.1

Runner = Callable[[msgspec.Raw, Callable[[int], None]], Any]
"""Runs a task. Also takes a function to call with the number of tokens done; returns a JSON value."""

OpenJob = Callable[[msgspec.Raw], Runner]
"""Sets up a job and returns its runner; a module-level function, imported by name."""


class JobLine(msgspec.Struct, frozen=True):
    """First line of input."""

    module: str
    name: str
    """Name of the function that opens the job."""
    job: msgspec.Raw
    parent: int
    """Process id of the parent."""


class TaskLine(msgspec.Struct, frozen=True):
    """Every other line of input."""

    name: str
    task: msgspec.Raw


class Advanced(msgspec.Struct, frozen=True, tag=True):
    """More tokens are done."""

    tokens: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A task is done."""

    name: str
    result: msgspec.Raw


Message = Advanced | Done | Failed
"""`Failed`: a task failed, and the worker ends."""
MESSAGES = msgspec.json.Decoder(Message)


class Reporter:
    """Collects counts of finished tokens and reports them ten times per second."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._waiting, self._told = tell, 0, 0.0

    def __call__(self, tokens: int) -> None:
        self._waiting += tokens
        if time.monotonic() - self._told > REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Report the pending count."""
        if self._waiting:
            self._tell(self._waiting)
        self._waiting, self._told = 0, time.monotonic()


def main() -> int:
    """Run until the input ends."""
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
            return 1  # the parent ended before this process was set to end with it
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
        return 1  # the reader is gone
    except BaseException as error:  # reported, not raised: the parent process shows it
        if os.environ.get("PACKLINE_DEBUG"):
            import traceback

            traceback.print_exc()
        tell(as_failed(error, short_of_memory="lower --workers"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
