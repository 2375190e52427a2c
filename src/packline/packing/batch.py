"""Batches: arrays of rows, filled from spans.

Cost: 32 rows of 4,096 at random, the four arrays of `FIELDS`, 110 spans of a store of 160 MB: 160
microseconds on one core (reading 60, tokens 12, targets 14, positions 30, segments 19), and 40 for the plan,
where many batches are planned together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from packline.errors import RecipeError
from packline.packing.blocks import take
from packline.packing.gather import PlannedRows
from packline.packing.layout import IGNORED, Layout
from packline.packing.options import Field

if TYPE_CHECKING:
    from packline.packing.rows import Rows

ALL_FIELDS: tuple[str, ...] = get_args(Field)
FIELDS = ALL_FIELDS[:-1]
"""All but the loss mask."""


class BatchPart(NamedTuple):
    """Rows of one source in a batch."""

    source: Rows
    rows: np.ndarray
    """int64 `[b]`: numbers of the rows in the source."""
    places: np.ndarray | None = None
    """int64 `[b]`: rows of the batch that they are; None: the whole batch, in order."""


def plan_rows(parts: Sequence[BatchPart]) -> PlannedRows:
    planned = [part.source.plan(part.rows) for part in parts]
    places = [part.places for part in parts if part.places is not None]
    return PlannedRows.join(planned, places) if places else planned[0]


class CompactBatch(NamedTuple):
    """A batch in an eighth of the bytes: tokens, and the layout from which its other arrays follow."""

    tokens: np.ndarray | None
    """Tokens and the one behind each row, `[B, L+1]` in the dtype of the store; None if not needed."""
    layout: Layout
    fields: tuple[str, ...]

    @classmethod
    def read(cls, parts: Sequence[BatchPart], fields: Sequence[str] = FIELDS) -> CompactBatch:
        return cls.of(plan_rows(parts), fields)

    @classmethod
    def of(cls, planned: PlannedRows, fields: Sequence[str]) -> CompactBatch:
        kinds = _kinds(tuple(fields))
        return cls(*planned.read(tokens="tokens" in kinds, targets="targets" in kinds), tuple(fields))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name, each `[B, L]` and new at every call: int32, `loss_mask` uint8.

        Targets are -100 at padding, at the end of a document (unless it predicts the next: `boundary_loss`)
        and where the target is a token that is not trained on (`NAME.loss`); `loss_mask` is 1 elsewhere.
        Positions start at 0 in every span, also in one that continues a document. Segments are numbered
        within the row; -1 is padding.
        """
        layout, tokens, kinds = self.layout, self.tokens, _kinds(self.fields)
        arrays = _allocate(kinds, (len(layout), layout.seq_len))
        if tokens is not None:
            arrays["tokens"][:] = tokens[:, :-1]
        if "targets" in kinds and tokens is not None:
            arrays["targets"][:] = tokens[:, 1:]
            layout.leave_out(arrays["targets"], IGNORED)
        if "loss_mask" in kinds:
            arrays["loss_mask"].fill(1)
            layout.leave_out(arrays["loss_mask"], 0)
        if "position_ids" in kinds:
            layout.fill_positions(arrays["position_ids"].reshape(-1))
        if "segment_ids" in kinds:
            layout.fill_segments(arrays["segment_ids"].reshape(-1))
        return {name: arrays[name] for name in self.fields}


@cache
def _kinds(fields: tuple[str, ...]) -> dict[str, np.dtype[Any]]:
    if unknown := sorted(set(fields).difference(ALL_FIELDS)):
        raise RecipeError(f"no field {', '.join(unknown)}: expected some of {', '.join(ALL_FIELDS)}")
    needed = set(fields)
    if "loss_mask" in needed:
        needed.add("targets")
    if "targets" in needed:
        needed.add("tokens")
    kinds = dict.fromkeys(ALL_FIELDS, np.dtype(np.int32)) | {"loss_mask": np.dtype(np.uint8)}
    return {name: kind for name, kind in kinds.items() if name in needed}


def _allocate(kinds: dict[str, np.dtype[Any]], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Allocate arrays `[B, L]`, adjacent in one block of memory."""
    count = shape[0] * shape[1]
    block = take(count * sum(kind.itemsize for kind in kinds.values()))
    arrays: dict[str, np.ndarray] = {}
    begin = 0
    for name, kind in kinds.items():
        arrays[name] = np.ndarray(shape, kind, block, begin)
        begin += count * kind.itemsize
    return arrays
