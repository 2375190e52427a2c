"""Batches made ahead of the trainer, by a thread:

    thread    make 0  make 1  make 2 .....  make 3 ...        at most `ahead` batches wait
    caller            take 0 ....... take 1 ....... take 2

Reading fills arrays in NumPy, which releases the GIL, so batches are prepared while the trainer computes. A
hand-over between threads costs a third of a batch from the page cache, so a caller who is back in less time
than it takes makes the next batch itself: ahead of it, nothing could be gained. An error while making a batch
is raised in place of that batch. The thread ends with the iterator: when it is
exhausted, closed, or no longer referenced. A child process that was forked while batches wait has no such
thread: it makes the rest of its batches itself.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

HAND_OVER = 2e-4
"""Seconds that a caller is away between results, from which a thread is worth its cost."""
FADING = 0.9
"""Part of a longer absence that still counts one result later: the thread works through short steps between
long ones, and ends up idle 80 results after the last of a second."""


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
    owner, finalizing = os.getpid(), sys.is_finalizing  # a local: at exit the module's names are gone
    wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # written in C, unlike a semaphore
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    done = threading.Event()
    thread: threading.Thread | None = None
    asked = start  # first number that the thread was not asked for
    away = 1.0  # seconds that the caller is away between results: the longest ones, fading
    try:
        for number in range(start, stop):
            # In a forked child the thread is gone, possibly while it held one of these locks.
            here = os.getpid() == owner
            result = _take(made) if number < asked and here else make(number)
            if away > HAND_OVER and here:
                if thread is None:
                    arguments = (make, wanted, made, done)
                    thread = threading.Thread(
                        target=_make_all, args=arguments, name="packline-prefetch", daemon=True
                    )
                    thread.start()
                first, asked = max(asked, number + 1), min(number + 1 + ahead, stop)
                for later in range(first, asked):
                    wanted.put(later)
            left = time.perf_counter()
            yield result
            del result  # its memory can be used for the next one
            away = max(time.perf_counter() - left, FADING * away)
    finally:
        if thread is not None and not finalizing() and os.getpid() == owner:
            done.set()
            wanted.put(None)
            thread.join()


def _take(made: queue.SimpleQueue[tuple[T | None, BaseException | None]]) -> T:
    """The next result of the thread, or its error."""
    result, error = made.get()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only beside an error


def _make_all(
    make: Callable[[int], T],
    wanted: queue.SimpleQueue[int | None],
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]],
    done: threading.Event,
) -> None:
    """Body of the thread. It holds no reference to the iterator, so that the iterator can be collected."""
    for number in iter(wanted.get, None):
        if done.is_set():
            return
        try:
            made.put((make(number), None))
        except BaseException as error:
            # Pass on any exception: the caller waits for it.
            made.put((None, error))
            return
