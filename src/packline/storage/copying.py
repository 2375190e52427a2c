"""Copy of files from one storage into another: create-only, compared, resumable by another run.

Between folders files are linked where the file system can, into objects they are put from a memory map, into
folders written to `.copying` first, between objects through a scratch folder. A file that the target has is
compared by checksum and not sent again. At most `FILES_AT_ONCE` files are on their way.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from packline.errors import CorruptStore, StoreError
from packline.fingerprint import Hasher
from packline.storage.local import Link, LocalFolder, disk_errors, hash_file, share_file, sync_folder
from packline.storage.objects import ObjectFolder
from packline.storage.places import join
from packline.storage.results import PIECE_BYTES, FileFacts, Storage, hash_contents, other_content

FILES_AT_ONCE = 8
LINKED_AT_ONCE = 256
WAITING = ".copying"
"""Folder of a local target with files that are on their way."""


class CopyCounts(msgspec.Struct):
    """Counts of a copy."""

    files: int = 0
    bytes: int = 0
    found_files: int = 0
    """Number of `files` that the target had already."""
    linked_bytes: int = 0
    """Number of `bytes` that share their blocks with the source."""


def checksum_of(storage: Storage, name: str) -> str:
    """xxh3-128 of a file: as the storage has it, else by reading."""
    if (facts := storage.facts(name)) is None:
        raise FileNotFoundError(2, "no such file", join(storage.place, name))
    return facts.checksum or hash_contents(storage, name, facts.size)


class Copier:
    """Copy of files between two storages.

    Args:
        on_bytes: called with the bytes of each piece, from several threads, one at a time.
    """

    def __init__(
        self,
        source: Storage,
        target: Storage,
        there: dict[str, FileFacts],
        *,
        link: Link = "auto",
        verify: bool = False,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        self.source, self.target, self.there = source, target, there
        self.counts = CopyCounts()
        self._link, self._verify, self._on_bytes = link, verify, on_bytes
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._scratch = Path()

    def run(self, files: Sequence[FileFacts]) -> None:
        """Copy files; all are durable on return."""
        with self._waiting_folder() as scratch, disk_errors(Path(scratch)):
            self._scratch = Path(scratch)
            if isinstance(self.source, LocalFolder) and isinstance(self.target, LocalFolder):
                for start in range(0, len(files), LINKED_AT_ONCE):
                    self._link_files(self.source, self.target, files[start : start + LINKED_AT_ONCE])
                return
            with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
                copies = [threads.submit(self._copy, file) for file in files]
                try:
                    for copy in copies:
                        copy.result()
                except BaseException:
                    self._stopped.set()
                    threads.shutdown(wait=False, cancel_futures=True)
                    raise

    def _waiting_folder(self) -> tempfile.TemporaryDirectory[str]:
        """New folder for files on their way, on the disk of a local target."""
        parent = os.environ.get("PACKLINE_SCRATCH")
        if isinstance(self.target, LocalFolder):
            parent = str(self.target.path / WAITING)
            Path(parent).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="packline-", dir=parent, ignore_cleanup_errors=True)

    def _link_files(self, source: LocalFolder, target: LocalFolder, files: Sequence[FileFacts]) -> None:
        waiting: dict[str, Path] = {}
        for number, file in enumerate(files):
            if self._found(file):
                continue
            path = waiting[file.name] = self._scratch / str(number)
            way = share_file(source.path / file.name, path, self._link)
            if file.checksum and (way == "copied" or self._verify):
                self._refuse_other(file, file.checksum, hash_file(path))
            self.counts.linked_bytes += file.size * (way != "copied")
        target.put_files(waiting)
        for file in files:
            self._count(file, file.size)

    def _copy(self, file: FileFacts) -> None:
        if self._stopped.is_set():
            return
        if self._found(file):
            return self._count(file, file.size)
        if isinstance(self.source, LocalFolder):
            assert isinstance(self.target, ObjectFolder)
            self.target.upload(file.name, self.source.path / file.name, file.checksum)
            sent = file.size
        else:
            path = self._download(file)
            if self._stopped.is_set():
                return
            self.target.put_files({file.name: path})
            sent = 0
        if self._verify:
            self._read_back(file)
        self._count(file, sent)

    def _found(self, file: FileFacts) -> bool:
        """True if the target has the file."""
        facts = self.there.get(file.name)
        if facts is None:
            return False
        expected = file.checksum or checksum_of(self.source, file.name)
        found = checksum_of(self.target, file.name) if facts.size == file.size else f"{facts.size:,} bytes"
        if found != expected:
            raise other_content(join(self.target.place, file.name), expected, found)
        if self._verify:
            self._read_back(file)
        with self._lock:
            self.counts.found_files += 1
        return True

    def _download(self, file: FileFacts) -> Path:
        """Local copy of a file, of the expected checksum."""
        before = None if file.checksum else self.source.facts(file.name)
        expected = before.checksum if before is not None else file.checksum
        path, hasher = self._scratch / secrets.token_hex(8), Hasher()
        for last in (False, True):  # a damaged piece is requested once more
            hasher.reset()
            with open(path, "wb") as output:
                for start in range(0, file.size, PIECE_BYTES):
                    if self._stopped.is_set():
                        return path
                    data = self.source.read(file.name, start, min(start + PIECE_BYTES, file.size))
                    hasher.update(data)
                    output.write(data)
                    if not last:
                        self._hear(len(data))
            if not expected and self.source.facts(file.name) != before:
                raise StoreError(
                    f"{join(self.source.place, file.name)} changed while it was read",
                    hint="run the same command again when nothing writes there",
                )
            if not expected or hasher.hexdigest() == expected:
                return path
        self._refuse_other(file, expected, hasher.hexdigest())
        return path

    def _read_back(self, file: FileFacts) -> None:
        """Compare a file of the target with the source by reading it."""
        expected = file.checksum or checksum_of(self.source, file.name)
        if (found := hash_contents(self.target, file.name, file.size)) != expected:
            raise CorruptStore(
                f"{join(self.target.place, file.name)} is damaged: expected {expected}, found {found}",
                hint="delete it and run the same command again",
            )

    def _refuse_other(self, file: FileFacts, expected: str, found: str) -> None:
        if found != expected:
            raise CorruptStore(
                f"{join(self.source.place, file.name)} is damaged: expected {expected}, found {found}",
                hint="it cannot be copied; build or copy the source again",
            )

    def _hear(self, size: int) -> None:
        if self._on_bytes is not None and size:
            with self._lock:
                self._on_bytes(size)

    def _count(self, file: FileFacts, unheard: int) -> None:
        with self._lock:
            self.counts.files += 1
            self.counts.bytes += file.size
        self._hear(unheard)


def forget_waiting(target: Storage) -> None:
    """Delete what interrupted copies have left in the folder of files on their way."""
    if isinstance(target, LocalFolder) and (target.path / WAITING).exists():
        shutil.rmtree(target.path / WAITING, ignore_errors=True)
        sync_folder(target.path)
