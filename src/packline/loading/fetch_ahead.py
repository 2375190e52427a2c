"""Fetching for coming steps from remote stores, before they are due.

    step            40      41      42 ... 103     104
    main            reads 40
    fetched ahead           └── pieces of 41 to 103 ──┘     each due at now + steps to go x time of a step

The rows of a step are a formula, so the pieces of the coming steps are known. They are requested in the order
in which they are due, and the cache evicts pieces without a known use first, then the ones that are due last.
The window covers ten times the latency of a request, and at least 64 steps, as far as half of the cache has
room. The state of a loader does not change: what is fetched ahead is only found in the cache.

Spans and copies are computed once, for several steps together: the plans of the next steps are kept for the
reader, which takes them instead of computing its own. A thread makes them while something has to be fetched.
Once a plan finds all of its pieces in the cache, the reader makes the next one: two threads would compete
for the interpreter and for the caches of the processor.

A worker process of a data loader makes every n-th step, and fetches for those alone. Nothing is fetched ahead
for single batches out of order, and nothing for local stores.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import PacklineError
from packline.packing.batch import BatchPart
from packline.ragged import offsets_of

if TYPE_CHECKING:
    from packline.loading.schedule import ScheduledStage
    from packline.store.fetching import Traffic
    from packline.store.mirror import Mirror

LOG = logging.getLogger("packline.loading")

LEAST_STEPS = 64
LATENCIES = 10
"""Latencies of a request that a window lasts."""
CHUNK = 16
"""Steps that are planned together, so that their indexes are brought at once; at most half of the window."""
KEPT_COPIES = 1 << 17
"""Copies of all plans that are kept, at most: 40 MB."""
JUMP = 64
"""Steps from one to the next of a worker, at most; what goes further begins anew."""
REPORT_SECONDS = 60.0
"""Seconds from one look at the waits to the next."""
STALLED = 0.1
"""Share of the time that reading may wait for bytes before it is reported."""
SHARE = 2
"""A window has room in this part of the cache."""


def window_steps(latency: float, step_seconds: float, step_bytes: float, cache_bytes: int) -> int:
    """Steps to fetch ahead.

    Args:
        latency: seconds of a request.
        step_seconds: seconds from one step to the next.
        step_bytes: bytes of the pieces of a step.
        cache_bytes: size of the cache.

    >>> window_steps(0.3, 0.01, 1 << 20, 1 << 40), window_steps(0.3, 1, 1 << 20, 8 << 20)
    (300, 4)
    """
    wanted = max(LEAST_STEPS, round(LATENCIES * latency / max(step_seconds, 1e-4)))
    room = int(cache_bytes / SHARE / max(step_bytes, 1.0))
    return max(min(wanted, room), 0)


class FetchAhead:
    """Pieces that are fetched for a loader."""

    def __init__(self) -> None:
        self._mirrors: list[Mirror] | None = None
        self._process = 0
        self._restart()

    def _restart(self) -> None:
        self._thread: threading.Thread | None = None
        self._last: int | None = None
        self._at = 0.0
        self._stride = 1
        self._seconds = 0.0
        self._planned = -1
        """First step that nothing was requested for."""
        self._bytes = 0.0
        """Bytes of the pieces of a step: a running mean."""
        self._plans: dict[int, list[BatchPart]] = {}
        """Rows of coming steps, with their plans."""
        self._copies = 0
        """Copies of these plans."""
        self._calm = False
        """True if the last plan found everything in the cache."""
        self._looked: tuple[float, float] | None = None
        """Time of the last look at the waits, and their seconds until then."""

    def mirrors(self, stages: Iterable[ScheduledStage]) -> list[Mirror]:
        """The remote stores of a run, each once."""
        if self._mirrors is None:
            found = {}
            for stage in stages:
                for rows in stage.mixture.rows:
                    if (mirror := getattr(rows.store, "mirror", None)) is not None:
                        found[id(mirror)] = mirror
            self._mirrors = list(found.values())
        return self._mirrors

    def announce(self, loader: Any, step: int) -> bool:
        """Note that a step is read now, and fetch for the steps after it; False where no store is remote."""
        if not self.mirrors(loader.schedule.stages):
            return False
        if self._process != os.getpid():
            self._process = os.getpid()
            self._restart()
        now = time.monotonic()
        if self._last is None or not 0 < step - self._last <= JUMP:  # the beginning, or a jump
            self._planned = step + 1
            self._plans, self._copies = {}, 0
        else:
            self._stride = step - self._last
            seconds = now - self._at
            self._seconds += (seconds - self._seconds) * (0.1 if self._seconds else 1.0)
        self._last, self._at = step, now
        self._report_waits(loader, now)
        if self._thread is not None and self._thread.is_alive():
            return True
        self._planned = max(self._planned, step + self._stride)
        chunk = min(CHUNK, self._window(loader) // 2) * self._stride
        short = self._planned + chunk > self._end(loader, step)
        if short and self._planned > step + self._stride:  # wait until a chunk is missing, or all
            return True
        if self._calm:
            self._plan(loader, step)
            return True
        self._thread = threading.Thread(
            target=self._plan, args=(loader, step), name="packline-fetch-ahead", daemon=True
        )
        self._thread.start()
        return True

    def _end(self, loader: Any, step: int) -> int:
        """One past the last step of the window."""
        return int(min(step + 1 + self._window(loader) * self._stride, len(loader)))

    def _window(self, loader: Any) -> int:
        """Number of steps to fetch ahead."""
        if not self._bytes:
            return CHUNK
        mirrors = self.mirrors(loader.schedule.stages)
        latency = max(one.traffic.latency for one in mirrors)
        most = min(one.pieces.room for one in mirrors)
        return window_steps(latency, self._seconds, self._bytes, most)

    def take(self, step: int) -> list[BatchPart] | None:
        """Rows of a step with their plans; None if they are not kept."""
        found = self._plans.pop(step, None)
        if found is not None:
            self._copies -= _copies(found)
        return found

    def _plan(self, loader: Any, step: int) -> None:
        """Request what the window lacks; body of the thread, which is left out while nothing is requested."""
        mirrors, before, self._calm = self.mirrors(loader.schedule.stages), self._requests(loader), False
        try:
            while (first := self._planned) < (end := self._end(loader, step)):
                steps = range(first, min(end, first + CHUNK * self._stride), self._stride)
                due = time.time() + (first - step) / self._stride * self._seconds
                size = 0
                for mirror, pieces in self._plan_steps(loader, steps):
                    size += mirror.pieces.bytes_of(pieces)
                    mirror.pieces.expect(pieces, due)
                self._bytes += (size / len(steps) - self._bytes) * (0.3 if self._bytes else 1.0)
                self._planned = steps[-1] + self._stride
            self._calm = self._requests(loader) == before and not any(one.pieces.waiting() for one in mirrors)
        except PacklineError:
            pass  # raised again, with its place, by the step that needs it

    def _requests(self, loader: Any) -> int:
        return sum(one.traffic.requests for one in self.mirrors(loader.schedule.stages))

    def _plan_steps(self, loader: Any, steps: range) -> list[tuple[Mirror, set[int]]]:
        """Plan steps together; pieces that they read, by store."""
        from packline.loading.schedule import parts_of
        from packline.packing.gather import PlannedRows
        from packline.packing.rows import Rows

        plans = {step: parts_of(*loader.place_of(step)) for step in steps}
        uses: dict[int, list[tuple[int, int, BatchPart]]] = {}
        for step, parts in plans.items():
            for number, part in enumerate(parts):
                uses.setdefault(id(part.source), []).append((step, number, part))
        pieces: list[tuple[Mirror, set[int]]] = []
        for parts_of_source in uses.values():
            source = parts_of_source[0][2].source
            rows = np.concatenate([part.rows for _, _, part in parts_of_source])
            if isinstance(source, Rows):
                planned = source.plan(rows)
            else:
                spans = source.spans(rows)
                planned = PlannedRows.of(source.store, spans, source.seq_len, pad_id=0, boundary_loss=False)
            if source.store.mirror is not None:
                pieces.append((source.store.mirror, planned.needed()))
            if not isinstance(source, Rows):
                continue
            bounds = offsets_of([len(part.rows) for _, _, part in parts_of_source]).tolist()
            for (step, number, part), one in zip(parts_of_source, planned.parts(bounds), strict=True):
                plans[step][number] = part._replace(planned=one)
        count = sum(map(_copies, plans.values()))
        if self._copies + count <= KEPT_COPIES:
            self._copies += count
            self._plans |= plans
        return pieces

    def _report_waits(self, loader: Any, now: float) -> None:
        """Log a warning if a notable part of the last minute was spent waiting for bytes."""
        since, before = self._looked or (now, 0.0)
        if self._looked is not None and now - since < REPORT_SECONDS:
            return
        traffic = self.traffic(loader.schedule.stages)
        assert traffic is not None
        self._looked = now, traffic.stall_seconds
        waited = traffic.stall_seconds - before
        if now > since and waited > STALLED * (now - since):
            LOG.warning(
                "reading waited for bytes of %s in %.0f of %.0f seconds: %s stalls so far, %.2f seconds a "
                'request; a larger cache_bytes= or order="blocks" needs fewer requests',
                " and ".join(mirror.place for mirror in self.mirrors(loader.schedule.stages)),
                min(waited, now - since),
                now - since,
                f"{traffic.stalls:,}",
                traffic.latency,
            )

    def traffic(self, stages: Iterable[ScheduledStage]) -> Traffic | None:
        """Requests and waits of this process for all remote stores of a run; None without any."""
        mirrors = self.mirrors(stages)
        if not mirrors:
            return None
        from packline.store.fetching import Traffic

        total = Traffic()
        for mirror in mirrors:
            total.add(mirror.traffic)
        return total

    def __reduce__(self) -> tuple[type[FetchAhead], tuple[()]]:
        return FetchAhead, ()


def _copies(parts: Iterable[BatchPart]) -> int:
    return sum(len(part.planned.shards) for part in parts if part.planned is not None)
