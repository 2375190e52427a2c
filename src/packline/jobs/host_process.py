"""The process from which workers are forked (`host`), as seen by the process that starts it.

    driver ──Start, Run──> host
           <──Opened, Progress, Committed, Done, Failed──

The same messages, as msgpack, go to a host on this machine and, by another executor, to those of other
machines. All processes end with the one that starts the host, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import WorkerDied
from packline.jobs.events import Failed, Progress

END_SECONDS = 10


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the host: the job. Must be first."""

    module: str
    name: str
    """Name of the class of the settings, an `Opening`."""
    opening: msgspec.Raw
    workers: int
    if_died: str
    is_shared: bool = False
    """True if other processes run units of the same job."""


class Run(msgspec.Struct, frozen=True, tag=True):
    """To the host: more units."""

    units: list[msgspec.Raw]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """From the host: the runner is open."""

    info: msgspec.Raw


class Committed(msgspec.Struct, frozen=True, tag=True):
    """From a worker, and on from the host: a result of a unit is committed."""

    name: str
    """Name of the unit."""
    result: msgspec.Raw


class Done(msgspec.Struct, frozen=True, tag=True):
    """From a worker, and on from the host: all results of a unit are committed."""

    name: str


Request = Start | Run
Reply = Opened | Progress | Committed | Done | Failed
REQUESTS = msgspec.msgpack.Decoder(Request)
REPLIES = msgspec.msgpack.Decoder(Reply)


def encode(value: Any) -> msgspec.Raw:
    """A value in the form in which it is sent."""
    return msgspec.Raw(msgspec.msgpack.encode(value))


def start_message(opening: Any, workers: int, if_died: str, *, shared: bool = False) -> Start:
    """First message to a host.

    Args:
        opening: settings of the job, an `Opening`.
        workers: maximum number of worker processes.
        if_died: hint for a process that ended unexpectedly.
        shared: True if other processes run units of the same job.
    """
    kind = type(opening)
    return Start(kind.__module__, kind.__qualname__, encode(opening), workers, if_died, shared)


class HostProcess:
    """A host and the connection to it.

    Args:
        module: module of the job, which the host imports while the job is prepared here.
    """

    def __init__(self, module: str) -> None:
        self._if_died = ""
        self._socket, theirs = map(_above_standard, socket.socketpair())
        self._pipe = Connection(os.dup(self._socket.fileno()))
        with theirs:
            words = [str(theirs.fileno()), str(os.getpid()), module]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "packline.jobs.host", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if sys.__stderr__ is None else None,
                env=_environment(),
                pass_fds=[theirs.fileno()],
            )

    def open(self, start: Start, locks: Sequence[int] = ()) -> None:
        """Send the job; the next reply is `Opened` or `Failed`.

        Args:
            locks: descriptor of a lock, which is held until the last process that may write has ended.
        """
        self._if_died = start.if_died
        try:
            socket.send_fds(self._socket, [b"+"], list(locks))
        except OSError:
            raise self._ended() from None
        self.send(start)

    def send(self, message: Request) -> None:
        """Send a message; one that cannot be sent is lost, and `receive` gives the reason."""
        self.send_bytes(msgspec.msgpack.encode(message))

    def send_bytes(self, message: bytes) -> None:
        """Send an encoded message."""
        try:
            self._pipe.send_bytes(message)
        except OSError:
            return

    def poll(self, seconds: float) -> bool:
        """True if a reply has arrived within this time, or the host has ended."""
        return self._pipe.poll(seconds)

    def receive(self) -> bytes:
        """Next reply, encoded.

        Raises:
            WorkerDied: the host has ended.
        """
        try:
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> WorkerDied:
        return WorkerDied(
            f"the process that starts the workers ended unexpectedly (exit code {self._process.wait()})",
            hint=self._if_died,
        )

    def close(self, *, kill: bool) -> None:
        """End the host and its workers; wait for those that are about to finish unless `kill` is set."""
        self._pipe.close()
        self._socket.close()
        if kill:
            self._process.kill()  # its workers end with it
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _above_standard(one: socket.socket) -> socket.socket:
    """The same socket with a descriptor above those of the standard streams, which may be closed."""
    with one:
        return socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _environment() -> dict[str, str]:
    """Environment of a host: single-threaded libraries, huge pages, this installation of packline.

    An engine looks up every word in a table of hundreds of MB. With pages of 4 KB nearly every lookup also
    misses the TLB; with pages of 2 MB encoding takes a fifth less time.
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
