"""The folder of an export while it is made: where a format writes its files.

    with target.create("train/part-00000.bin") as file:
        file.write(tokens)                                  # checksum on the way
    target.share(shard.path, "train.bin", entry)            # hard link, else reflink, else copy

What was entered is what the export consists of: name, size and checksum of each file. Nothing is seen
under its final name before all is done. `sync` waits until everything entered is on the disk, a file at a
time, or, where they are many, all that the file system has waiting.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

from packline.errors import PacklineError, RecipeError
from packline.filesystem import disk_errors, sync_file, sync_folder
from packline.fingerprint import Hasher
from packline.store.manifest import FileEntry
from packline.store.writer import HashedFile

Link = Literal["auto", "hard", "reflink", "copy"]
"""How bytes of the store are shared: `auto` is a hard link, else a reflink, else a copy."""

FICLONE = 0x40049409
COPY_BYTES = 8 << 20
MANY = 16
"""Files that are synced one by one."""
_CANNOT = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EMLINK}
"""Errors that say that a file system has no such thing between these two places."""


class Target:
    """A folder that files are written to, with a record of them.

    Args:
        folder: is there.
        link: how `share` may go about it.
        on_progress: is called with the tokens that were written since the last call.
    """

    def __init__(
        self, folder: Path, *, link: Link = "auto", on_progress: Callable[[int], None] | None = None
    ) -> None:
        if link not in get_args(Link):
            raise RecipeError(f"link is {link!r}: expected one of {', '.join(get_args(Link))}")
        self.folder, self.link = folder, link
        self.files: list[FileEntry] = []
        """What was entered, in that order."""
        self.shared: Counter[str] = Counter()
        """Bytes that were `linked`, `reflinked` or `copied`."""
        self._on_progress = on_progress

    @contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """A new file to write to; when closed it is entered.

        Args:
            name: below the folder, with `/` between folders, which are made.
        """
        path = self._place(name)
        with disk_errors(self.folder):
            file = HashedFile(path)
            try:
                yield file
            except BaseException:
                file.abandon()
                raise
            self.files.append(file.entry(name))

    def path(self, name: str) -> Path:
        """Where a library may write a file itself; `adopt` enters it afterwards."""
        return self._place(name)

    def adopt(self, name: str) -> FileEntry:
        """Enter a file that something else wrote; reads it once, for its checksum."""
        with disk_errors(self.folder):
            entry = _entry_of(self.folder / name, name)
        self.files.append(entry)
        return entry

    def share(self, path: Path, name: str, entry: FileEntry | None = None) -> None:
        """A file with the bytes of one of the store's.

        Args:
            path: the store's file.
            name: of the new one.
            entry: size and checksum of it, where they are known: then a link costs nothing.

        Raises:
            PacklineError: it cannot be shared in the way that the settings ask for.
        """
        target = self._place(name)
        with disk_errors(self.folder):
            how = self._share(path, target)
        known = FileEntry(name, entry.bytes, entry.checksum) if entry else _entry_of(target, name)
        self.shared[how] += known.bytes
        self.files.append(known)

    def sync(self) -> None:
        """Wait until all files are on the disk, and their names too."""
        sync_files(self.folder, [entry.name for entry in self.files])

    def progress(self, tokens: int) -> None:
        """Say that so many tokens more are written."""
        if self._on_progress is not None:
            self._on_progress(tokens)

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise PacklineError(f"a file of an export cannot be called {name!r}")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a run that was interrupted; never write through a link
        return path

    def _share(self, path: Path, target: Path) -> str:
        source = path.resolve()  # of a store that is itself made of symbolic links
        if self.link in ("auto", "hard"):
            try:
                os.link(source, target)
                return "linked"
            except OSError as error:
                self._refuse_if("hard", path, error)
        if self.link in ("auto", "reflink"):
            try:
                _reflink(source, target)
                return "reflinked"
            except OSError as error:
                target.unlink(missing_ok=True)
                self._refuse_if("reflink", path, error)
        copy_file(source, target)
        return "copied"

    def _refuse_if(self, asked: str, path: Path, error: OSError) -> None:
        if error.errno not in _CANNOT:
            raise error
        if self.link == asked:
            what = "hard links" if asked == "hard" else "reflinks"
            raise PacklineError(
                f"cannot share {path} with {self.folder}: no {what} there: {error.strerror}",
                hint="--link auto copies where it must",
            ) from error


def sync_files(folder: Path, names: list[str]) -> None:
    """Wait until files of a folder are on the disk, and their names too."""
    folders = {folder / Path(name).parent for name in names} | {folder}
    with disk_errors(folder):
        if len(names) <= MANY or not _sync_file_system(folder):
            for name in names:
                sync_file(folder / name)
        for each in sorted(folders):
            sync_folder(each)


def _reflink(source: Path, target: Path) -> None:
    """Let a file share another's blocks until one of them is changed."""
    import fcntl
    import sys

    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no reflinks here")
    with open(source, "rb") as reading, open(target, "wb") as writing:
        fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copy a file inside the kernel; through this process where the kernel cannot."""
    with open(source, "rb", buffering=0) as reading, open(target, "wb", buffering=0) as writing:
        size = os.fstat(reading.fileno()).st_size
        done = 0
        with suppress(OSError, AttributeError):
            while done < size:
                copied = os.copy_file_range(reading.fileno(), writing.fileno(), size - done, done, done)
                if not copied:
                    break
                done += copied
        reading.seek(done)
        writing.seek(done)
        while data := reading.read(COPY_BYTES):  # the rest, or an error that is worth raising
            while data:
                data = data[writing.write(data) :]


def _sync_file_system(folder: Path) -> bool:
    """Write out all that waits for the disk of a folder; False where the system has no such call."""
    import ctypes

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return int(ctypes.CDLL(None).syncfs(descriptor)) == 0
    except (OSError, AttributeError):
        return False
    finally:
        os.close(descriptor)


def _entry_of(path: Path, name: str) -> FileEntry:
    hasher, size = Hasher(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(COPY_BYTES):
            hasher.update(data)
            size += len(data)
    return FileEntry(name, size, str(hasher.hexdigest()))
