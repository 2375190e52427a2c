"""Paths of stores: a local path, or the same for a store in an object store.

Readers of a store use `/`, `name`, `parent`, `read_bytes` and `str`, which both have, and the functions of
`store.files`. A library that needs a local file gets one from `local_file`.
`store_path` makes one of what a user gives.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packline.errors import RecipeError
from packline.storage.places import is_remote

if TYPE_CHECKING:
    from packline.storage.cache import Cache
    from packline.store.files import StoreFiles
    from packline.store.mirror import Mirror


DEFAULT_BYTES = 32 << 30
MEMORY_BYTES = 1 << 30
LEAST_BYTES = 1 << 20
"""One piece."""
CACHE, CACHE_BYTES = "PACKLINE_CACHE", "PACKLINE_CACHE_BYTES"


class RemotePath:
    """A file or folder of a store in an object store.

    Args:
        mirror: the store, as it is read here.
        inner: name in the store; empty for the store itself.
    """

    __slots__ = ("inner", "mirror")

    def __init__(self, mirror: Mirror, inner: str = "") -> None:
        self.mirror, self.inner = mirror, inner

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.mirror, f"{self.inner}/{name}" if self.inner else name)

    @property
    def name(self) -> str:
        """Last part of the name."""
        return str(self).rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """Folder that holds it; of the store, the store itself."""
        return RemotePath(self.mirror, self.inner.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        """Whole content.

        Raises:
            FileNotFoundError: there is no such file.
            CorruptStore: it differs from the manifest.
        """
        return self.mirror.read(self.inner)

    def resolve(self) -> RemotePath:
        """The same: a URI has no links."""
        return self

    def __str__(self) -> str:
        return f"{self.mirror.place}/{self.inner}" if self.inner else self.mirror.place

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[RemotePath], tuple[Mirror, str]]:
        return RemotePath, (self.mirror, self.inner)


StorePath = Path | RemotePath


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

        >>> type(CacheSettings(False).open()).__name__, CacheSettings(False, "20MB").open().most
        ('CacheMemory', 20000000)
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


def files_of(place: StorePath) -> StoreFiles:
    """Files of a store at a place."""
    from packline.store.files import LocalFiles

    return LocalFiles(place) if isinstance(place, Path) else place.mirror


def local_file(path: StorePath) -> Path:
    """Local file with the content of a path, which is brought if it is remote.

    Raises:
        CorruptStore: a remote file is missing, or differs from the manifest.
    """
    return path if isinstance(path, Path) else path.mirror.local(path.inner)


def store_path(path: str | Path | StorePath, cache: CacheSettings | None = None) -> StorePath:
    """Path of a store, local or remote. Nothing is read.

    Args:
        path: a folder, or the URI of an object store.
        cache: where to keep pieces of a remote store.

    >>> store_path("data/store").name
    'store'
    """
    if isinstance(path, RemotePath) or not is_remote(str(path)):
        if cache is not None and cache != CacheSettings():
            raise RecipeError(f"{path} is a local store: cache and cache_bytes are for remote ones")
        return path if isinstance(path, RemotePath) else Path(path)
    from packline.store.mirror import Mirror  # loads clients

    return RemotePath(Mirror(str(path).rstrip("/"), cache or CacheSettings()))


def fresh_path(path: RemotePath) -> RemotePath:
    """The same store, of which every file is brought anew and nothing is compared: for `verify`."""
    from packline.store.mirror import Mirror

    return RemotePath(Mirror(path.mirror.place, path.mirror.settings, fresh=True), path.inner)
