"""The path of a store, from what a user gives."""

from __future__ import annotations

from pathlib import Path

from packline.errors import RecipeError
from packline.storage.places import is_remote
from packline.store.paths import CacheSettings, RemotePath, StorePath


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
