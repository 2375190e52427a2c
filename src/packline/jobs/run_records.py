"""Who runs a job, and the command that resumes it: an aid for people, on which nothing depends.

    .packline/runs/HOST-PID-ID.json     host, process, start, command; whether it has ended

In a local folder a process that shares the job with others holds a lock on its record. An object store has no
locks, and needs none; there a process that was killed leaves its record as it is.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import msgspec

from packline.errors import PacklineError
from packline.storage.protocol import Storage
from packline.storage.publication import WORK
from packline.store.manifest import to_json

RUNS = "runs"
"""Folder of the records in the work folder of a job."""


class Command(msgspec.Struct, frozen=True):
    """A command line and its working directory."""

    line: str
    folder: str


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    host: str
    process: int
    since: int
    """Start, in seconds since 1970 by the clock of the host."""
    ended: bool = False
    """True once the process has ended in an orderly way; only known in an object store."""
    command: Command | None = None
    """The command that resumes the job."""
    units: int = 0
    """Number of parts of an export."""

    @property
    def may_run(self) -> bool:
        """False if the process has ended, as far as that can be seen from here."""
        if self.ended:
            return False
        return self.host != socket.gethostname() or os.path.exists(f"/proc/{self.process}")

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.since))
        return f"process {self.process} on {self.host}, since {since}"


class Resuming:
    """The command of this process."""

    command: Command | None = None
    """Recorded by every job that begins, if it is set."""


def process_name() -> str:
    """Name of this process, for its own folders: host and process id."""
    host = "".join(letter if letter.isalnum() else "_" for letter in socket.gethostname())
    return f"{host[:40]}-{os.getpid()}"


def record_run(storage: Storage, units: int) -> str:
    """Record a run of this process, unless that fails; the name of its record."""
    name = f"{WORK}/{RUNS}/{process_name()}-{os.urandom(4).hex()}.json"
    record = RunRecord(
        host=socket.gethostname(),
        process=os.getpid(),
        since=int(time.time()),
        command=Resuming.command,
        units=units,
    )
    with suppress(PacklineError, OSError):
        storage.put_new(name, to_json(record))
    return name


def end_run(storage: Storage, name: str) -> None:
    """Record that a process ends in an orderly way."""
    with suppress(PacklineError, OSError, msgspec.MsgspecError):
        record = msgspec.json.decode(storage.read(name), type=RunRecord)
        storage.delete([name])
        storage.put_new(name, to_json(msgspec.structs.replace(record, ended=True)))


def read_runs(storage: Storage) -> list[RunRecord]:
    """Records of all runs of a job, the latest last; those that cannot be read are left out."""
    found = []
    for name in storage.list(f"{WORK}/{RUNS}"):
        with suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(storage.read(name), type=RunRecord))
    return sorted(found, key=lambda record: record.since)
