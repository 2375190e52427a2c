"""The folder of an export in progress, where a format writes its files.

    with target.create("train/part-00000.bin") as file:
        file.write(tokens)                                  # checksum on the way
    target.share(shard.path, "train.bin", entry)            # hard link, else reflink, else copy

The export consists of the files that were entered: name, size and checksum of each. No file is visible under
its final name before the export is complete. `sync` waits until all entered files are on the disk: one by
one, or, if there are many, by syncing the whole file system.
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
from packline.fingerprint import Hasher
from packline.storage.local import disk_errors, sync_file, sync_folder
from packline.store.files import FileEntry
from packline.store.writer import HashedFile

Link = Literal["auto", "hard", "reflink", "copy"]
"""Way to share bytes of the store: `auto` tries a hard link, then a reflink, then a copy."""

FICLONE = 0x40049409
COPY_BYTES = 8 << 20
MANY = 16
"""Largest number of files that are synced one by one."""
_CANNOT = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EMLINK}
"""Errors for a link that the file system does not support between two places."""


class Target:
    """A folder to write files to, with a record of them.

    Args:
        folder: an existing folder.
        link: how `share` shares bytes.
        on_progress: called with the number of tokens written since the last call.
    """

    def __init__(
        self, folder: Path, *, link: Link = "auto", on_progress: Callable[[int], None] | None = None
    ) -> None:
        if link not in get_args(Link):
            raise RecipeError(f"link is {link!r}: expected one of {', '.join(get_args(Link))}")
        self.folder, self.link = folder, link
        self.files: list[FileEntry] = []
        """Files that were entered, in that order."""
        self.shared: Counter[str] = Counter()
        """Number of bytes that were `linked`, `reflinked` or `copied`."""
        self._on_progress = on_progress

    @contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """Create a file to write to; it is entered when closed.

        Args:
            name: path below the folder, with `/` between folders, which are created.
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
        """Path at which a library may write a file on its own; enter it afterwards with `adopt`."""
        return self._place(name)

    def adopt(self, name: str) -> FileEntry:
        """Enter a file written by something else; reads it once, for its checksum."""
        with disk_errors(self.folder):
            entry = _entry_of(self.folder / name, name)
        self.files.append(entry)
        return entry

    def share(self, path: Path, name: str, entry: FileEntry | None = None) -> None:
        """Add a file with the bytes of a file of the store.

        Args:
            path: the store's file.
            name: name of the new file.
            entry: its size and checksum, if known: a link then costs nothing.

        Raises:
            PacklineError: the file cannot be shared in the requested way.
        """
        target = self._place(name)
        with disk_errors(self.folder):
            how = self._share(path, target)
        known = FileEntry(name, entry.bytes, entry.checksum) if entry else _entry_of(target, name)
        self.shared[how] += known.bytes
        self.files.append(known)

    def sync(self) -> None:
        """Wait until all files and their names are on the disk."""
        sync_files(self.folder, [entry.name for entry in self.files])

    def progress(self, tokens: int) -> None:
        """Report the number of tokens written since the last call."""
        if self._on_progress is not None:
            self._on_progress(tokens)

    def _place(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise PacklineError(f"a file of an export cannot be called {name!r}")
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # from an interrupted run; never write through a link
        return path

    def _share(self, path: Path, target: Path) -> str:
        source = path.resolve()  # the store may itself be made of symbolic links
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

    def _refuse_if(self, requested: str, path: Path, error: OSError) -> None:
        if error.errno not in _CANNOT:
            raise error
        if self.link == requested:
            what = "hard links" if requested == "hard" else "reflinks"
            raise PacklineError(
                f"cannot share {path} with {self.folder}: no {what} there: {error.strerror}",
                hint="--link auto copies where it must",
            ) from error


def sync_files(folder: Path, names: list[str]) -> None:
    """Wait until the files of a folder and their names are on the disk."""
    folders = {folder / Path(name).parent for name in names} | {folder}
    with disk_errors(folder):
        if len(names) <= MANY or not _sync_file_system(folder):
            for name in names:
                sync_file(folder / name)
        for each in sorted(folders):
            sync_folder(each)


def _reflink(source: Path, target: Path) -> None:
    """Let a file share another file's blocks until either is changed."""
    import fcntl
    import sys

    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no reflinks here")
    with open(source, "rb") as reading, open(target, "wb") as writing:
        fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copy inside the kernel, or through this process where the kernel cannot."""
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
        while data := reading.read(COPY_BYTES):  # the rest, or an error worth raising
            while data:
                data = data[writing.write(data) :]


def _sync_file_system(folder: Path) -> bool:
    """Sync the whole file system of a folder; False if the system has no such call."""
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
