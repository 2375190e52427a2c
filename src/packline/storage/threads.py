"""Mapping in threads, in order and with bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
WAITING = 4
"""Results per thread that may wait for the caller, so that memory is bounded."""
MOST_THREADS = 8
"""Threads of `in_threads`: more of them mostly wait for each other."""


def process_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[T], U], values: Iterable[T]) -> Iterator[U]:
    """Results of `map_in_threads` with a thread per core, for work in Arrow and NumPy: they release the GIL.

    >>> list(in_threads(lambda number: number * number, range(4)))
    [0, 1, 4, 9]
    """
    return map_in_threads(function, values, min(process_cores(), MOST_THREADS), "packline-pass")


def map_in_threads(function: Callable[[T], U], values: Iterable[T], threads: int, name: str) -> Iterator[U]:
    """Results of a function in the order of its arguments, computed by threads; in turn for one thread.

    The threads end with the iterator: a process that forks afterwards has none.

    Args:
        name: beginning of the names of the threads.

    >>> list(map_in_threads(str.upper, "abc", 2, "example"))
    ['A', 'B', 'C']
    """
    if threads <= 1:
        yield from map(function, values)
        return
    waiting: deque[Future[U]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        try:
            for value in values:
                waiting.append(pool.submit(function, value))
                if len(waiting) >= WAITING * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()
