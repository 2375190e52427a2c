"""Batches made ahead of the trainer, by a thread:

    thread    make 0  make 1  make 2 .....  make 3 ...        at most `ahead` batches wait
    caller            take 0 ....... take 1 ....... take 2

A hand-over between threads costs a third of a batch from the page cache, so a caller who is back in less time
than it takes makes the next batch itself. The thread ends with the iterator. A child process that was forked
while batches wait has no such thread: it makes the rest of its batches itself.

Plans of the coming steps, made for many steps at once:

    step       40            41 ............... 56            57 ......
    planned    itself        all of them at once              ...

To look up documents and copies costs as much as to copy, and nearly as much for one batch as for sixteen. A
worker process of a data loader reads every n-th step, and plans those.

Reading ahead of a block shuffle: the system reads the blocks of the next window while this one is used.

    batches    window 0 ........ | window 1 ........ |
    reading    blocks 0 to 7     8 9 10 11 ...            block by block, a window ahead

Within a window rows come at random, so their pages would be read one by one, in no order. Instead every block
is announced to the system (`posix_fadvise`, WILLNEED) one window before its rows: twice the rate, measured on
a disk of 1.2 GB/s.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from packline.errors import PacklineError
from packline.loading.schedule import parts_of
from packline.packing.batch import BatchPart, plan_rows
from packline.packing.gather import PlannedRows

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.schedule import ScheduledStage

T = TypeVar("T")

HAND_OVER = 2e-4
"""Seconds that a caller is away between results, from which a thread is worth its cost."""
FADING = 0.9
"""Part of a longer absence that still counts one result later: the thread works through short steps between
long ones, and ends up idle 80 results after the last of a second."""


def make_ahead(make: Callable[[int], T], start: int, stop: int, *, ahead: int) -> Iterator[T]:
    """Yield `make(start)` to `make(stop - 1)` in order, made by a thread that is up to `ahead` in front.

    `make` is a pure function, called in one thread at a time; its error comes in place of its result.

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


STEPS = 16
"""Most steps that are planned at once."""
TOKENS = 1 << 21
"""Tokens of these steps, at most: their plans take a few megabytes, even of documents of fifty tokens."""
JUMP = 64
"""Steps from one to the next of a worker, at most; beyond, the first step is planned alone."""


class PlanAhead:
    """Rows of the steps of a loader, planned where the steps before them were read in order."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._plans: dict[int, PlannedRows] = {}

    def plan(self, loader: Loader, step: int) -> PlannedRows:
        stride = self._stride_to(step)
        if stride and step not in self._plans:
            stage, start, stop = loader.place_of(step)
            count = min(STEPS, TOKENS // ((stop - start) * stage.mixture.seq_len))
            end = min(stage.first_step + stage.steps, step + count * stride)
            try:
                self._plans = plan_steps(loader, range(step, end, stride))
            except PacklineError:
                self._plans = {}  # raised again, with its place, by the step that it belongs to
        return self._taken(loader, step)

    def _stride_to(self, step: int) -> int:
        """Steps since the last one that was read; 0 at the beginning and after a jump."""
        stride = 0 if self._last is None else step - self._last
        self._last = step
        return stride if 0 < stride <= JUMP else 0

    def _taken(self, loader: Loader, step: int) -> PlannedRows:
        found = self._plans.pop(step, None)
        return plan_rows(parts_of(*loader.place_of(step))) if found is None else found


def plan_steps(loader: Loader, steps: range) -> dict[int, PlannedRows]:
    """Plan steps of one stage together; none of rows that are not those of a finished store."""
    ranges = [loader.place_of(step) for step in steps]
    if not ranges or any(rows.settled is not None for rows in ranges[0][0].mixture.rows):
        return {}
    stage, size = ranges[0][0], ranges[0][2] - ranges[0][1]
    runs: list[list[int]] = []  # ranges that follow one another are looked up at once
    for _, start, stop in ranges:
        if runs and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop])
    by_source: dict[int, list[BatchPart]] = {}
    count = 0
    for start, stop in runs:
        for part in parts_of(stage, start, stop):
            places = np.arange(stop - start) if part.places is None else part.places
            by_source.setdefault(id(part.source), []).append(part._replace(places=places + count))
        count += stop - start
    parts = []
    for found in by_source.values():
        rows, at = (np.concatenate(column) for column in list(zip(*found, strict=True))[1:])
        parts.append(BatchPart(found[0].source, rows, None if len(by_source) == 1 else at))
    return dict(zip(steps, plan_rows(parts).parts(range(0, count + 1, size)), strict=True))


class ReadAhead(PlanAhead):
    """The same for blocks of rows, which are announced to the system a window ahead."""

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[str, int] = {}
        """First block of each source that is not announced."""

    def plan(self, loader: Loader, step: int) -> PlannedRows:
        self.announce(*loader.place_of(step))
        return super().plan(loader, step)

    def announce(self, stage: ScheduledStage, start: int, stop: int) -> None:
        """Announce the blocks of a window ahead of rows `start` to `stop` of a stage."""
        ends = (start, stop, stage.steps * stage.batch_size)
        for source, rows in enumerate(stage.mixture.rows):
            draw, after, end = (stage.draws(source, row) for row in ends)
            if draw == after:
                continue
            order = stage.orders[source]
            window = order.order.window_rows
            epoch, place = divmod(end - 1, order.rows)
            last_of_all = epoch * order.rows + min(place // window * window + window, order.rows) - 1
            last = order.block_number(min(after - 1 + window, last_of_all))
            place = draw % order.rows
            first = order.block_number(draw - place + place // window * window)
            reached = self._reached.get(rows.fingerprint, -1)
            # After a jump, begin with the window that the draws are in.
            for number in range(reached if first <= reached <= last + 1 else first, last + 1):
                rows.will_need(*order.block(number))
            self._reached[rows.fingerprint] = last + 1
