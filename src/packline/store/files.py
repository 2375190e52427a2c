"""Files of a store, opened safely: only regular files inside its folder, and one error type for all damage.

An opened file leaves no descriptor behind, so the number of shards is not limited by the number of files that
a process may open.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from packline.errors import CorruptStore, PacklineError, RecipeError, StoreError
from packline.fingerprint import hash_bytes
from packline.storage.places import is_remote, resolved

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from packline.storage.cache import Cache
    from packline.store.fetching import Traffic
    from packline.store.manifest import Manifest
    from packline.store.pieces import Ranges
    from packline.store.shard import Shard


SMALL = 4 << 10
"""Bytes up to which a file is read, which is faster than mapping it and uses no map."""
HINT = "packline verify shows what else is damaged"


class FileEntry(msgspec.Struct, frozen=True, gc=False):
    """A file of the store."""

    name: str
    bytes: int
    checksum: str
    """xxh3-128, 32 hexadecimal digits."""


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn every error of reading a file into `CorruptStore`."""
    try:
        yield
    except PacklineError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and (refused := _limit_reached(path, error)) is not None:
            raise refused from error
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise CorruptStore(f"cannot read {path}: {what.splitlines()[0]}", hint=HINT) from error


def _limit_reached(path: Path | str, error: OSError) -> StoreError | None:
    """Error for a limit of the system; None for any other error."""
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
    """Size and status of a regular file of a store. Opens nothing, so a pipe cannot block it.

    Args:
        root: folder that the path must not lead out of; default the file's folder. The root itself may be a
            link.
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
        kind = stat.filemode(found.st_mode)
        raise CorruptStore(f"cannot read {path}: expected a regular file, found {kind}", hint=HINT)
    return found


def map_file(path: Path) -> np.ndarray:
    """Map the bytes of a file, uint8 `[N]`, read-only; valid as long as the array or a view of it exists."""
    import numpy as np

    size = stat_file(path).st_size
    with reading(path):
        if size <= SMALL:
            return np.frombuffer(path.read_bytes(), np.uint8)
        try:
            return np.frombuffer(_map(path), np.uint8)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise

        MAPS.clear()
        return np.frombuffer(_map(path), np.uint8)


def _map(path: Path) -> pa.Buffer:
    """Map with Arrow, which closes the descriptor at once; Python's own mmap keeps it as long as the map."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return file.read_buffer()


def check_bytes(path: Path | str, entry: FileEntry, data: bytes | memoryview) -> None:
    """Check the contents of a file against its entry."""
    if problem := content_problem(entry, data):
        raise CorruptStore(f"cannot read {path}: {problem}", hint=HINT)


def content_problem(entry: FileEntry, data: bytes | memoryview) -> str:
    """Difference between the contents of a file and its entry, in words; empty if there is none."""
    if len(data) != entry.bytes:
        return f"expected {entry.bytes:,} bytes, found {len(data):,}"
    if (found := hash_bytes(data)) != entry.checksum:
        return f"expected the checksum {entry.checksum}, found {found}"
    return ""


def map_array(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], *, holds: str, of: str = "another store"
) -> np.ndarray:
    """Map a file of numbers, read-only."""
    import numpy as np

    whole = map_file(path)
    check_size(path, math.prod(shape) * dtype.itemsize, len(whole), holds=holds, of=of)
    return whole.view(dtype).reshape(shape) if len(whole) else np.empty(shape, dtype)


def check_size(path: Path | str, expected: int, found: int, *, holds: str, of: str = "another store") -> None:
    """Refuse a file of another size; see `map_array`."""
    if found != expected:
        raise CorruptStore(
            f"{path}: expected {expected:,} bytes, {holds}, found {found:,}",
            hint=f"the file was cut off or belongs to {of}",
        )


NumberRanges: TypeAlias = "np.ndarray | Ranges"
"""Numbers of a file that are read in ranges: an array, if they are all here."""


class StoreFiles:
    """Files of a store in a local folder, and the interface of those in an object store (`store.mirror`)."""

    is_local = True
    """True if the files are here: they can be linked, and read by several threads."""
    room = 0
    """Bytes of a file that may be fetched while ranges of it are read; none if it is here."""
    settings: CacheSettings | None = None
    """Settings of the cache, for other processes that open the store; None where the files are here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.place: Path | str = folder

    @property
    def folder(self) -> Path:
        """Local folder of the store; a `StoreError` if it is in an object store."""
        return self._folder

    @property
    def ranges_room(self) -> int:
        """Bytes that are kept of what `bring_ranges` brings."""
        return 0

    @property
    def traffic(self) -> Traffic | None:
        """Requests and waits of this process; None where the files are here."""
        return None

    @property
    def held(self) -> dict[int, np.ndarray]:
        """Pieces of fetched files that this process holds, by number; none where the files are here."""
        return {}

    @property
    def address(self) -> str:
        """The same for all ways to name the store: an absolute path without links, or the URI."""
        return resolved(self.place)

    def path(self, name: str) -> str:
        """Path or URI of a file, for messages."""
        return f"{self.place}/{name}"

    def learn(self, manifest: Manifest) -> None:
        """Take note of the manifest, which lists the files."""

    def of(self, manifest: Manifest) -> StoreFiles:
        """The same place with another manifest; requests and cache are shared."""
        return self

    def fresh(self) -> StoreFiles:
        """The same files as they are there, compared with nothing: for `verify`."""
        return self

    def read_unlisted(self, name: str) -> bytes:
        """Whole content of a small file that no manifest lists; a `FileNotFoundError` if there is none."""
        path = self.folder / name
        if not os.path.lexists(path):
            raise FileNotFoundError(path)
        stat_file(path)
        with reading(path):
            return path.read_bytes()

    def read(self, file: FileEntry) -> bytes:
        """Whole content of a small file, compared with its entry."""
        path = self.local(file)
        with reading(path):
            data = path.read_bytes()
        check_bytes(path, file, data)
        return data

    def map(self, file: FileEntry) -> np.ndarray:
        """Bytes of a whole file, uint8 `[N]`, read-only; valid as long as the array exists.

        Those of an object store are compared with the entry.
        """
        return map_file(self.folder / file.name)

    def local(self, file: FileEntry) -> Path:
        """A local file with its content; a cache may delete it later."""
        path = self.folder / file.name
        stat_file(path, self.folder)
        return path

    def names_in(self, folder: str) -> list[str]:
        """Names of all that is directly in a folder of the store, sorted and relative to the store."""
        inner = self.folder / folder
        names = sorted(os.listdir(inner)) if inner.is_dir() else []
        return [f"{folder}/{name}" if folder else name for name in names]

    def numbers(self, file: FileEntry, dtype: np.dtype, count: int, holds: str, *, whole: bool) -> Any:
        """Numbers of a file: an array, or, unless `whole`, what reads ranges of them (`NumberRanges`).

        Args:
            count: how many the file holds, and nothing else.
            holds: the contents that determine its size, for the error.
        """
        return map_array(self.folder / file.name, dtype, (count,), holds=holds)

    def bring(self, files: Sequence[FileEntry]) -> None:
        """Bring several files at once that are read soon; nothing where they are here."""

    def places(
        self, shards: Sequence[Shard], starts: np.ndarray, stops: np.ndarray
    ) -> tuple[list[int], list[int]] | None:
        """Places of ranges of tokens in the pieces that are fetched; None where the files are here.

        Args:
            shards: shard of each range, of this store.
            starts: first token of each range, int64 `[N]`.
            stops: one past the last token of each.

        Returns:
            Number of the piece of each range, -1 where it is in several, and its first token there.
        """
        return None

    def bring_ranges(
        self, shards: Sequence[Shard], starts: Sequence[int], stops: Sequence[int], due: float | None = None
    ) -> int:
        """Bring ranges of the tokens of shards, with what these say of their loss; nothing if they are here.

        Args:
            shards: shard of each range; those of other stores are left out.
            due: time at which they will be read, in seconds since the epoch, without waiting; None: now.

        Returns:
            Bytes of what has to be here for them.
        """
        return 0

    def will_need(self, name: str, start: int, size: int) -> None:
        """Ask for a range of a file to be read ahead, without waiting; a hint, and no more."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                try:
                    os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)


DEFAULT_BYTES = 32 << 30
MEMORY_BYTES = 1 << 30
LEAST_BYTES = 1 << 20
CACHE, CACHE_BYTES = "PACKLINE_CACHE", "PACKLINE_CACHE_BYTES"


class CacheSettings(msgspec.Struct, frozen=True):
    """Place and size of the cache of remote stores.

    Args:
        folder: a folder; None: `$PACKLINE_CACHE`, else `remote` in packline's folder of the user's cache;
            False: no folder, but the memory of this process.
        bytes: bytes of all pieces, at most, as a number or text such as "20GB"; None:
            `$PACKLINE_CACHE_BYTES`, else 32 GiB, or 1 GiB in memory.
    """

    folder: str | bool | None = None
    bytes: int | str | None = None

    @classmethod
    def of(cls, cache: str | Path | bool | None, cache_bytes: int | str | None) -> CacheSettings:
        """Settings from the arguments of `packline.open`."""
        return cls(str(cache) if isinstance(cache, Path) else cache, cache_bytes)

    def open(self) -> Cache:
        """Open the cache.

        Raises:
            RecipeError: not a number of bytes.
            StoreError: the folder cannot be written to.
        """
        from packline.quantities import parse_bytes
        from packline.storage.cache import CacheFolder, CacheMemory
        from packline.storage.local import user_cache

        given = os.environ.get(CACHE_BYTES) if self.bytes is None else self.bytes
        most = parse_bytes(given) if isinstance(given, str) else given
        if most is not None and most < LEAST_BYTES:
            raise RecipeError(f"cache_bytes is {most:,}: expected at least {LEAST_BYTES:,}")
        folder = self.folder
        if folder is None or folder is True:
            try:
                folder = os.environ.get(CACHE) or str(user_cache() / "remote")
            except RuntimeError:
                folder = False
        if isinstance(folder, bool):
            return CacheMemory(MEMORY_BYTES if most is None else most)
        return CacheFolder(Path(folder).absolute(), DEFAULT_BYTES if most is None else most)


def store_files(place: str | Path | StoreFiles, cache: CacheSettings | None = None) -> StoreFiles:
    """Files of a store, local or remote. Nothing is read."""
    if not isinstance(place, str | Path):
        return place
    if is_remote(str(place)):
        from packline.store.mirror import Mirror  # loads clients

        return Mirror(str(place).rstrip("/"), cache or CacheSettings())
    if cache is not None and cache != CacheSettings():
        raise RecipeError(f"{place} is a local store: cache and cache_bytes are for remote ones")
    return StoreFiles(Path(place))


class Recent:
    """The most recently opened data, the earliest first; attributes of owners, beyond `most` closed again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._opened: deque[tuple[weakref.ref[Any], tuple[str, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, owner: object, names: Iterable[str]) -> None:
        self._opened.append((weakref.ref(owner), tuple(names)))
        self._close(self.most)

    def clear(self) -> None:
        self._close(0)

    def _close(self, most: int) -> None:
        while len(self._opened) > most:
            with suppress(IndexError):  # another thread was faster
                owner, names = self._opened.popleft()
                for name in names if owner() is not None else ():
                    vars(owner()).pop(name, None)


class _Opened:
    """Descriptor for an attribute that is opened on first access, and then is an ordinary attribute.

    It has no `__set__`, so the owner's own `__dict__` takes precedence, at no cost.

    Args:
        open_it: returns attributes of the owner by name, including this one.
        recent: closes them again.
    """

    def __init__(self, open_it: Callable[[Any], dict[str, Any]], recent: Recent) -> None:
        self._open, self._recent, self._name = open_it, recent, ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        found = self._open(owner)
        owner.__dict__.update(found)
        self._recent.add(owner, found)
        return found[self._name]


opened: Any = _Opened
"""The same; its type is that of the attribute."""


MAPS = Recent(1 << 14)
"""Maps of files. Linux allows a process 65,530, and a loader's process may hold others."""
TABLES = Recent(64)
"""Tables of provenance, a few megabytes each."""
