"""Run one contender in a fresh process and watch what it takes.

A contender is a command that prints one JSON object as its last line. It gets a session of its own,
so every process that it starts can be told from the rest of the machine, whoever its parent is. A
thread looks at them all every `interval` seconds and keeps, for each, the largest

- `resident`: what the kernel itself kept as the peak of the resident set (VmHWM): nothing between two
  looks is missed, but pages of files that are mapped count too, and what the kernel may drop at will;
- `private`: anonymous and shared memory at the looks (RssAnon + RssShmem), pages inherited by fork included.

Cost: about a millisecond a look. Linux only (`/proc`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.errors import BenchmarkError


class Peak(msgspec.Struct):
    """Peak memory of one process, in bytes."""

    resident: int = 0
    private: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """What a contender printed, how long its process lived, and its memory."""

    report: dict[str, Any]
    wall_seconds: float
    main: Peak
    """Of the process that was started."""
    workers: list[Peak]
    """Of every process that it started in turn, largest first."""
    together: int
    """The largest sum of `private` over all of them at one look."""


def run_fresh(
    command: list[str],
    *,
    cwd: Path,
    env: dict[str, str],
    timeout_seconds: float = 7200,
    interval: float = 0.1,
    accepted: tuple[int, ...] = (0,),
) -> Outcome:
    """Start the command, wait for it, and return what it printed and took.

    Dirty pages of whatever ran before are written back first, so that they cost the next nothing. Exit codes
    other than those accepted are failures.

    Raises:
        BenchmarkError: it failed, took too long, or printed no JSON object.
    """
    os.sync()
    name = " ".join(command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        watcher = _Watcher(process.pid, interval)
        watcher.start()
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{name}: not done after {timeout_seconds:.0f} s") from error
        finally:
            wall_seconds = time.perf_counter() - started
            watcher.finish()
            _end_session(process)
        out.seek(0)
        err.seek(0)
        printed, complaint = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if code not in accepted:
        raise BenchmarkError(f"{name}: exit code {code}\n{complaint[-2000:]}")
    main = watcher.peaks.pop(process.pid, Peak())
    workers = sorted(watcher.peaks.values(), key=lambda peak: peak.resident, reverse=True)
    return Outcome(_last_object(name, printed), wall_seconds, main, workers, watcher.together)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Nothing that a contender started may disturb the next measurement."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _last_object(name: str, printed: str) -> dict[str, Any]:
    lines = printed.strip().splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else "", type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BenchmarkError(f"{name}: its last line is no JSON object: {lines[-1:]}") from error


class _Watcher(threading.Thread):
    """Looks at the processes of one session until told to finish."""

    def __init__(self, session: int, interval: float) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, Peak] = {}
        self.together = 0
        self._session = session
        self._interval = interval
        self._finished = threading.Event()

    def run(self) -> None:
        while not self._finished.wait(self._interval):
            total = 0
            for pid in processes_of(self._session):
                resident, private = _memory_of(pid)
                peak = self.peaks.setdefault(pid, Peak())
                peak.resident = max(peak.resident, resident)
                peak.private = max(peak.private, private)
                total += private
            self.together = max(self.together, total)

    def finish(self) -> None:
        self._finished.set()
        self.join()


def processes_of(session: int) -> list[int]:
    """Every living process of a session.

    >>> os.getpid() in processes_of(os.getsid(0))
    True
    """
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.getsid(int(entry)) == session:
                    found.append(int(entry))
            except (ProcessLookupError, PermissionError):
                continue
    return found


def _memory_of(pid: int) -> tuple[int, int]:
    """Peak resident and present private bytes; zeros when the process has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    sizes = {
        key: int(value.split()[0]) * 1024
        for key, _, value in (line.partition(":") for line in status.splitlines())
        if key in ("VmHWM", "RssAnon", "RssShmem")
    }
    return sizes.get("VmHWM", 0), sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)
