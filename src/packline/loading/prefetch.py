"""Batches made ahead of the trainer, by a thread:

    thread    make 0  make 1  make 2 .....  make 3 ...        at most `ahead` batches wait
    caller            take 0 ....... take 1 ....... take 2

Reading fills arrays in NumPy, which releases the GIL, so batches are prepared while the trainer computes. An
error while making a batch is raised in place of that batch. The thread ends with the iterator: when it is
exhausted, closed, or no longer referenced. A child process that was forked while batches wait has no such
thread: it makes the rest of its batches itself.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def make_ahead(make: Callable[[int], T], start: int, stop: int, *, ahead: int) -> Iterator[T]:
    """Yield `make(start)` to `make(stop - 1)` in order, made by a thread that is up to `ahead` in front.

    Args:
        make: a pure function, called in one thread at a time.
        start: first argument.
        stop: one past the last argument.
        ahead: number of results that may wait; 0 makes each when it is requested, without a thread.

    Raises:
        Exception: any error of `make`, in place of its result.

    >>> list(make_ahead(lambda step: step * step, 1, 4, ahead=2))
    [1, 4, 9]
    """
    if ahead < 1:
        yield from map(make, range(start, stop))
        return
    owner = os.getpid()
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    room: queue.SimpleQueue[None] = queue.SimpleQueue()  # written in C, unlike a semaphore
    for _ in range(ahead):
        room.put(None)
    done = threading.Event()
    thread = threading.Thread(
        target=_make_all, args=(make, start, stop, made, room, done), name="packline-prefetch", daemon=True
    )
    thread.start()
    try:
        for number in range(start, stop):
            if os.getpid() != owner:
                yield make(number)
                continue
            result, error = made.get()
            if error is not None:
                raise error
            room.put(None)
            yield result  # type: ignore[misc]  # None only beside an error
    finally:
        # In a forked child the thread is gone, possibly while it held one of these locks.
        if os.getpid() == owner:
            done.set()
            room.put(None)
            thread.join()


def _make_all(
    make: Callable[[int], T],
    start: int,
    stop: int,
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]],
    room: queue.SimpleQueue[None],
    done: threading.Event,
) -> None:
    """Body of the thread. It holds no reference to the iterator, so that the iterator can be collected."""
    for number in range(start, stop):
        room.get()
        if done.is_set():
            return
        try:
            made.put((make(number), None))
        except BaseException as error:
            # Pass on any exception: the caller waits for it.
            made.put((None, error))
            return
