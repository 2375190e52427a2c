"""Files of a store, opened safely: plain files within its folder, and one kind of error for all damage.

    stat_file   a regular file that is where the store says: no pipe, no device, no link that leads out
    map_file    its bytes, mapped; no descriptor stays open
    read_file   a small one, whole, held against its checksum
    reading     any error of a library that reads one is `CorruptStore`, with the file

Whoever opens a store of somebody else must be able to rely on this: what is read is the store's own, and
what cannot be read is named. A file that is opened leaves no descriptor behind, so the number of shards is
not limited by the number of files that a process may open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import CorruptStore, PacklineError, StoreError
from packline.fingerprint import hash_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.store.manifest import FileEntry

SMALL = 4 << 10
"""Bytes: a file up to here is read, which is faster than mapping it and takes no map."""
HINT = "packline verify shows what else is damaged"
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn every error of reading a file into `CorruptStore`.

    Args:
        path: the file, for the message.

    Raises:
        CorruptStore: whatever a library raised.
        StoreError: the process may not open more files or map more memory, which is no damage.

    >>> with reading("a.docs.parquet"):
    ...     [][1]
    Traceback (most recent call last):
    packline.errors.CorruptStore: cannot read a.docs.parquet: list index out of range
    """
    try:
        yield
    except PacklineError:
        raise
    except OSError as error:
        if (refused := _limit_reached(path, error)) is not None:
            raise refused from error
        raise CorruptStore(f"cannot read {path}: {error.strerror or error}", hint=HINT) from error
    except Exception as error:
        what = str(error) or type(error).__name__
        raise CorruptStore(f"cannot read {path}: {what.splitlines()[0]}", hint=HINT) from error


def _limit_reached(path: str | Path, error: OSError) -> StoreError | None:
    """The error for a limit of the system; None for any other error."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreError(
            f"cannot read {path}: this process has too many open files",
            hint="raise the limit with `ulimit -n 65536`, or close files of your own",
        )
    if error.errno == errno.ENOMEM:
        return StoreError(
            f"cannot map {path}: no memory, or too many maps in this process",
            hint="release arrays of documents that are no longer needed, or raise vm.max_map_count",
        )
    return None


def stat_file(path: Path, root: Path | None = None) -> os.stat_result:
    """Size and state of a regular file of a store. Opens nothing, so a pipe cannot make it wait.

    Args:
        path: the file. root: the folder that it must not lead out of; default the one that it is in. The
        root itself may be a link.

    Raises:
        CorruptStore: it is missing, is no regular file, or is a link that leads out of the store.
    """
    with reading(path):
        found = os.lstat(path)
        linked = stat.S_ISLNK(found.st_mode)
        if not linked and root is None and stat.S_ISREG(found.st_mode):
            return found
        if root is not None and path.parent != root:
            linked = linked or stat.S_ISLNK(os.lstat(path.parent).st_mode)
        if linked:
            base = os.path.realpath(root or path.parent)
            target = os.path.realpath(path)
            if not target.startswith(os.path.join(base, "")):
                raise CorruptStore(
                    f"{path}: expected a file of the store, found a link out of it, to {target}",
                    hint="put the file itself there",
                )
            found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise CorruptStore(f"cannot read {path}: expected a regular file, found {kind}", hint=HINT)
    return found


def map_file(path: Path, root: Path | None = None) -> np.ndarray:
    """The bytes of a file, uint8 `[N]`, mapped and read-only; valid as long as the array or a view of it.

    Raises:
        CorruptStore: as for `stat_file`.
        StoreError: a limit of the system.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.bin"
    >>> _ = file.write_bytes(b"ab")
    >>> map_file(file).tolist()
    [97, 98]
    """
    size = stat_file(path, root).st_size
    with reading(path):
        if size <= SMALL:
            return np.frombuffer(path.read_bytes(), np.uint8)
        try:
            return np.frombuffer(_map(path), np.uint8)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
        from packline.store.recent import MAPS

        MAPS.clear()
        return np.frombuffer(_map(path), np.uint8)


def _map(path: Path) -> pa.Buffer:
    """Python's own mmap keeps a descriptor as long as the map; Arrow's is closed at once."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def read_file(folder: Path, entry: FileEntry) -> bytes:
    """A small file of the store, whole.

    Raises:
        CorruptStore: it cannot be read, or is not what the manifest lists.
    """
    path = folder / entry.name
    stat_file(path, folder)
    with reading(path):
        data = path.read_bytes()
    check_bytes(path, entry, data)
    return data


def check_bytes(path: Path, entry: FileEntry, data: bytes | memoryview) -> None:
    """Hold the contents of a file against its entry.

    Raises:
        CorruptStore: another size or checksum.
    """
    if len(data) != entry.bytes:
        raise CorruptStore(
            f"cannot read {path}: expected {entry.bytes:,} bytes, found {len(data):,}", hint=HINT
        )
    if (found := hash_bytes(data)) != entry.checksum:
        raise CorruptStore(
            f"cannot read {path}: expected the checksum {entry.checksum}, found {found}", hint=HINT
        )
