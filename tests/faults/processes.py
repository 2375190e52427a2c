"""Processes of a build seen from outside: who belongs to it, who is whose child, who is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


def members(session: int) -> dict[int, int]:
    """Living processes of a session that are not zombies, and the parent of each."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, its_session = path.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state not in "ZX":
            found[int(path.parent.name)] = int(parent)
    return found


def coordinator_of(session: int) -> int | None:
    """The one child of the process that asked for the build."""
    return next((pid for pid, parent in members(session).items() if parent == session), None)


def workers_of(session: int) -> list[int]:
    """Children of the coordinator: workers, whoever tries engines."""
    coordinator = coordinator_of(session)
    return [pid for pid, parent in members(session).items() if parent == coordinator and coordinator]


def processes_of(word: str, below: int) -> dict[int, int]:
    """Living processes with a word in their command line, and the parent of each.

    Args:
        below: process from which they descend; others may run builds at the same time.
    """
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            state, parent = (path / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except OSError:
            continue
        parents[int(path.name)] = int(parent)
        if word.encode() in command and state not in "ZX":
            found.append(int(path.name))

    def descends(pid: int) -> bool:
        while pid in parents and pid != below:
            pid = parents[pid]
        return pid == below

    return {pid: parents[pid] for pid in found if descends(parents[pid])}


def wait_until_gone(session: int, seconds: float = 30) -> dict[int, int]:
    """Who is left of a session after so long at the most, which a busy machine may take."""
    end = time.monotonic() + seconds
    while (left := members(session)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def kill_one(victims: Callable[[], list[int]], seconds: float = 60) -> int:
    """`kill -9` of one of these processes, looked for again where all of them have ended meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pid in victims():
            try:
                os.kill(pid, signal.SIGKILL)
                return pid
            except ProcessLookupError:
                continue
        time.sleep(0.005)
    raise AssertionError(f"no such process in {seconds:.0f} s")


def kill_all(session: int) -> None:
    """`kill -9` of a whole session at once."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        pass
