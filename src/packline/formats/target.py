"""The folder of an export in progress, where a format writes its files.

    with target.create("train/part-00000.bin") as file:
        file.write(tokens)                                  # checksum on the way
    target.share(shard.path, "train.bin", entry)            # hard link, else reflink, else copy

The export consists of the files that were entered: name, size and checksum of each. No file is visible under
its final name before the export is complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import get_args

from packline.errors import PacklineError, RecipeError
from packline.fingerprint import Hasher
from packline.storage.local import disk_errors
from packline.storage.sharing import COPY_BYTES, Link, share_file, sync_files
from packline.store.files import FileEntry
from packline.store.paths import StorePath, local_file
from packline.store.writer import HashedFile


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
        self._on_progress, self._prefix = on_progress, ""

    def within(self, prefix: str) -> Target:
        """The same target for files whose names are given without this prefix, such as `train/`."""
        inner = Target(self.folder, link=self.link, on_progress=self._on_progress)
        inner.files, inner.shared, inner._prefix = self.files, self.shared, self._prefix + prefix
        return inner

    @contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """Create a file to write to; it is entered when closed.

        Args:
            name: path below the folder, with `/` between folders, which are created.
        """
        name = self._prefix + name
        path = self._place(name)
        with disk_errors(self.folder):
            file = HashedFile(path)
            try:
                yield file
            except BaseException:
                file.abandon()
                raise
            self.files.append(file.entry(name))

    def share(self, path: StorePath, name: str, entry: FileEntry | None = None) -> None:
        """Add a file with the bytes of a file of the store.

        Args:
            path: the store's file.
            name: name of the new file.
            entry: its size and checksum, if known: a link then costs nothing.

        Raises:
            PacklineError: the file cannot be shared in the requested way.
        """
        name = self._prefix + name
        target = self._place(name)
        with disk_errors(self.folder):
            if isinstance(path, Path):
                how = share_file(path, target, self.link)
            else:  # a link would be to a file of the cache
                how = share_file(local_file(path), target, "copy")
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


def _entry_of(path: Path, name: str) -> FileEntry:
    hasher, size = Hasher(), 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(COPY_BYTES):
            hasher.update(data)
            size += len(data)
    return FileEntry(name, size, str(hasher.hexdigest()))
