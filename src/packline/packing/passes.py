"""Passes over the provenance of many shards: their documents as ranges, and threads that read them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from packline.store.shard import Shard

T = TypeVar("T")
R = TypeVar("R")
MOST_THREADS = 8
WAITING = 4
"""Results per thread that may wait for the caller, so that memory is bounded."""


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
    threads = min(cores, MOST_THREADS)
    if threads < 2:
        yield from map(work, items)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="packline-filter") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= threads * WAITING:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
