"""Share a file's bytes with another place (hard link, else reflink, else copy), and sync many files.

A shared file may be the same file (hard link), so neither name may be opened for writing afterwards; files of
stores never are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from packline.errors import PacklineError
from packline.storage.local import MANY, disk_errors, sync_file, sync_file_system, sync_folder

Link = Literal["auto", "hard", "reflink", "copy"]
"""Way to share bytes: `auto` tries a hard link, then a reflink, then a copy."""

FICLONE = 0x40049409
COPY_BYTES = 8 << 20
_CANNOT = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EMLINK}
"""Errors for a link that the file system does not support between two places."""


def share_file(path: Path, target: Path, link: Link = "auto") -> str:
    """Give the bytes of a file a second place.

    Args:
        path: the file; a symbolic link is followed.
        target: new file, in an existing folder.
        link: how to share.

    Returns:
        `linked`, `reflinked` or `copied`.

    Raises:
        FileExistsError: something is at `target`.
        PacklineError: the file cannot be shared in the requested way.
        OSError: the file cannot be read, or the target not be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a").write_bytes(b"one")
    >>> share_file(folder / "a", folder / "b"), (folder / "b").read_bytes()
    ('linked', b'one')
    """
    source = path.resolve()
    if link in ("auto", "hard"):
        try:
            os.link(source, target)
            return "linked"
        except OSError as error:
            _refuse_if(link == "hard", "hard links", path, target, error)
    if link in ("auto", "reflink"):
        try:
            _reflink(source, target)
            return "reflinked"
        except FileExistsError:
            raise
        except OSError as error:
            target.unlink(missing_ok=True)
            _refuse_if(link == "reflink", "reflinks", path, target, error)
    copy_file(source, target)
    return "copied"


def _refuse_if(requested: bool, what: str, path: Path, target: Path, error: OSError) -> None:
    if error.errno not in _CANNOT:
        raise error
    if requested:
        raise PacklineError(
            f"cannot share {path} with {target.parent}: no {what} there: {error.strerror}",
            hint="--link auto copies where it must",
        ) from error


def _reflink(source: Path, target: Path) -> None:
    """Let a file share another file's blocks until either is changed."""
    import fcntl
    import sys

    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "no reflinks here")
    with open(source, "rb") as reading, open(target, "xb") as writing:
        fcntl.ioctl(writing.fileno(), FICLONE, reading.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copy inside the kernel, or through this process where the kernel cannot."""
    with open(source, "rb", buffering=0) as reading, open(target, "xb", buffering=0) as writing:
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


def sync_files(folder: Path, names: Sequence[str]) -> None:
    """Wait until the files of a folder and their names are on the disk."""
    folders = {folder / Path(name).parent for name in names} | {folder}
    with disk_errors(folder):
        if len(names) <= MANY or not sync_file_system(folder):
            for name in names:
                sync_file(folder / name)
        for each in sorted(folders):
            sync_folder(each)
