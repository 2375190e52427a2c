"""best_fit in windows of units: documents of `pack_window` units of a source are packed together.

    units of a source     web-000000 web-000001 | web-000002 web-000003 | web-000004        pack_window=2
    windows               packed as one          packed as one           the last may be shorter
    rows                  0 .. 411               412 .. 830              831 .. 1,020

The plan of a window depends on the documents of its units alone, so the rows of a window are known as soon as
its units are, and neither later units nor other sources change them: such rows can be read while the store is
built. A unit's number decides its window: units `n * pack_window` to `(n + 1) * pack_window - 1` of a source
are window n, and the slices of a stream are numbered within the stream. A unit without selected documents
counts, so a selection does not move the others.

Cost: a little more padding than packing all documents at once, as `packline info STORE --run run.toml`
shows, because the last rows of every window are not full, and up to a tenth of a second per window to make
the plan. Within a window rows are those of `best_fit`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from packline.errors import CorruptStore, RecipeError
from packline.packing.best_fit import SMALL, BestFit, best_fit_counts, make_plan, plan_fingerprint
from packline.packing.cache import CachedArrays, PlanMemory, cached_arrays, plan_folder
from packline.packing.packer import Counts, Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of

ARRAYS = ("order", "long_places", "long_rows", "firsts", "runs", "bases", "each", "lengths")
"""Arrays of the plan of one window, as in `best_fit`."""


def window_of(unit: str, units: int) -> tuple[str, int]:
    """Window of a unit, by its name; consecutive units with the same window are packed together.

    >>> window_of("web-000012", 8), window_of("web-000003-000007", 8), window_of("other", 8)
    (('web', 1), ('web-000003', 0), ('other', -1))
    """
    series, _, number = unit.rpartition("-")
    if not number.isdigit():
        return unit, -1
    return series, int(number) // units


class WindowedBestFit:
    """Rows of whole documents, packed window by window.

    Args:
        selection: documents to pack, in stored order.
        seq_len: tokens per row, L.
        units: units of a window.
        plans: as for `BestFit`; in a `PlanMemory`, plans are made when they are first used.

    Raises:
        RecipeError: shuffled documents.
        CorruptStore: the plan on disk is damaged, or belongs to another store.
        StoreError: a plan cannot be written.
    """

    def __init__(
        self, selection: Selection, seq_len: int, units: int, *, plans: str | Path | PlanMemory | None = None
    ) -> None:
        self.selection, self.seq_len, self.units = selection, seq_len, units
        self._edges = window_edges(selection, units)
        self._memory = plans if isinstance(plans, PlanMemory) else None
        self._packers: dict[int, BestFit] = {}
        self._plan = CachedArrays({}, {})
        if isinstance(plans, PlanMemory):
            rows = [
                plans.rows(self._key(*window), self._maker(*window), rows_of_plan)
                for window in itertools.pairwise(self._edges)
            ]
        else:
            fingerprint = plan_fingerprint(selection, seq_len, units)
            save = plans is not None or len(selection) >= SMALL
            folder = plan_folder(selection.store, fingerprint, plans)
            self._plan = cached_arrays(
                folder, fingerprint, lambda: make_windows(selection, seq_len, units), save=save
            )
            self._sizes = offsets_of_columns(self._plan.arrays["sizes"].reshape(-1, len(ARRAYS)))
            rows = self._plan.arrays["rows"].tolist()
            if len(rows) != len(self._edges) - 1:
                where = self._plan.folder or selection.store.place
                raise CorruptStore(
                    f"the plan of {where} has {len(rows):,} windows: expected {len(self._edges) - 1:,}",
                    hint="delete that folder: the plan is made again",
                )
        self._rows = offsets_of(rows)
        """int64 `[W+1]`: first row of each window; the last is the number of rows."""

    def __len__(self) -> int:
        return int(self._rows[-1])

    @cached_property
    def counts(self) -> Counts:
        """Costs of the packing."""
        if self._memory is not None:
            return windowed_counts(self.selection, self.seq_len, self.units)
        return Counts(**self._plan.facts["counts"])

    @property
    def window_ends(self) -> np.ndarray:
        """One past the last row of each window, int64 `[W]`."""
        return self._rows[1:]

    @property
    def last_unit(self) -> str:
        """Name of the last unit with selected documents; its window is the last one."""
        units = [unit for unit, first in self.selection.units() if first < len(self.selection)]
        return units[-1]

    def spans(self, rows: np.ndarray) -> Spans:
        """Spans of these rows.

        Args:
            rows: row numbers, int64 `[B]`, each from 0 to R - 1.

        Raises:
            CorruptStore: the plan puts a document where its length does not belong.
        """
        windows = self._rows.searchsorted(rows, "right") - 1
        numbers = np.unique(windows).tolist()
        if len(numbers) == 1:
            return self._packer(numbers[0]).spans(rows - self._rows[numbers[0]])
        indices, parts = [], []
        for number in numbers:
            here = np.flatnonzero(windows == number)
            indices.append(here)
            parts.append(self._packer(number).spans(rows[here] - self._rows[number]))
        return _merged(len(rows), np.concatenate(indices) if indices else windows, parts)

    def last_place(self, rows: int) -> int:
        """Place of the last document that the first `rows` rows depend on: the last of their last window."""
        return self._edges[int(self._rows.searchsorted(rows, "left"))] - 1

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is not selected."""
        place = int(self.selection.places(np.array([document], np.int64))[0])
        if place < 0:
            return np.empty(0, np.int64)
        number = bisect_right(self._edges, place) - 1
        return self._packer(number).rows_of(document) + self._rows[number]

    def _packer(self, number: int) -> BestFit:
        window = self._edges[number], self._edges[number + 1]
        if self._memory is not None:
            plan = self._memory.plan(self._key(*window), self._maker(*window))
            return BestFit(self.selection, self.seq_len, plan, *window)
        if number not in self._packers:
            starts, stops = self._sizes[number].tolist(), self._sizes[number + 1].tolist()
            arrays = {
                name: self._plan.arrays[name][start:stop]
                for name, start, stop in zip(ARRAYS, starts, stops, strict=True)
            }
            plan = CachedArrays(arrays, {}, self._plan.folder)
            self._packers[number] = BestFit(self.selection, self.seq_len, plan, *window)
        return self._packers[number]

    def _key(self, start: int, stop: int) -> tuple[object, ...]:
        return msgspec.json.encode(self.selection.identity), self.seq_len, start, stop

    def _maker(self, start: int, stop: int) -> Callable[[], CachedArrays]:
        return lambda: make_plan(self.selection.blocks(start, stop), stop - start, self.seq_len)


def make_windows(selection: Selection, seq_len: int, units: int) -> CachedArrays:
    """Plans of all windows, one behind the other, in memory."""
    windows = itertools.pairwise(window_edges(selection, units))
    made = [make_plan(selection.blocks(start, stop), stop - start, seq_len) for start, stop in windows]
    arrays = {name: np.concatenate([plan.arrays[name] for plan in made]) for name in ARRAYS}
    sizes = [[len(plan.arrays[name]) for name in ARRAYS] for plan in made]
    arrays["sizes"] = np.array(sizes, np.int64).reshape(-1)
    arrays["rows"] = np.array([rows_of_plan(plan) for plan in made], np.int64)
    counts = _summed([Counts(**plan.facts["counts"]) for plan in made])
    facts = {"packing": "best_fit", "seq_len": seq_len, "pack_window": units}
    return CachedArrays(arrays, {**facts, "counts": msgspec.to_builtins(counts)})


def window_edges(selection: Selection, units: int) -> list[int]:
    """First place of each window with documents, and one past the last place.

    Raises:
        RecipeError: shuffled documents.
    """
    if selection.settings["shuffle_documents"] is not None:
        raise RecipeError(
            "expected shuffle_documents or pack_window, found both: windows are units in stored order",
            hint="a loader shuffles the rows",
        )
    begins = [0]
    before: tuple[str, int] | None = None
    for unit, first in selection.units():
        window = window_of(unit, units)
        if window != before and begins[-1] < first < len(selection):
            begins.append(first)
        before = window
    return [*begins, len(selection)]


def windowed_counts(selection: Selection, seq_len: int, units: int) -> Counts:
    """Costs of best_fit in windows, from a pass over the lengths; nothing is sorted or written."""
    windows = itertools.pairwise(window_edges(selection, units))
    return _summed(
        [best_fit_counts(selection.blocks(start, stop), stop - start, seq_len) for start, stop in windows]
    )


def rows_of_plan(plan: CachedArrays) -> int:
    """Number of rows of a window."""
    return int(plan.arrays["long_rows"][-1]) + int(plan.arrays["firsts"][-1])


def offsets_of_columns(sizes: np.ndarray) -> np.ndarray:
    """Sums of the rows before each row, int64 `[W, K]` to `[W+1, K]`."""
    return np.concatenate([np.zeros((1, sizes.shape[1]), np.int64), np.cumsum(sizes, axis=0)])


def _summed(counts: list[Counts]) -> Counts:
    fields = Counts.__struct_fields__
    return Counts(**{name: sum(getattr(one, name) for one in counts) for name in fields})


def _merged(count: int, indices: np.ndarray, parts: list[Spans]) -> Spans:
    """Spans of several parts in the order of the rows: row i of the parts together is row `indices[i]`."""
    each = np.concatenate([np.diff(part.offsets) for part in parts])
    begins = offsets_of(each)[:-1]
    back = np.empty(count, np.int64)
    back[indices] = np.arange(count)
    sizes = each[back]
    offsets = offsets_of(sizes)
    order = np.repeat(begins[back] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("documents", "starts", "lengths", "begins", "sizes")
    ]
    return Spans(offsets, *columns)
