"""Local work folder of a job: the lock, unfinished files of each process, records of its runs.

    WORK/lock                   exclusive: one process runs the job; shared: several do (slices, tasks of Ray)
    WORK/tmp/HOST-PID/          unfinished files of a process, and of those forked from it; HOST-PID.lock is
                                locked by them
    WORK/runs/HOST-PID-ID.json  who runs the job, and the command that resumes it: an aid for people, on which
                                nothing depends; locked by a process that shares the job with others

It is always on a local disk: inside a local output folder, and otherwise in a scratch folder. Records of a
result in an object store are kept there; a process that was killed leaves its own as it is. Unfinished files
of processes that have ended are removed by the next one that begins or helps.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Generic, Self, TypeVar

import msgspec

from packline.errors import PacklineError, StoreBusy, StoreError, refuse_name
from packline.fingerprint import hash_bytes
from packline.storage.hub_inputs import read_only
from packline.storage.local import disk_errors, user_cache
from packline.storage.places import HUB, ONE_WRITER, is_remote, open_results
from packline.storage.results import WORK, Publication, Storage
from packline.store.manifest import to_json

ENDING_SECONDS = 2
"""Time to wait for a lock: the workers of a process that was just killed hold it until they have ended."""
LEAVING_SECONDS = 10
"""Time to wait at the end of a job for a lock that processes of a lost node hold for a while."""
PARTS = "parts"
"""Folder of the receipts of an export."""
RUNS, TMP = "runs", "tmp"
SCRATCH = "PACKLINE_SCRATCH"
"""Environment variable with the folder for unfinished files of jobs whose results are stored elsewhere."""
OWNED: dict[Path, int] = {}
"""Folders of unfinished files of this process, with the descriptors of their locks. A lock is held until the
process and all those forked from it have ended, or the job."""

Identity = TypeVar("Identity", bound=msgspec.Struct)


class Command(msgspec.Struct, frozen=True):
    line: str
    folder: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
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
    command: Command | None = None
    """Recorded by every job that begins, if it is set."""


def process_name() -> str:
    """Name of this process, for its own folders: host and process id."""
    host = "".join(letter if letter.isalnum() else "_" for letter in socket.gethostname())
    return f"{host[:40]}-{os.getpid()}"


def read_runs(storage: Storage) -> list[Run]:
    """Records of all runs of a job, the latest last; those that cannot be read are left out."""
    found = []
    for name in storage.list(f"{WORK}/{RUNS}"):
        with suppress(FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(storage.read(name), type=Run))
    return sorted(found, key=lambda run: run.since)


def work_folder(place: str) -> Path:
    """Work folder of a job: in the local folder of its result, or in the scratch folder."""
    if not is_remote(place):
        return Path(place) / WORK
    if place.startswith(HUB):
        raise read_only(place)
    given = os.environ.get(SCRATCH)
    root = Path(os.path.abspath(given)) if given else user_cache() / "scratch"
    return root / hash_bytes(place.rstrip("/").encode())[:16]


class WorkFolder(Publication, Generic[Identity]):
    """Result of a job that runs; entering it takes the lock of its work folder.

    Args:
        begun: name of the file with the identity, of type `kind`.
        receipts: name of the folder of receipts.
        record: name of the file that completes the result.
    """

    busy: ClassVar[str]
    """Message for a folder that is locked."""
    what: ClassVar[str]
    """Kind of the result, for messages."""
    shared = False
    """Set before entering: other processes may run units of the same job at the same time."""
    descriptor = -1
    """File descriptor of the lock."""
    _own = ""
    _run = ""
    """Name of the record of this process."""
    _joined = -1
    """File descriptor of its lock."""

    def __init__(self, place: str, kind: type[Identity], begun: str, receipts: str, record: str) -> None:
        super().__init__(open_results(place), record)
        self.place, self.work = self.storage.place, work_folder(place)
        self.local = self.storage.folder
        """Local folder of the result; None for one in an object store."""
        self.parent = self.local or self.work
        """Local folder that must be writable."""
        self._kind, self._begun, self._receipts = kind, begun, receipts

    def __enter__(self) -> Self:
        if self.local is not None:
            refuse_name(self.place)
            if os.path.exists(self.place) and not os.path.isdir(self.place):
                raise StoreError(f"{self.place} is a file: expected a folder", hint="choose another --out")
        try:
            self.refuse_foreign(self._begun, self.what)
            with disk_errors(self.parent):
                self.descriptor = self._take_lock(self.work / "lock")
                for folder in (self.work / TMP).glob("*/") if self.shared else ():
                    lock = folder.with_name(f"{folder.name}.lock")
                    if lock.exists() and not is_locked(lock):  # its processes have ended
                        shutil.rmtree(folder, ignore_errors=True)
                        lock.unlink(missing_ok=True)
        except OSError as error:
            if isinstance(error, PacklineError):
                raise
            hint = "choose another --out"
            if error.errno in (errno.EACCES, errno.EPERM):
                hint = f"check its permissions, or {hint}"
            raise StoreError(f"cannot write into {self.parent}: {error.strerror}", hint=hint) from error
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._run and self.local is None:
                self._end_run()
        finally:
            ours = [OWNED.pop(folder) for folder in list(OWNED) if folder.is_relative_to(self.work)]
            for descriptor in (self._joined, self.descriptor, *ours):
                if descriptor >= 0:
                    os.close(descriptor)
            self._joined = self.descriptor = -1

    def _take_lock(self, path: Path) -> int:
        kind = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
        end = time.monotonic() + ENDING_SECONDS
        while True:
            try:
                descriptor = lock_file(path, kind)
                if _is_file_of(descriptor, path):
                    return descriptor
                os.close(descriptor)
            except (FileNotFoundError, FileExistsError):  # another job has just ended and removed its folder
                if time.monotonic() > end:
                    raise
            except BlockingIOError:
                if time.monotonic() > end:
                    raise StoreBusy(
                        f"{self.busy} {self.place}", hint="wait for it to end, or choose another --out"
                    ) from None
            time.sleep(0.02)

    def alone(self) -> bool:
        """Take the exclusive lock if no other process has the folder open; True if this one has it now."""
        if not self.shared:
            return True
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            return False
        return True

    @property
    def tmp(self) -> Path:
        """Folder for the unfinished files of this process, and of those forked from it."""
        self._own = self._own or process_name()
        folder = self.work / TMP / self._own
        if folder not in OWNED or not folder.exists():
            if (earlier := OWNED.pop(folder, -1)) >= 0:
                os.close(earlier)
            try:
                OWNED[folder] = lock_file(folder.with_name(f"{folder.name}.lock"))
            except BlockingIOError:  # a process of another container, whose host has the same name
                self._own = f"{process_name()}-{os.urandom(4).hex()}"
                return self.tmp
            folder.mkdir(exist_ok=True)
        return folder

    @property
    def path(self) -> Path:
        if self.local is None:
            raise StoreError(f"{self.place} is not a local folder", hint="choose a local --out for this")
        return self.local

    def resume(
        self,
        identity: Identity,
        refuse: Callable[[Identity], None],
        clear: Callable[[], None] = lambda: None,
        units: int = 0,
    ) -> Identity | None:
        """Begin the job, or resume it, and return the identity of the earlier run.

        Args:
            refuse: called with the identity of the job that was begun here; raises if it is another.
            clear: called if no other process runs the job.
            units: number of parts of an export.
        """
        with disk_errors(self.parent):
            if (earlier := self.identity()) is not None:  # before anything is written
                refuse(earlier)
            if self.local is None:
                self._try_storage()
            self._record_run(units)
            if earlier is None:
                try:
                    self.storage.put_new(self._begun, to_json(identity))
                except StoreError:
                    if (earlier := self.identity()) is None:
                        raise
                    refuse(earlier)  # of a process that was first
            if self.alone():
                shutil.rmtree(self.work / TMP, ignore_errors=True)
                clear()
                if self.shared:  # others may join
                    fcntl.flock(self.descriptor, fcntl.LOCK_SH)
            elif not _is_file_of(self.descriptor, self.work / "lock"):
                # Trying for the exclusive lock gives up the shared one for an instant, in which another
                # process may have ended the job and removed the folder.
                os.close(self.descriptor)
                self.descriptor = self._take_lock(self.work / "lock")
        return earlier

    def _try_storage(self) -> None:
        from packline.storage.objects import probe

        probe(self.storage)
        if self.shared and os.environ.get(ONE_WRITER):
            raise StoreError(
                f"{self.place}: expected one process that writes, found several that share the build",
                hint="unset PACKLINE_ONE_WRITER, and build into a store that knows conditional puts",
            )

    def _record_run(self, units: int) -> None:
        name = f"{process_name()}-{os.urandom(4).hex()}.json"
        host, now = socket.gethostname(), int(time.time())
        run = Run(host=host, process=os.getpid(), since=now, command=Resuming.command, units=units)
        self._run = f"{WORK}/{RUNS}/{name}"
        with suppress(PacklineError, OSError):
            self.storage.put_new(self._run, to_json(run))
        if self.shared:
            self._joined = lock_file(self.work / RUNS / name)

    def _end_run(self) -> None:
        """Record in an object store that the process has ended."""
        with suppress(PacklineError, OSError, msgspec.MsgspecError):
            run = msgspec.json.decode(self.storage.read(self._run), type=Run)
            self.storage.delete([self._run])
            self.storage.put_new(self._run, to_json(msgspec.structs.replace(run, ended=True)))

    def clean(self) -> str:
        """Remove the records and the work folder of a complete result; returns what is left, and why."""
        if not self.is_complete():
            return ""
        self._run = ""
        if self.local is None:
            self.storage.delete([one.name for one in self.storage.walk(WORK)])
        end = time.monotonic() + LEAVING_SECONDS
        if self._joined >= 0:  # of processes that end at the same time, none waits for another
            os.close(self._joined)
            self._joined = -1
        while not self.alone():
            # Processes that do not share the job, and have the folder open, are about to end.
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            if sharing_processes(self.work) or time.monotonic() > end:
                return ""
            time.sleep(0.05)
        if self.shared and not _is_file_of(self.descriptor, self.work / "lock"):
            return ""  # another has removed it
        try:
            self.remove_work()
        except OSError as error:
            reason = f"{error.filename or self.work}: {error.strerror}"
            return f"{self.work} was not removed ({reason}); the result is complete without it"
        return ""

    def remove_work(self) -> None:
        """Remove the work folder, whose exclusive lock this process has.

        The lock goes last: a process that begins meanwhile waits for it, so nothing of its own is removed.
        """
        with suppress(FileNotFoundError):
            for path in self.work.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != "lock":
                    path.unlink()
            (self.work / "lock").unlink()
            with suppress(OSError):  # another process has begun
                self.work.rmdir()

    def identity(self) -> Identity | None:
        try:
            return msgspec.json.decode(self.storage.read(self._begun), type=self._kind)
        except FileNotFoundError:
            return None

    def receipt_names(self) -> set[str]:
        """Names of the committed receipts, by a listing."""
        start = len(self._receipts) + 1
        return {name[start:].removesuffix(".json") for name in self.storage.list(self._receipts)}

    def commit_record(self, name: str, receipt: msgspec.Struct) -> None:
        """Record that a unit is committed; its files are durable already."""
        self.storage.put_new(f"{self._receipts}/{name}.json", to_json(receipt))


def lock_file(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Lock a file, which is created if it is missing; its descriptor. `BlockingIOError` if it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        raise StoreError(f"cannot lock {path}: {error.strerror}") from error
    return descriptor


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def is_locked(lock: Path) -> bool:
    """True if a job holds a lock. Tried shared and briefly, so that readers do not block each other."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def sharing_processes(work: Path) -> list[str]:
    """Processes that share the job of a work folder and run: host and process id of each.

    Those of other machines are seen where the disk passes locks on.
    """
    locked = (path.stem for path in (work / RUNS).glob("*.json") if is_locked(path))
    return sorted({name.rpartition("-")[0] for name in locked})


def is_running(work: Path) -> bool:
    return is_locked(work / "lock") or bool(sharing_processes(work))
