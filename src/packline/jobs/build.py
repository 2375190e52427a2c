"""`packline.build`: run a build from Python.

A coordinator process (see there) does the work, so the calling process is unaffected: no threads, no
forks, no libraries loaded. Events arrive while it runs; its errors are raised here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import EVENT_DECODER, Event, Failed, Finished
from packline.recipe import Recipe, RunOptions
from packline.storage.inputs import refuse_name


class Request(msgspec.Struct, frozen=True):
    """A build request, as read by the coordinator."""

    recipe: Recipe
    out: str
    options: RunOptions
    started: float
    """Start of the calling process, on the monotonic clock."""


def run_build(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_event: Callable[[Event], None] | None = None,
    started: float | None = None,
) -> Finished:
    """Build a store and return the result.

    Args:
        on_event: called with every event, in this thread.
        started: start of all time measurements, on the monotonic clock; by default now.

    Raises:
        PacklineError: the build stopped; running it again resumes from the committed units.
    """
    refuse_name(str(out))
    request = Request(recipe, str(out), options, time.monotonic() if started is None else started)
    if options.workers == 0:
        return _run_here(request, on_event)
    return _run_in_coordinator(request, on_event)


def _run_here(request: Request, on_event: Callable[[Event], None] | None) -> Finished:
    from packline.jobs.coordinator import Coordinator

    results: list[Finished] = []

    def tell(event: Event) -> None:
        if isinstance(event, Finished):
            results.append(event)
        if on_event is not None:
            on_event(event)

    Coordinator(request, tell).run()
    return results[0]


def _run_in_coordinator(request: Request, on_event: Callable[[Event], None] | None) -> Finished:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "packline.jobs.coordinator"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
        return _listen(process.stdout, process, on_event)
    except BaseException:
        # An interruption from the terminal reaches the coordinator too; make sure in any case.
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        raise
    finally:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _listen(
    events: IO[bytes], process: subprocess.Popen[bytes], on_event: Callable[[Event], None] | None
) -> Finished:
    finished: Finished | None = None
    for line in events:
        event = EVENT_DECODER.decode(line)
        if isinstance(event, Failed):
            from packline.jobs.pool import revive

            raise revive(event)
        if isinstance(event, Finished):
            finished = event
        if on_event is not None:
            on_event(event)
    code = process.wait()
    if finished is not None:
        return finished
    if code == 130:
        raise KeyboardInterrupt
    raise WorkerDied(
        f"the build's coordinator ended by itself (exit code {code})",
        hint="what is committed is kept: run the same command again",
    )


def _environment() -> dict[str, str]:
    """Environment of the coordinator: single-threaded libraries, huge pages, this installation of packline.

    An engine looks up every word in a table of hundreds of MB. With pages of 4 KB nearly every lookup also
    misses the TLB; with pages of 2 MB encoding takes a fifth less time.
    """
    environment: dict[str, Any] = dict(os.environ)
    home = str(Path(__file__).parents[2])
    paths = [home, *filter(None, [environment.get("PYTHONPATH")])]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        **environment,
        **one_thread,
        "PYTHONPATH": os.pathsep.join(paths),
        "TOKENIZERS_PARALLELISM": "false",
        "GLIBC_TUNABLES": ":".join(
            filter(None, [environment.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"])
        ),
    }
