"""Passes over the provenance of many shards: their documents as ranges, and threads that read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from packline.storage.threads import map_in_threads
from packline.store.shard import Shard

T = TypeVar("T")
R = TypeVar("R")
MOST_THREADS = 8


class ShardPlaces(NamedTuple):
    """A shard, and the range of its documents among those of a pass."""

    shard: Shard
    number: int
    """Number of the shard in its store."""
    start: int
    stop: int


def in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Results of a function for each item, in order.

    Arrow and NumPy release the GIL, so threads decode at once. They end with the iterator: a process that
    forks afterwards has none.

    >>> list(in_threads(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return map_in_threads(work, items, min(cores, MOST_THREADS), "packline-filter")
