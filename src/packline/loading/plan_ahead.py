"""Plans of the coming steps of local stores, made for many steps at once.

    step       40            41 ............... 56            57 ......
    planned    itself        all of them at once              ...

To look up documents and copies costs as much as to copy, and nearly as much for one batch as for sixteen. The
rows of a step are a formula, so the steps after the current one are planned with it, and those of a mixture
joined to one plan per step: a batch of ten sources then costs what a batch of one does. A worker process of a
data loader reads every n-th step, and plans those. Nothing is planned ahead for a single step, nor for rows
that are not those of a finished store; remote stores have plans of their own (`fetch_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import PacklineError
from packline.loading.schedule import parts_of
from packline.packing.batch import BatchPart
from packline.packing.gather import PlannedRows
from packline.packing.row_reader import RowReader

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
        (rows.pad_id, rows.boundary_loss, rows.store.dtype) if isinstance(rows, RowReader) else None
        for rows in sources
    }
    return len(settings) == 1 and None not in settings


def _plan(place_of: PlaceOf, steps: range) -> dict[int, list[BatchPart]]:
    """Plan steps of one stage together."""
    parts = [parts_of(*place_of(step)) for step in steps]
    size = sum(len(part.rows) for part in parts[0])
    by_source: dict[int, list[tuple[int, BatchPart]]] = {}
    for number, of_step in enumerate(parts):
        for part in of_step:
            by_source.setdefault(id(part.source), []).append((number * size, part))
    planned, places = [], []
    for found in by_source.values():
        source = found[0][1].source
        assert isinstance(source, RowReader)
        rows = np.concatenate([part.rows for _, part in found])
        whole = np.arange(size)
        places.append(
            np.concatenate([base + (whole if part.places is None else part.places) for base, part in found])
        )
        planned.append(source.plan(rows, places[-1]))
    joined = planned[0] if len(planned) == 1 else PlannedRows.join(planned, places)
    plans = {}
    for number, (step, of_step) in enumerate(zip(steps, parts, strict=True)):
        rows = np.concatenate([part.rows for part in of_step]) if len(of_step) > 1 else of_step[0].rows
        here = joined.part(number * size, (number + 1) * size)
        plans[step] = [BatchPart(of_step[0].source, rows, None, here)]
    return plans
