"""Fetching for coming steps from remote stores, before they are due.

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
import threading
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from packline.errors import PacklineError
from packline.loading.read_ahead import STEPS, PlanAhead, plan_steps
from packline.packing.gather import PlannedRows
from packline.store.fetching import Traffic

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.store.files import StoreFiles

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
    total = Traffic()
    for one in stores:
        if one.traffic is not None:
            total.add(one.traffic)
    return total


def _copies(plans: dict[int, PlannedRows]) -> int:
    return sum(len(one.shards) for one in plans.values())
