"""Who runs a job whose results are in an object store: an aid for people, on which nothing depends.

    .packline/runs/HOST-PID-ID.json     host, process, start, the command that resumes; whether it has ended

A local folder has a lock that ends with its process. An object store has none, and needs none: everything is
created once and never withdrawn, so two processes that run the same job make some units twice, with the same
bytes, and nothing else happens. A process that was killed leaves its record as it is.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import msgspec

from packline.errors import PacklineError
from packline.jobs.work import Command, process_name
from packline.storage.protocol import Storage
from packline.storage.publication import WORK
from packline.store.manifest import to_json

RUNS = f"{WORK}/runs"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a command."""

    host: str
    process: int
    since: int
    """Start, in seconds since 1970 by the clock of the host."""
    ended: bool = False
    """True once the process has ended in an orderly way."""
    command: Command | None = None
    """The command that resumes the job."""

    @property
    def may_run(self) -> bool:
        """False if the process has ended, as far as that can be seen from here."""
        if self.ended:
            return False
        return self.host != socket.gethostname() or os.path.exists(f"/proc/{self.process}")

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.since))
        return f"process {self.process} on {self.host}, since {since}"


def read_runs(storage: Storage) -> list[RunRecord]:
    """Records of all runs of a job, the latest last; those that cannot be read are left out."""
    found = []
    for name in storage.list(RUNS):
        with suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(storage.read(name), type=RunRecord))
    return sorted(found, key=lambda record: record.since)


class RunNote:
    """The record of this process; a failure to write it is ignored."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._name = f"{RUNS}/{process_name()}-{os.urandom(4).hex()}.json"
        self.record = RunRecord(host=socket.gethostname(), process=os.getpid(), since=int(time.time()))
        ACTIVE[storage.place.rstrip("/")] = self
        self._write()

    def change(self, **changes: object) -> None:
        """Record something new."""
        self.record = msgspec.structs.replace(self.record, **changes)
        with suppress(PacklineError, OSError):
            self._storage.delete([self._name])
        self._write()

    def _write(self) -> None:
        with suppress(PacklineError, OSError):
            self._storage.put_new(self._name, to_json(self.record))

    def end(self) -> None:
        """Record that the process ends in an orderly way."""
        ACTIVE.pop(self._storage.place.rstrip("/"), None)
        self.change(ended=True)


ACTIVE: dict[str, RunNote] = {}
"""Records of this process, by the place of the results."""


def record_command(place: str, command: Command) -> None:
    """Record the command that resumes a job, if this process runs one whose results are at the place."""
    if (note := ACTIVE.get(place.rstrip("/"))) is not None:
        note.change(command=command)
