"""Batches made ahead of the trainer, by a thread:

    thread    make 0  make 1  make 2 .....  make 3 ...        at most `ahead` batches wait
    caller            take 0 ....... take 1 ....... take 2

Reading fills arrays in NumPy, which releases the GIL, so batches are prepared while the trainer computes. A
hand-over between threads costs a third of a batch from the page cache, so a caller who is back in less time
than it takes makes the next batch itself: ahead of it, nothing could be gained. An error while making a batch
is raised in place of that batch. The thread ends with the iterator: when it is
exhausted, closed, or no longer referenced. A child process that was forked while batches wait has no such
thread: it makes the rest of its batches itself.

Reading ahead of a block shuffle: the system reads the blocks of the next window while this one is used.

    batches    window 0 ........ | window 1 ........ |
    reading    blocks 0 to 7     8 9 10 11 ...            block by block, a window ahead

Within a window rows come at random, so their pages would be read one by one, in no order. Instead every
block is announced to the system (`posix_fadvise`, WILLNEED) one window before its rows: it reads the range
of a block at once, into the page cache. Measured on a disk of 1.2 GB/s: twice the rate. Nothing is announced
for random access to batches, and on systems without the call.

Plans of the coming steps of local stores, made for many steps at once.

    step       40            41 ............... 56            57 ......
    planned    itself        all of them at once              ...

To look up documents and copies costs as much as to copy, and nearly as much for one batch as for sixteen. The
rows of a step are a formula, so the steps after the current one are planned with it, and those of a mixture
joined to one plan per step: a batch of ten sources then costs what a batch of one does. A worker process of a
data loader reads every n-th step, and plans those. Nothing is planned ahead for a single step, nor for rows
that are not those of a finished store; remote stores have plans of their own (`fetch_ahead`).
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from packline.errors import PacklineError
from packline.loading.order import Order
from packline.loading.schedule import parts_of
from packline.packing.batch import BatchPart, RowSource
from packline.packing.gather import PlannedRows
from packline.packing.rows import Rows

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


class ReadAhead:
    """Blocks that are announced, per order of a source."""

    def __init__(self) -> None:
        self._reached: WeakKeyDictionary[Order, int] = WeakKeyDictionary()

    def announce(self, rows: RowSource, order: Order, start: int, stop: int, end: int) -> None:
        """Announce the blocks of a window ahead.

        Args:
            rows: rows of the source.
            order: their order.
            start: first draw of a batch.
            stop: one past its last draw.
            end: one past the last draw that will come.
        """
        will_need = getattr(rows, "will_need", None)
        if order.order.kind != "blocks" or will_need is None or start >= stop:
            return
        window = order.order.window_rows
        epoch, place = divmod(end - 1, order.rows)
        last_of_all = epoch * order.rows + min(place // window * window + window, order.rows) - 1
        last = order.block_number(min(stop - 1 + window, last_of_all))
        place = start % order.rows
        first = order.block_number(start - place + place // window * window)
        reached = self._reached.get(order, -1)
        # After a jump, begin with the window that the draws are in.
        begin = reached if first <= reached <= last + 1 else first
        for number in range(begin, last + 1):
            will_need(*order.block(number))
        self._reached[order] = last + 1

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[()]]:
        return ReadAhead, ()


if TYPE_CHECKING:
    from packline.loading.schedule import ScheduledStage
    from packline.packing.batch import RowSource

    PlaceOf = Callable[[int], tuple[ScheduledStage, int, int]]

STEPS = 16
"""Most steps that are planned at once."""
TOKENS = 1 << 21
"""Tokens of these steps, at most: their plans take a few megabytes, even of documents of fifty tokens."""
JUMP = 64
"""Steps from one to the next of a worker, at most; beyond, the first step is planned alone."""


class PlanAhead:
    """Plans of coming steps."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._plans: dict[int, list[BatchPart]] = {}

    def parts(self, place_of: PlaceOf, step: int) -> list[BatchPart]:
        """Rows of a step, planned where the steps before it were read in order.

        Args:
            place_of: returns the stage of a step, and the range of its rows in that stage.

        Raises:
            CorruptStore: a store is damaged there.
        """
        found = self._plans.pop(step, None)
        stride, self._last = step - (step if self._last is None else self._last), step
        if found is not None:
            return found
        self._plans = {}
        stage, start, stop = place_of(step)
        count = min(STEPS, TOKENS // ((stop - start) * stage.mixture.seq_len))
        if 0 < stride <= JUMP and count > 1 and _are_alike(stage.mixture.rows):
            end = min(stage.first_step + stage.steps, step + count * stride)
            try:
                plans = _plan(place_of, range(step, end, stride))
            except PacklineError:
                pass  # raised again, with its place, by the step that it belongs to
            else:
                found, self._plans = plans.pop(step), plans
                return found
        return parts_of(stage, start, stop)

    def __reduce__(self) -> tuple[type[PlanAhead], tuple[()]]:
        return PlanAhead, ()


def _are_alike(sources: Sequence[RowSource]) -> bool:
    """True for rows of finished stores that one plan may join."""
    settings = {
        (rows.pad_id, rows.boundary_loss, rows.store.dtype) if isinstance(rows, Rows) else None
        for rows in sources
    }
    return len(settings) == 1 and None not in settings


def _plan(place_of: PlaceOf, steps: range) -> dict[int, list[BatchPart]]:
    """Plan steps of one stage together."""
    ranges = [place_of(step) for step in steps]
    stage, size = ranges[0][0], ranges[0][2] - ranges[0][1]
    runs: list[list[int]] = []  # ranges that follow one another are looked up at once
    for _, start, stop in ranges:
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    by_source: dict[int, list[BatchPart]] = {}
    first = 0
    for start, stop in runs:
        for part in parts_of(stage, start, stop):
            places = np.arange(stop - start) if part.places is None else part.places
            by_source.setdefault(id(part.source), []).append(part._replace(places=places + first))
        first += stop - start
    numbers, planned, places_of = np.empty(first, np.int64), [], []
    for parts in by_source.values():
        source = parts[0].source
        assert isinstance(source, Rows)
        rows = np.concatenate([part.rows for part in parts])
        places_of.append(np.concatenate([part.places for part in parts if part.places is not None]))
        numbers[places_of[-1]] = rows
        planned.append(source.plan(rows))
    joined = planned[0] if len(planned) == 1 else PlannedRows.join(planned, places_of)
    source = stage.mixture.rows[0]  # of rows that are planned, only the number is used
    bounds = range(0, first + 1, size)
    return {
        step: [BatchPart(source, numbers[begin : begin + size], None, one)]
        for step, begin, one in zip(steps, bounds, joined.parts(bounds), strict=False)
    }
