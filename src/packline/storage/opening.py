"""The storage of a place: a local folder, a folder of an object store, or of a repository on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from packline.storage.places import HUB, is_remote
from packline.storage.protocol import Storage


def open_storage(place: str | os.PathLike[str]) -> Storage:
    """Storage of a place; nothing is read or written yet.

    Raises:
        StoreError: the URI is not one of an object store, or a package is missing.

    >>> open_storage("data/store").place
    'data/store'
    """
    start = os.fspath(place)
    if start.startswith(HUB):
        from packline.storage.hub_folder import HubFolder  # the modules load libraries

        return HubFolder(start)
    if is_remote(start):
        from packline.storage.objects import ObjectFolder

        return ObjectFolder(start)
    from packline.storage.local import LocalFolder

    return LocalFolder(Path(start))
