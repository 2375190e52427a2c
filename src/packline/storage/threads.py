"""Mapping in threads, in order and with bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
WAITING = 4
"""Results per thread that may wait for the caller, so that memory is bounded."""


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
