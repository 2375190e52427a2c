"""Output folder of a build: locking, committed units, publication.

    DIR/.packline/lock        locked by the processes of one build
    DIR/.packline/build.json  identity of the build: recipe, tokenizer, state of the inputs
    DIR/.packline/command.json  the command that resumes it, for `status`
    DIR/.packline/tmp/        unfinished files of units; DIR/.packline/spool/ slices of streams
    DIR/.packline/reuse/      files of another store, on their way into this one
    DIR/train-....bin ...     shards of committed units
    DIR/receipts/UNIT.json    commit record of a unit, written after its files
    DIR/manifest.json         commit record of the store, written last of all

A crash leaves either a receipt with all its files, or no receipt and files that the next run deletes. A
finished store has no work folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec

from packline.errors import PacklineError, ResumeMismatch, StoreBusy, StoreError
from packline.fingerprint import hash_bytes
from packline.recipe import Recipe, recipe_difference
from packline.sources.files import InputFile
from packline.storage.inputs import refuse_name
from packline.storage.local import LocalFolder, disk_errors, publish_bytes, sync_folder
from packline.store.files import FileEntry
from packline.store.manifest import MANIFEST, WORK, Manifest, Receipt, StreamReceipt, manifest_files, to_json
from packline.store.manifest_reader import read_manifest
from packline.store.tables import RECEIPTS, REJECTS, TOKENIZER
from packline.store.unit_names import STREAM

ENDING_SECONDS = 2
"""Time to wait for a lock: the workers of a process that was just killed hold it until they have ended."""
PARTS = "parts"
"""Folder of the receipts of an export."""
COMMAND = "command.json"
"""File in the work folder with the command that resumes the build, for users; nothing depends on it."""


Identity = TypeVar("Identity", bound=msgspec.Struct)


class Command(msgspec.Struct, frozen=True):
    """A command line and its working directory."""

    line: str
    folder: str
    units: int = 0
    """Number of units of the job, as planned."""


def remember_command(work: Path, command: Command) -> None:
    """Record the command that resumes an unfinished job in its work folder; ignore failures."""
    with contextlib.suppress(OSError):
        publish_bytes(work / COMMAND, to_json(command))


def read_command(work: Path) -> Command | None:
    """Command that resumes a job; None if not recorded."""
    try:
        return msgspec.json.decode((work / COMMAND).read_bytes(), type=Command)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def staging_folder(out: Path) -> Path:
    """Work folder of a job whose result appears at `out` by one rename.

    >>> staging_folder(Path("data/rows")).as_posix()
    'data/.rows.packline'
    """
    return out.with_name(f".{out.name}.packline")


def work_folder(out: Path) -> Path:
    """Work folder of an unfinished job: that of an export if there is one, else that of a store."""
    staging = staging_folder(Path(os.path.abspath(out)))
    return staging if staging.is_dir() and not out.exists() else out / WORK


class BuildIdentity(msgspec.Struct, frozen=True):
    """Values that must be equal for a build to be resumed."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    boundary: dict[str, Any]
    files: list[InputFile]
    planned_ns: int = 0
    """Time before the inputs were looked at by the first run."""


class WorkFolder(ABC, Generic[Identity]):
    """Folder of a running job; entering it takes its lock, so that only one process runs the job.

    Args:
        folder: folder that the lock and the records are in.
        kind: type of the identity.
        record: name of the file with the identity.
        receipts: name of the folder of receipts.

    Raises:
        StoreBusy: another process has locked it.
        StoreError: it cannot be written.
    """

    busy: ClassVar[str]
    """Message for a folder that is locked."""

    def __init__(self, folder: Path, kind: type[Identity], *, record: str, receipts: str, lock: str) -> None:
        self._kind, self._record, self._receipts, self._lock_name = kind, record, receipts, lock
        self.storage = LocalFolder(folder)
        self.descriptor = -1
        """File descriptor of the lock."""

    def __enter__(self) -> Self:
        root = self.storage.path
        try:
            with disk_errors(self.parent):
                self.descriptor = self._take_lock(root / self._lock_name)
        except OSError as error:
            if isinstance(error, PacklineError):
                raise
            raise StoreError(
                f"cannot write into {self.parent}: {error.strerror}",
                hint="check its permissions, or choose another --out",
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_lock(self, path: Path) -> int:
        end = time.monotonic() + ENDING_SECONDS
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # another job has just ended and removed its folder
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StoreError(f"cannot lock {self.place}: {error.strerror}") from error
                if time.monotonic() < end:
                    time.sleep(0.02)
                    continue
                raise StoreBusy(
                    f"{self.busy} {self.place}", hint="wait for it to end, or choose another --out"
                ) from None
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
            os.close(descriptor)

    @property
    @abstractmethod
    def place(self) -> Path:
        """Place of the result, for messages."""

    @property
    def parent(self) -> Path:
        """Folder that must be writable."""
        return self.place

    def identity(self) -> Identity | None:
        """Identity of the job that was begun here; None if there is none."""
        try:
            return msgspec.json.decode(self.storage.read(self._record), type=self._kind)
        except FileNotFoundError:
            return None

    def receipt_names(self) -> list[str]:
        """Names of the committed receipts."""
        start = len(self._receipts) + 1
        return [name[start:].removesuffix(".json") for name in self.storage.list(self._receipts)]

    def commit_record(self, name: str, receipt: msgspec.Struct) -> None:
        """Record that a unit is committed; its files are durable already."""
        self.storage.put_new(f"{self._receipts}/{name}.json", to_json(receipt))

    def close(self) -> None:
        """Release the lock."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class StoreFolder(WorkFolder[BuildIdentity]):
    """Folder of a store that is being built.

    Raises:
        StoreBusy: another build has locked it.
        StoreError: it cannot be written, or contains something that is not a build.
        ResumeMismatch: it contains another build, with the difference.
    """

    busy = "another build is writing into"

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, BuildIdentity, record=f"{WORK}/build.json", receipts=RECEIPTS, lock=f"{WORK}/lock"
        )
        self.path = path
        self.work = path / WORK
        self.tmp = self.work / "tmp"
        self.spool = self.work / "spool"
        self.reuse = self.work / "reuse"
        self.receipts = path / RECEIPTS
        self.rejects = path / REJECTS

    @property
    def place(self) -> Path:
        """Path of the store."""
        return self.path

    def __enter__(self) -> Self:
        path = self.path
        refuse_name(str(path))
        if path.exists() and not path.is_dir():
            raise StoreError(
                f"{path} is a file: expected a folder to build into", hint="choose another --out"
            )
        if (
            path.is_dir()
            and not self.work.exists()
            and not (path / MANIFEST).exists()
            and any(path.iterdir())
        ):
            raise StoreError(
                f"{path} is not empty and holds no packline build: found {min(path.iterdir()).name}",
                hint="choose a new or empty folder for --out",
            )
        return super().__enter__()

    def finished(self) -> Manifest | None:
        """Manifest, if the store is complete."""
        return read_manifest(self.path) if (self.path / MANIFEST).exists() else None

    def begin(self, identity: BuildIdentity, tokenizer_json: str) -> BuildIdentity | None:
        """Start a build, or resume from the units committed by an earlier run.

        Returns:
            Identity of the earlier run, or None for a new build.
        """
        with disk_errors(self.path):
            for folder in (self.tmp, self.spool, self.reuse):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            for folder in (self.receipts, self.path / TOKENIZER):
                folder.mkdir(exist_ok=True)
            if (earlier := self.identity()) is not None:
                self._refuse_another(earlier, identity)
            publish_bytes(self.path / TOKENIZER / "tokenizer.json", tokenizer_json.encode())
            if earlier is None:  # else keep it: inputs are compared with their state at the first run
                self.storage.put_new(self._record, to_json(identity))
            self._drop_uncommitted()
        return earlier

    def _refuse_another(self, old: BuildIdentity, new: BuildIdentity) -> None:
        differences = recipe_difference(msgspec.to_builtins(old.recipe), msgspec.to_builtins(new.recipe))
        if old.tokenizer != new.tokenizer:
            differences.append(f"the tokenizer's content: {old.tokenizer[:12]} -> {new.tokenizer[:12]}")
        differences += recipe_difference(old.boundary, new.boundary)
        differences += input_differences(
            [(file.path, file.size) for file in old.files], [(file.path, file.size) for file in new.files]
        )
        refuse_differences(self.path, differences)

    def _drop_uncommitted(self) -> None:
        """Delete files of units without a receipt."""
        known = {MANIFEST, WORK, RECEIPTS, REJECTS, TOKENIZER}
        for receipt in self.committed().values():
            known.update(entry.name for shard in receipt.shards for entry in shard.files)
            known.update(entry.name for entry in receipt.rejects)
        for folder, prefix in ((self.path, ""), (self.rejects, f"{REJECTS}/")):
            if not folder.is_dir():
                continue
            for path in folder.iterdir():
                if prefix + path.name not in known and path.is_file():
                    path.unlink()
        for path in self.receipts.glob(".*.tmp"):
            path.unlink()

    def committed(self) -> dict[str, Receipt]:
        """Receipts of all committed units, by unit."""
        return {name: self.receipt(name) for name in self.receipt_names() if not name.endswith(STREAM)}

    def find_receipt(self, unit: str) -> Receipt | None:
        """Receipt of a unit; None if it is not committed."""
        try:
            return self.receipt(unit)
        except FileNotFoundError:
            return None

    def receipt(self, unit: str) -> Receipt:
        """Receipt of a committed unit."""
        return msgspec.json.decode(self.storage.read(f"{RECEIPTS}/{unit}.json"), type=Receipt)

    def streams(self) -> dict[str, StreamReceipt]:
        """Receipts of streams that were read to their end, by name."""
        return {
            name.removesuffix(STREAM): msgspec.json.decode(
                self.storage.read(f"{RECEIPTS}/{name}.json"), type=StreamReceipt
            )
            for name in self.receipt_names()
            if name.endswith(STREAM)
        }

    def commit(self, receipt: Receipt) -> None:
        """Publish a unit: first its files, then its receipt, each durable before the next."""
        entries = [entry for shard in receipt.shards for entry in shard.files]
        names = [entry.name for entry in (*entries, *receipt.rejects)]
        self.storage.put_files({name: self.tmp / Path(name).name for name in names})
        self.commit_record(receipt.unit, receipt)

    def commit_all(self, receipts: Sequence[Receipt], streams: Mapping[str, StreamReceipt]) -> None:
        """Publish units whose files are in `reuse`: first all files, then all receipts."""
        entries = [entry for receipt in receipts for shard in receipt.shards for entry in shard.files]
        entries += [entry for receipt in receipts for entry in receipt.rejects]
        self.storage.put_files({entry.name: self.reuse / Path(entry.name).name for entry in entries})
        records: dict[str, msgspec.Struct] = {receipt.unit: receipt for receipt in receipts}
        records |= {f"{name}{STREAM}": receipt for name, receipt in streams.items()}
        waiting: dict[str, Path] = {}
        for name, record in records.items():
            path = waiting[f"{RECEIPTS}/{name}.json"] = self.reuse / f"{name}.json"
            path.write_bytes(to_json(record))
        self.storage.put_files(waiting)

    def commit_stream(self, name: str, receipt: StreamReceipt) -> None:
        """Record that a stream was read to its end."""
        self.commit_record(f"{name}{STREAM}", receipt)

    def withdraw(self, receipt: Receipt) -> None:
        """Withdraw a unit: delete its receipt first, then its files."""
        self.storage.delete([f"{RECEIPTS}/{receipt.unit}.json"])
        self.storage.sync(RECEIPTS)
        entries = [entry for shard in receipt.shards for entry in shard.files]
        self.storage.delete([entry.name for entry in (*entries, *receipt.rejects)])

    def withdraw_stream(self, name: str) -> None:
        """Withdraw the record that a stream was read to its end."""
        self.storage.delete([f"{RECEIPTS}/{name}{STREAM}.json"])

    def release(self) -> None:
        """Discard the committed units, so that another build may start here; rejects are kept until then.

        Receipts are deleted first: after a crash in between, this build repeats the units, and no other build
        takes them over.
        """
        self.storage.delete([f"{RECEIPTS}/{name}.json" for name in self.receipt_names()])
        self.storage.sync(RECEIPTS)
        self.storage.delete([self._record])

    def publish(self, manifest: Manifest) -> None:
        """Write the tables, then the manifest, which makes the folder a store."""
        for name, data in manifest_files(manifest).items():
            self.storage.put_new(name, data)

    def discard(self, manifest: Manifest) -> None:
        """Delete the contents of a finished store, so that another can be built in its folder.

        The manifest is deleted after the files that it lists: if the run is killed before, the next one finds
        a store and discards it. The tables are deleted after the manifest, which cannot be read without them.
        """
        with disk_errors(self.path):
            (self.work / "build.json").unlink(missing_ok=True)
            for folder in (self.receipts, self.rejects, self.path / TOKENIZER):
                shutil.rmtree(folder, ignore_errors=True)
            self.storage.delete([entry.name for shard in manifest.shards for entry in shard.files])
            sync_folder(self.path)
            (self.path / MANIFEST).unlink()
            sync_folder(self.path)
            self.storage.delete([entry.name for entry in manifest.tables])

    def clean(self) -> str:
        """Remove the work folder of a finished store.

        Returns:
            The files left and the reason; empty if none are left.
        """
        if (self.path / MANIFEST).exists():
            shutil.rmtree(self.work, ignore_errors=True)
            try:
                if self.work.exists():  # once more, to get the reason
                    shutil.rmtree(self.work)
            except OSError as error:
                place = error.filename or self.work
                reason = f"{place}: {error.strerror}"
                return f"{self.work} was not removed ({reason}); the store is complete without it"
        return ""

    def entry(self, name: str) -> FileEntry:
        """Manifest entry of a small file of the store."""
        data = self.storage.read(name)
        return FileEntry(name, len(data), hash_bytes(data))


def input_differences(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> list[str]:
    """Differences between two lists of inputs (name and size), one line each."""
    before, after = dict(old), dict(new)
    lines = [f"input {name} is gone" for name in before if name not in after]
    lines += [f"input {name} is new" for name in after if name not in before]
    lines += [
        f"input {name}: {size:,} bytes -> {after[name]:,} bytes"
        for name, size in before.items()
        if name in after and after[name] != size
    ]
    if not lines and old != new:
        lines.append("the order of the inputs")
    return lines


def refuse_differences(
    place: Path | str,
    differences: list[str],
    kind: str = "a build",
    hint: str = "repeat the earlier command to resume it, or choose another --out",
) -> None:
    """Raise `ResumeMismatch` if there are any differences.

    Args:
        kind: kind of job that the folder contains.
    """
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ResumeMismatch(
            f"{place} holds {kind} of something else: {'; '.join(differences[:5])}{more}", hint=hint
        )
