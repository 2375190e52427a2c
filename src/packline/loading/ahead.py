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

Fetching for coming steps from remote stores, before they are due:

    step            40      41      42 ... 103     104
    main            reads 40
    fetched ahead           └── pieces of 41 to 103 ──┘     each due at now + steps to go x time of a step

The rows of a step are a formula, so the pieces of the coming steps are known. They are requested in the order
in which they are due. The window covers ten times the latency of a request, and at least 64 steps, as far as
half of the cache has room. The plans of the next steps are kept for the reader. A thread makes them while
something has to be fetched; once a plan finds all of its pieces in the cache, the reader makes the next one:
two threads would compete for the interpreter and for the caches of the processor. A worker process of a data
loader makes every n-th step, and fetches for those alone.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from packline.errors import PacklineError
from packline.loading.schedule import parts_of
from packline.packing.batch import BatchPart, PlannedRows, plan_rows

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.schedule import ScheduledStage
    from packline.store.fetching import Traffic
    from packline.store.files import StoreFiles


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


LOG = logging.getLogger("packline.loading")

LEAST_STEPS = 64
LATENCIES = 10
KEPT_COPIES = 1 << 17
"""Copies of all plans that are kept, at most: 40 MB."""
REPORT_SECONDS = 60.0
STALLED = 0.1
"""Share of the time that reading may wait for bytes before it is reported."""
SHARE = 2
"""A window has room in this part of the cache."""


def window_steps(latency: float, step_seconds: float, step_bytes: float, cache_bytes: int) -> int:
    """Steps to fetch ahead, from seconds of a request and of a step, and bytes of a step and of the cache.

    >>> window_steps(0.3, 0.01, 1 << 20, 1 << 40), window_steps(0.3, 1, 1 << 20, 8 << 20)
    (300, 4)
    """
    wanted = max(LEAST_STEPS, round(LATENCIES * latency / max(step_seconds, 1e-4)))
    room = int(cache_bytes / SHARE / max(step_bytes, 1.0))
    return max(min(wanted, room), 0)


class FetchAhead(PlanAhead):
    """The same for remote stores, whose pieces are requested before they are due."""

    def __init__(self, stores: Sequence[StoreFiles]) -> None:
        super().__init__()
        self._stores = stores
        self._process = 0
        self._thread: threading.Thread | None = None
        self._stride, self._at, self._seconds = 1, 0.0, 0.0
        """Steps from one to the next, time of the last one, and seconds that one takes: a running mean."""
        self._planned = 0
        """First step that nothing was requested for."""
        self._bytes = 0.0
        """Bytes of the pieces of a step: a running mean."""
        self._calm = False
        """True if the last plan found everything in the cache."""
        self._looked: tuple[float, float] | None = None
        """Time of the last look at the waits, and their seconds until then."""

    def plan(self, loader: Loader, step: int) -> PlannedRows:
        now, process, stride = time.monotonic(), os.getpid(), self._stride_to(step)
        if stride and process == self._process:
            self._stride = stride
            self._seconds += (now - self._at - self._seconds) * (0.1 if self._seconds else 1.0)
        else:  # a forked process has requested nothing
            self._planned, self._plans, self._calm, self._process = step + 1, {}, False, process
        self._at = now
        self._report_waits(now)
        self._look_ahead(loader, step)
        return self._taken(loader, step)

    def _look_ahead(self, loader: Loader, step: int) -> None:
        """Plan the coming steps once enough of them are missing in the window, or all."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._planned = max(self._planned, step + self._stride)
        chunk = min(STEPS, self._window() // 2) * self._stride  # their indexes are brought at once
        short = self._planned + chunk > self._end(loader, step)
        if short and self._planned > step + self._stride:
            return
        if self._calm:
            self._plan(loader, step)
            return
        self._thread = threading.Thread(
            target=self._plan, args=(loader, step), name="packline-fetch-ahead", daemon=True
        )
        self._thread.start()

    def _end(self, loader: Loader, step: int) -> int:
        return int(min(step + 1 + self._window() * self._stride, len(loader)))

    def _window(self) -> int:
        if not self._bytes:
            return STEPS
        most = min(one.ranges_room for one in self._stores)
        return window_steps(total_traffic(self._stores).latency, self._seconds, self._bytes, most)

    def _plan(self, loader: Loader, step: int) -> None:
        """Request what the window lacks; body of the thread, which is left out while nothing is requested."""
        before, self._calm = total_traffic(self._stores).requests, False
        try:
            while (first := self._planned) < (end := self._end(loader, step)):
                stage = loader.place_of(first)[0]
                end = min(end, first + STEPS * self._stride, stage.first_step + stage.steps)
                plans = plan_steps(loader, steps := range(first, end, self._stride))
                size = self._expect(plans, time.time() + (first - step) / self._stride * self._seconds)
                self._bytes += (size / len(steps) - self._bytes) * (0.3 if self._bytes else 1.0)
                self._planned = steps[-1] + self._stride
                self._keep(plans, step)
            self._calm = total_traffic(self._stores).requests == before
        except PacklineError:
            pass  # raised again, with its place, by the step that needs it

    def _expect(self, plans: dict[int, PlannedRows], due: float) -> int:
        """Request what steps read; return its bytes."""
        stores = dict.fromkeys(store.files for plan in plans.values() for store in plan.stores)
        shards, starts, stops = (
            list(chain.from_iterable(getattr(plan, name) for plan in plans.values()))
            for name in ("shards", "starts", "stops")
        )
        return sum(files.bring_ranges(shards, starts, stops, due) for files in stores)

    def _keep(self, plans: dict[int, PlannedRows], step: int) -> None:
        """Keep the plans of coming steps for the reader, those of the steps that it has passed no longer."""
        kept = {coming: plan for coming, plan in list(self._plans.items()) if coming >= step}
        if _copies(kept) + _copies(plans) <= KEPT_COPIES:
            kept |= plans
        self._plans = kept

    def _report_waits(self, now: float) -> None:
        """Log a warning if a notable part of the last minute was spent waiting for bytes."""
        since, before = self._looked or (now, 0.0)
        if self._looked is not None and now - since < REPORT_SECONDS:
            return
        traffic = total_traffic(self._stores)
        self._looked = now, traffic.stall_seconds
        waited = traffic.stall_seconds - before
        if now > since and waited > STALLED * (now - since):
            LOG.warning(
                "reading waited for bytes of %s in %.0f of %.0f seconds: %s stalls so far, %.2f seconds a "
                'request; a larger cache_bytes= or order="blocks" needs fewer requests',
                " and ".join(str(one.place) for one in self._stores),
                min(waited, now - since),
                now - since,
                f"{traffic.stalls:,}",
                traffic.latency,
            )


def total_traffic(stores: Iterable[StoreFiles]) -> Traffic:
    from packline.store.fetching import Traffic

    total = Traffic()
    for one in stores:
        if one.traffic is not None:
            total.add(one.traffic)
    return total


def _copies(plans: dict[int, PlannedRows]) -> int:
    return sum(len(one.shards) for one in plans.values())
