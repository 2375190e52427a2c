"""Search by cumulative weight in an order of documents that has no closed form.

Each document has a weight (its tokens, its rows), and the sums up to every 16th place are kept:

    place      0  1  2 ... 15 | 16 17 ... 31 | 32 ...
    weight     5  1  9        |  4  4        |  7
    kept       0              | 61           | 130        int64, half a byte per document

A search finds the last kept sum that is not above the number, and adds up at most 16 weights from there.

Cost: one pass over the lengths when it is made: at memory speed in stored order, at the speed of random reads
of the index for a shuffled one (measured: 100 million documents in 20 s). Kept in memory; above 8 MB (16
million documents) as a plan on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from packline.packing.selection import Selection
from packline.packing.tables import keep_table

STEP = 16
"""Documents per kept sum; small, since each search of a shuffled order reads as many lengths."""

Weigh = Callable[[np.ndarray], np.ndarray]
"""Lengths to weights, int64 to int64 of the same shape, elementwise."""


class Cumulative:
    """Sums of weights over the documents of a selection, in its order.

    Args:
        selection: documents and their order.
        weigh: weight of a document as a function of its length.
        name: name of the weight, including what it depends on, so that plans of other weights are not
            confused with it.
    """

    def __init__(self, selection: Selection, weigh: Weigh, name: str) -> None:
        self._selection, self._weigh = selection, weigh
        settings = {"cumulative": name, "step": STEP, "selection": selection.settings}
        size = 8 * (len(selection) // STEP + 1)
        table, facts = keep_table(selection.store, selection.plans, settings, self._pass, large=size)
        self._table = table
        self.total: int = facts["total"]

    def _pass(self) -> tuple[np.ndarray, dict[str, Any]]:
        sums: list[np.ndarray] = []
        total = 0
        for _, lengths in self._selection.blocks():  # whole steps, but for the last
            weights = self._weigh(lengths)
            steps = np.add.reduceat(weights, np.arange(0, len(weights), STEP))
            ends = np.cumsum(steps) + total
            sums.append(ends - steps)
            total = int(ends[-1])
        return np.concatenate(sums).astype("<i8"), {"total": total}

    def find(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places of these values, and the sums before each place.

        Args:
            values: int64 `[N]`, each from 0 to the total; the total is past the end: its place is the number
                of documents.

        Returns:
            Places and sums, int64 `[N]` each: sum <= value < sum + weight of the place.
        """
        step = self._table.searchsorted(values, "right") - 1
        weights = self._weights(step)
        ends = np.cumsum(weights, axis=1) + self._table[step][:, None]
        passed = ends <= values[:, None]
        places = np.minimum(step * STEP + np.count_nonzero(passed, axis=1), len(self._selection))
        return places, self._table[step] + (weights * passed).sum(axis=1)

    def before(self, places: np.ndarray) -> np.ndarray:
        """Sums of the weights before these places, int64 `[N]`."""
        step = places // STEP
        earlier = np.arange(STEP) < (places % STEP)[:, None]
        return self._table[step] + (self._weights(step) * earlier).sum(axis=1)

    def _weights(self, step: np.ndarray) -> np.ndarray:
        """Weights of the places of these steps, int64 `[N, STEP]`; 0 beyond the last document."""
        places = step[:, None] * STEP + np.arange(STEP)
        inside = places < len(self._selection)
        lengths = self._selection.lengths_at(np.minimum(places, len(self._selection) - 1).reshape(-1))
        weights = self._weigh(lengths).reshape(places.shape)
        return weights if inside.all() else weights * inside
