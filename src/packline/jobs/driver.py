"""Driver of a build whose store is not a local folder: an aid for people, not a safeguard.

    .packline/driver.json     host, process, start, the command that resumes; a counter that the driver raises
    .packline/helpers/...     the same of each process that only helps, so that `status` sees it

A local folder has a lock that ends with its process. An object store has none, and clocks of two machines
differ. So the driver raises a counter, and another one watches it for a while on its own clock: a counter
that moves belongs to a living driver, and a build whose counter rests is taken over. If both drive all the
same, units are made twice, with the same bytes, and nothing else happens.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import msgspec

from packline.errors import PacklineError, StoreBusy, StoreError
from packline.jobs.work import ONE_WRITER, Command, Identity, WorkFolder, process_name
from packline.storage.places import is_remote
from packline.storage.protocol import Storage
from packline.store.manifest import WORK, to_json

DRIVER = f"{WORK}/driver.json"
HELPERS = f"{WORK}/helpers"
"""Folder of the same records of processes that only help: slices, and those that join."""
BEAT_SECONDS = 15.0
"""Seconds between two signs of a driver."""
WATCH_SECONDS = 60.0
"""Seconds without a sign after which another driver takes over."""
LOOK_SECONDS = 2.0


class DriverRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of `driver.json`."""

    id: str
    """Identifies one run of the command."""
    host: str
    process: int
    work: str
    """Work folder on that host; who holds its lock knows that an earlier driver there has ended."""
    since: int
    """Start, in seconds since 1970 by the clock of the host."""
    signed: int
    """Last sign, by the same clock."""
    counter: int = 0
    ended: bool = False
    """True once the driver has ended in an orderly way."""
    command: Command | None = None
    """The command that resumes the build."""

    @property
    def is_silent(self) -> bool:
        """True if it has ended, or gave no sign for a while, by the clocks of both machines."""
        return self.ended or time.time() - self.signed > WATCH_SECONDS


def read_driver(storage: Storage, name: str = DRIVER) -> DriverRecord | None:
    """Record of the driver of a build; None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(storage.read(name), type=DriverRecord)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_helpers(storage: Storage) -> list[DriverRecord]:
    """Records of the processes that help with a build, or have helped."""
    found = (read_driver(storage, name) for name in storage.list(HELPERS))
    return [record for record in found if record is not None]


def driver_lines(record: DriverRecord) -> str:
    """A driver, described in a few words."""
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.since))
    return f"process {record.process} on {record.host}, since {since}"


class Driver:
    """This process as the driver of a build.

    Args:
        storage: storage of the results.
        work: local work folder, whose lock this process holds.
        name: name of the record: that of the driver, or of this process among the helpers.
    """

    def __init__(self, storage: Storage, work: Path, name: str = DRIVER) -> None:
        self._storage, self._name, self._etag = storage, name, ""
        now = int(time.time())
        self.record = DriverRecord(
            id=os.urandom(8).hex(),
            host=socket.gethostname(),
            process=os.getpid(),
            work=os.path.abspath(work),
            since=now,
            signed=now,
        )
        self.lost = False
        """True once another driver has taken over."""
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Become the driver.

        Raises:
            StoreBusy: another one drives.
        """
        while True:
            before = self._storage.facts(self._name)
            there = None if before is None else read_driver(self._storage, self._name)
            if there is not None and before is not None and not self._has_ended(there):
                self._watch(there)
                before = self._storage.facts(self._name)
            if self._write(None if before is None else before.etag):
                break
        self._thread = threading.Thread(target=self._beat, name="packline-driver", daemon=True)
        self._thread.start()

    def _has_ended(self, there: DriverRecord) -> bool:
        return there.ended or (there.host, there.work) == (self.record.host, self.record.work)

    def _watch(self, there: DriverRecord) -> None:
        """Return once a driver has given no sign for a while."""
        started = time.monotonic()
        while time.monotonic() - started < WATCH_SECONDS:
            time.sleep(LOOK_SECONDS)
            now = read_driver(self._storage, self._name)
            if now is None or now.ended:
                return
            if (now.id, now.counter) != (there.id, there.counter):
                raise StoreBusy(
                    f"{self._storage.place} is being built by {driver_lines(now)}",
                    hint="--join helps it; or wait for it to end. packline status shows how far it is",
                )

    def _write(self, expected: str | None) -> bool:
        etag = self._storage.replace(self._name, to_json(self.record), expected)
        self._etag = etag or ""
        return etag is not None

    def _beat(self) -> None:
        while not self._end.wait(BEAT_SECONDS):
            self._sign()

    def _sign(self, **changes: object) -> bool:
        """Raise the counter; False if that failed. What the storage refuses now is tried at the next sign."""
        with self._lock:
            if self.lost:
                return False
            self.record = msgspec.structs.replace(
                self.record, counter=self.record.counter + 1, signed=int(time.time()), **changes
            )
            try:
                if self._write(self._etag):
                    return True
                facts = self._storage.facts(self._name)
                there = read_driver(self._storage, self._name)
            except (PacklineError, OSError):
                return False
            if there is not None and facts is not None and there.id == self.record.id:
                self._etag = facts.etag  # our own sign, whose reply was lost
            else:
                self.lost = True
            return not self.lost

    def confirm(self) -> None:
        """Sign now, so that no other driver takes over in the next seconds: before files are deleted.

        Raises:
            StoreBusy: another driver has taken over.
            StoreError: the storage cannot be reached.
        """
        if self._sign():
            return
        if self.lost:
            raise StoreBusy(
                f"{self._storage.place} is built by another driver now", hint="wait for it to end"
            )
        raise StoreError(f"{self._storage.place}: {self._name} cannot be written", hint="run the build again")

    def tell(self, command: Command) -> None:
        """Publish the command that resumes the build."""
        self._sign(command=command)

    def end(self) -> None:
        """Stop driving, so that another may take over at once."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._sign(ended=True)


def record_command(place: str, command: Command) -> None:
    """Publish the command that resumes a build, if this process drives one at the place."""
    if (driver := ACTIVE.get(place.rstrip("/"))) is not None:
        driver.tell(command)


ACTIVE: dict[str, Driver] = {}
"""Drivers in this process, by the place of the store."""


class DrivenFolder(WorkFolder[Identity]):
    """Work folder of a job whose results are in a local folder or in an object store.

    In an object store, this process is recorded as the driver of the job, or among those that only help.
    """

    driver: Driver | None = None
    """This process as the driver of a job whose results are not in a local folder."""
    helper: Driver | None = None
    """This process as a helper of such a job."""

    @property
    def is_remote(self) -> bool:
        """True unless the results are in a local folder."""
        return is_remote(self.place)

    def drive(self) -> None:
        """Check that the store keeps to conditions, and become the driver, unless this process only helps.

        Raises:
            StoreError: the store ignores conditions.
            StoreBusy: another process drives.
        """
        from packline.storage.objects import probe

        probe(self.storage)
        if self.shared and os.environ.get(ONE_WRITER):
            raise StoreError(
                f"{self.place}: expected one process that writes, found several that share the build",
                hint="unset PACKLINE_ONE_WRITER, and build into a store that knows conditional puts",
            )
        if not self.drives:
            self.helper = Driver(self.storage, self.work, f"{HELPERS}/{process_name()}.json")
            self.helper.take()
            return
        self.driver = Driver(self.storage, self.work)
        self.driver.take()
        ACTIVE[self.place] = self.driver

    def stop_driving(self) -> None:
        """Let another process drive."""
        if self.driver is not None:
            driver, self.driver = self.driver, None
            ACTIVE.pop(self.place, None)
            driver.end()
        if self.helper is not None:
            helper, self.helper = self.helper, None
            helper.end()

    def close(self) -> None:
        """Release the lock, and let another drive."""
        try:
            self.stop_driving()
        finally:
            super().close()
