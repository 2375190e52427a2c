"""Settings of the cache of remote stores: its place and its size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packline.errors import RecipeError

if TYPE_CHECKING:
    from packline.storage.cache import Cache


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
