"""Output folder of a build: locking, committed units, publication.

    DIR/.packline/lock        locked by the processes of one build
    DIR/.packline/build.json  identity of the build: recipe, tokenizer, state of the inputs
    DIR/.packline/command.json  the command that resumes it, for `status`
    DIR/.packline/tmp/        unfinished files of units; DIR/.packline/spool/ slices of streams
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
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import PacklineError, ResumeMismatch, StoreBusy, StoreError
from packline.recipe import Recipe, recipe_difference
from packline.sources.files import InputFile
from packline.storage.inputs import refuse_name
from packline.storage.local import disk_errors, publish_bytes, sync_file, sync_folder
from packline.store.files import FileEntry
from packline.store.manifest import (
    MANIFEST,
    RECEIPTS,
    REJECTS,
    TOKENIZER,
    WORK,
    Manifest,
    Receipt,
    StreamReceipt,
    read_manifest,
    to_json,
)

COMMAND = "command.json"
"""File in the work folder with the command that resumes the build, for users; nothing depends on it."""


class Command(msgspec.Struct, frozen=True):
    """A command line and its working directory."""

    line: str
    folder: str


def remember_command(path: Path, command: Command) -> None:
    """Record the command that resumes an unfinished build in its folder; ignore failures."""
    with contextlib.suppress(OSError):
        publish_bytes(path / WORK / COMMAND, to_json(command))


def read_command(path: Path) -> Command | None:
    """Command that resumes a build; None if not recorded."""
    try:
        return msgspec.json.decode((path / WORK / COMMAND).read_bytes(), type=Command)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


class BuildIdentity(msgspec.Struct, frozen=True):
    """Values that must be equal for a build to be resumed."""

    recipe: Recipe
    tokenizer: str
    """Fingerprint of the tokenizer."""
    boundary: dict[str, Any]
    files: list[InputFile]


class BuildFolder:
    """Folder of a running build; it can be open only once at a time.

    Raises:
        StoreBusy: another build has locked it.
        StoreError: it cannot be written, or contains something that is not a build.
        ResumeMismatch: it contains another build, with the difference.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK
        self.tmp = self.work / "tmp"
        self.spool = self.work / "spool"
        self.receipts = path / RECEIPTS
        self.rejects = path / REJECTS
        self._lock = -1
        self._prepare()

    def _prepare(self) -> None:
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
        try:
            with disk_errors(path):
                for folder in (path, self.work):
                    folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(self.work / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if isinstance(error, PacklineError):
                raise
            raise StoreError(
                f"cannot write into {path}: {error.strerror}",
                hint="check its permissions, or choose another --out",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise StoreError(f"cannot lock {path}: {error.strerror}") from error
            raise StoreBusy(
                f"another build is writing into {path}", hint="wait for it to end, or choose another --out"
            ) from None

    def finished(self) -> Manifest | None:
        """Manifest, if the store is complete."""
        return read_manifest(self.path) if (self.path / MANIFEST).exists() else None

    def begin(self, identity: BuildIdentity, tokenizer_json: str) -> BuildIdentity | None:
        """Start a build, or resume from the units committed by an earlier run.

        Returns:
            Identity of the earlier run, or None for a new build.
        """
        record = self.work / "build.json"
        earlier = None
        with disk_errors(self.path):
            for folder in (self.tmp, self.spool):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            for folder in (self.receipts, self.path / TOKENIZER):
                folder.mkdir(exist_ok=True)
            if record.exists():
                earlier = msgspec.json.decode(record.read_bytes(), type=BuildIdentity)
                self._refuse_another(earlier, identity)
            publish_bytes(self.path / TOKENIZER / "tokenizer.json", tokenizer_json.encode())
            if earlier is None:  # else keep it: inputs are compared with their state at the first run
                publish_bytes(record, to_json(identity))
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
        names = (path.stem for path in sorted(self.receipts.glob("[0-9]*.json")))
        return {name: self.receipt(name) for name in names}

    def receipt(self, unit: str) -> Receipt:
        """Receipt of a committed unit."""
        return msgspec.json.decode((self.receipts / f"{unit}.json").read_bytes(), type=Receipt)

    def streams(self) -> dict[str, StreamReceipt]:
        """Receipts of streams that were read to their end, by name."""
        return {
            path.name.removeprefix("stream-").removesuffix(".json"): msgspec.json.decode(
                path.read_bytes(), type=StreamReceipt
            )
            for path in sorted(self.receipts.glob("stream-*.json"))
        }

    def commit(self, receipt: Receipt) -> None:
        """Publish a unit: first its files, then its receipt, each synced to disk before the next."""
        entries = [entry for shard in receipt.shards for entry in shard.files]
        with disk_errors(self.path):
            for entry in (*entries, *receipt.rejects):
                sync_file(self.tmp / Path(entry.name).name)
            if receipt.rejects:
                self.rejects.mkdir(exist_ok=True)
            for entry in (*entries, *receipt.rejects):
                os.replace(self.tmp / Path(entry.name).name, self.path / entry.name)
            if receipt.rejects:
                sync_folder(self.rejects)
            sync_folder(self.path)
            publish_bytes(self.receipts / f"{receipt.unit}.json", to_json(receipt))

    def commit_stream(self, name: str, receipt: StreamReceipt) -> None:
        """Record that a stream was read to its end."""
        publish_bytes(self.receipts / f"stream-{name}.json", to_json(receipt))

    def withdraw(self, receipt: Receipt) -> None:
        """Withdraw a unit: delete its receipt first, then its files."""
        (self.receipts / f"{receipt.unit}.json").unlink()
        sync_folder(self.receipts)
        for entry in (*(entry for shard in receipt.shards for entry in shard.files), *receipt.rejects):
            (self.path / entry.name).unlink(missing_ok=True)

    def withdraw_stream(self, name: str) -> None:
        """Withdraw the record that a stream was read to its end."""
        (self.receipts / f"stream-{name}.json").unlink()

    def release(self) -> None:
        """Discard the committed units, so that another build may start here; rejects are kept until then.

        Receipts are deleted first: after a crash in between, this build repeats the units, and no other build
        takes them over.
        """
        for receipt in self.receipts.glob("[0-9]*.json"):
            receipt.unlink()
        sync_folder(self.receipts)
        (self.work / "build.json").unlink()

    def publish(self, manifest: Manifest) -> None:
        """Write the manifest, which makes the folder a store."""
        publish_bytes(self.path / MANIFEST, to_json(manifest))

    def discard(self, manifest: Manifest) -> None:
        """Delete the contents of a finished store, so that another can be built in its folder.

        The manifest is deleted last: if the run is killed before, the next one finds a store and discards it.
        """
        with disk_errors(self.path):
            (self.work / "build.json").unlink(missing_ok=True)
            for folder in (self.receipts, self.rejects, self.path / TOKENIZER):
                shutil.rmtree(folder, ignore_errors=True)
            for shard in manifest.shards:
                for entry in shard.files:
                    (self.path / entry.name).unlink(missing_ok=True)
            sync_folder(self.path)
            (self.path / MANIFEST).unlink()
            sync_folder(self.path)

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
        from packline.fingerprint import hash_bytes

        data = (self.path / name).read_bytes()
        return FileEntry(name, len(data), hash_bytes(data))

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


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


def refuse_differences(path: Path, differences: list[str]) -> None:
    """Raise `ResumeMismatch` if there are any differences."""
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ResumeMismatch(
            f"{path} holds a build of something else: {'; '.join(differences[:5])}{more}",
            hint="repeat the earlier command to go on with it, or choose another --out",
        )
