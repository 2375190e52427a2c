"""Stores in an object store for tests: in a real bucket, or in a folder that stands for one and has faults.

A folder is a storage as well, so readers of remote stores can be tested without a server; `Faults` changes
what arrives. Tests with a bucket run the whole path.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from packline.errors import StoreError
from packline.storage.local import LocalFolder
from packline.storage.places import open_storage
from packline.storage.results import FileFacts

PLACE = "s3://bucket/store"


class Faults(LocalFolder):
    """A folder in place of an object store.

    Args:
        path: the folder.
        change: changes what arrives: (name, start, bytes) to bytes, or raises an error.
        seconds: time of every request.
    """

    def __init__(
        self, path: Path, change: Callable[[str, int, bytes], bytes] | None = None, seconds: float = 0.0
    ) -> None:
        super().__init__(path)
        self._change, self._seconds = change, seconds
        self.requests: Counter[str] = Counter()
        self.bytes = 0
        self._lock = threading.Lock()

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._lock:
            self.requests[name] += 1
        time.sleep(self._seconds)
        data = super().read(name, start, stop)
        self.bytes += len(data)
        return data if self._change is None else self._change(name, start, data)

    def facts(self, name: str) -> FileFacts | None:
        with self._lock:
            self.requests[name] += 1
        return super().facts(name)


@contextmanager
def standing_for_bucket(storage: Faults) -> Iterator[Faults]:
    with mock.patch("packline.store.fetching.open_storage", lambda place, reached: storage):
        yield storage


class Flip:
    def __init__(self, name: str, times: int) -> None:
        self._name, self._left, self._lock = name, times, threading.Lock()

    def __call__(self, name: str, start: int, data: bytes) -> bytes:
        with self._lock:
            if not name.endswith(self._name) or not self._left:
                return data
            self._left -= 1
        changed = bytearray(data)
        changed[len(data) // 2] ^= 4
        return bytes(changed)


def upload(folder: Path, place: str) -> None:
    storage = open_storage(place)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            storage.put_new(file.relative_to(folder).as_posix(), file.read_bytes())


def lengths_of(documents: int, seed: int = 0, most: int = 4000) -> list[int]:
    return np.random.default_rng(seed).integers(1, most, documents).tolist()


def refuse(name: str) -> Callable[[str, int, bytes], bytes]:
    def change(found: str, start: int, data: bytes) -> bytes:
        if found.endswith(name):
            raise StoreError(f"no access to {found}")
        return data

    return change


def same_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
