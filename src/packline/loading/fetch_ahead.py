"""Fetching for coming steps from remote stores, before they are due.

    step            40      41      42 ... 103     104
    main            reads 40
    fetched ahead           └── pieces of 41 to 103 ──┘     each due at now + steps to go x time of a step

The rows of a step are a formula, so the pieces of the coming steps are known. They are requested in the order
in which they are due, and the cache evicts pieces without a known use first, then the ones that are due last.
The window covers ten times the latency of a request, and at least 64 steps, as far as half of the cache has
room. The state of a loader does not change: what is fetched ahead is only found in the cache.

Spans and copies are computed once, for several steps together: the plans of the next steps are kept for the
reader, which takes them instead of computing its own.

A worker process of a data loader makes every n-th step, and fetches for those alone. Nothing is fetched ahead
for single batches out of order, and nothing for local stores.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from packline.errors import PacklineError

if TYPE_CHECKING:
    from packline.loading.schedule import ScheduledStage
    from packline.packing.gather import GatherPlan
    from packline.packing.packer import Spans
    from packline.packing.row_reader import RowReader
    from packline.store.fetching import Traffic
    from packline.store.mirror import Mirror


LEAST_STEPS = 64
LATENCIES = 10
"""Latencies of a request that a window lasts."""
CHUNK = 16
"""Steps that are planned together, so that their indexes are brought at once."""
KEPT_COPIES = 1 << 17
"""Copies of all plans that are kept, at most: 40 MB."""
JUMP = 64
"""Steps from one to the next of a worker, at most; what goes further begins anew."""
SHARE = 2
"""A window has room in this part of the cache."""


class Planned(NamedTuple):
    """Rows of one source in a batch whose spans and copies are known."""

    rows: RowReader
    spans: Spans
    plan: GatherPlan

    def read(self, fields: Sequence[str]) -> dict[str, np.ndarray]:
        """Read them; see `RowSource.read`."""
        return self.rows.read_planned(self.spans, self.plan, fields)


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
        self._plans: dict[int, list[tuple[int, Planned]]] = {}
        """Plans of coming steps: of each source, by its number."""
        self._copies = 0
        """Copies of these plans."""

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
        if self._thread is not None and self._thread.is_alive():
            return True
        self._planned = max(self._planned, step + self._stride)
        short = self._planned + CHUNK * self._stride > self._end(loader, step)
        if short and self._planned > step + self._stride:  # wait until a chunk is missing, or all
            return True
        self._thread = threading.Thread(
            target=self._plan, args=(loader, step), name="packline-fetch-ahead", daemon=True
        )
        self._thread.start()
        return True

    def _end(self, loader: Any, step: int) -> int:
        """One past the last step of the window."""
        mirrors = self.mirrors(loader.schedule.stages)
        latency = max(one.traffic.latency for one in mirrors)
        most = min(one.cache.most for one in mirrors)
        steps = window_steps(latency, self._seconds, self._bytes, most) if self._bytes else CHUNK
        return int(min(step + 1 + steps * self._stride, len(loader)))

    def take(self, step: int) -> list[tuple[int, Planned]] | None:
        """Plan of a step: number and rows of each source; None if it is not kept."""
        found = self._plans.pop(step, None)
        if found is not None:
            self._copies -= sum(len(one.plan.shards) for _, one in found)
        return found

    def _plan(self, loader: Any, step: int) -> None:
        """Request what the window lacks; body of the thread."""
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
        except PacklineError:
            pass  # raised again, with its place, by the step that needs it

    def _plan_steps(self, loader: Any, steps: range) -> list[tuple[Mirror, list[int]]]:
        """Plan steps together; pieces that they read, by store."""
        from packline.packing.gather import GatherPlan, Layout
        from packline.packing.row_reader import RowReader

        uses: dict[int, list[tuple[int, int, np.ndarray]]] = {}
        sources: dict[int, Any] = {}
        for step in steps:
            stage, start, stop = loader.place_of(step)
            for place, rows in stage.rows_by_source(start, stop):
                source = stage.mixture.rows[place]
                sources[id(source)] = source
                uses.setdefault(id(source), []).append((step, place, rows))
        pieces: list[tuple[Mirror, list[int]]] = []
        plans: dict[int, list[tuple[int, Planned]]] = {step: [] for step in steps}
        copies, known = 0, True
        for key, source in sources.items():
            spans = source.spans(np.concatenate([rows for _, _, rows in uses[key]]))
            plan = GatherPlan.of(source.store, Layout.of(spans, source.seq_len))
            if source.store.mirror is not None:
                plan = plan.in_pieces()
                pieces.append((source.store.mirror, plan.needed()))
            copies, known = copies + len(plan.shards), known and isinstance(source, RowReader)
            first = 0
            for step, place, rows in uses[key]:
                last = first + len(rows)
                part = plan.part(first, last, source.seq_len)
                plans[step].append((place, Planned(source, spans.part(first, last), part)))
                first = last
        if known and self._copies + copies <= KEPT_COPIES:
            self._copies += copies
            self._plans |= plans
        return pieces

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
