"""A thread that is a few batches ahead of the trainer.

    thread    make 0  make 1  make 2 .....  make 3 ...        at most `ahead` batches wait
    caller            take 0 ....... take 1 ....... take 2

Reading fills arrays in NumPy, which lets go of the interpreter's lock, so batches are made while the
trainer computes. An error while making a batch comes out where that batch would have. The thread ends
with the iterator: at its end, when it is closed, or when nobody holds it any more.

A child that was forked while batches wait has no such thread: it makes the rest of its batches itself.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def make_ahead(make: Callable[[int], T], start: int, stop: int, *, ahead: int) -> Iterator[T]:
    """`make(start)` to `make(stop - 1)` in order, made by a thread that is up to `ahead` in front.

    Args:
        make: a pure function, called in one thread at a time.
        start: the first argument.
        stop: one past the last.
        ahead: how many results may wait; 0 makes each when it is asked for, without a thread.

    Raises:
        Exception: what `make` raised, in the place of its result.

    >>> list(make_ahead(lambda step: step * step, 1, 4, ahead=2))
    [1, 4, 9]
    """
    if ahead < 1:
        yield from map(make, range(start, stop))
        return
    owner = os.getpid()
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
    room = threading.Semaphore(ahead)
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
            room.release()
            yield result  # type: ignore[misc]  # None only beside an error
    finally:
        # In a forked child the thread is gone, perhaps while it held one of these locks.
        if os.getpid() == owner:
            done.set()
            room.release()
            thread.join()


def _make_all(
    make: Callable[[int], T],
    start: int,
    stop: int,
    made: queue.SimpleQueue[tuple[T | None, BaseException | None]],
    room: threading.Semaphore,
    done: threading.Event,
) -> None:
    """What the thread does. It holds nothing of the iterator, so that one can be collected."""
    for number in range(start, stop):
        room.acquire()
        if done.is_set():
            return
        try:
            made.put((make(number), None))
        except BaseException as error:
            # Whatever it is, the caller waits for it.
            made.put((None, error))
            return
