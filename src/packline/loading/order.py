"""The order in which the rows of a source are consumed: a pure function of (seed, source, draw).

A draw is one use of a row, counted through all epochs; each epoch is a separate permutation.

    draw    0 1 2 3 4 | 5 6 7 8 9 | 10 ...        5 rows
    epoch       0     |     1     |  2
    row     3 0 4 1 2 | 1 4 2 3 0 | ...

Nothing is stored except one block of an epoch, so reading batch by batch costs next to nothing;
random access costs one block each time. Does not keep similar rows apart.
"""

from __future__ import annotations

import numpy as np

from packline.errors import RecipeError
from packline.permutation import Permutation

BLOCK = 1 << 14
"""Draws of one epoch computed at a time: half a millisecond, enough for 500 batches of 32."""

_NO_BLOCK: tuple[int, int, np.ndarray] = (-1, -1, np.empty(0, np.int64))


class Order:
    """Order in which the rows of one source are consumed.

    Args:
        rows: number of rows of the source.
        key: the seed and the number of the source. Different keys give different orders.
        shuffle: False gives rows 0, 1, 2, ... in every epoch.

    Raises:
        RecipeError: there are no rows.

    >>> order = Order(5, 42, 0)
    >>> sorted(order.between(5, 10).tolist())       # draws 5 to 10 are the second epoch
    [0, 1, 2, 3, 4]
    >>> row = int(order(np.array([7]))[0])
    >>> int(order.draws_of(np.array([row]), epoch=1)[0])
    7
    """

    def __init__(self, rows: int, *key: int, shuffle: bool = True) -> None:
        if rows < 1:
            raise RecipeError("cannot order the rows of a source that has none")
        self.rows, self.key, self.shuffle = rows, key, shuffle
        # One tuple, replaced as a whole: a prefetching thread and a caller may both read it.
        self._block = _NO_BLOCK

    def __call__(self, draws: np.ndarray) -> np.ndarray:
        """Rows for any draw numbers, int64 of the same shape."""
        draws = np.asarray(draws, np.int64)
        epochs, places = np.divmod(draws, self.rows)
        if not self.shuffle:
            return places
        rows = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._epoch(int(epoch))(places[here])
        return rows

    def between(self, start: int, stop: int) -> np.ndarray:
        """Rows from draw `start` to draw `stop`, int64 `[stop - start]`."""
        if stop <= start:
            return np.empty(0, np.int64)
        pieces = []
        while start < stop:
            epoch, place = divmod(start, self.rows)
            number, inner = divmod(place, BLOCK)
            piece = self._draw_block(epoch, number)[inner : inner + stop - start]
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def draws_of(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Draw numbers of these rows in an epoch, int64 of the same shape.

        Raises:
            IndexError: no such row.
        """
        rows = np.asarray(rows, np.int64)
        if not self.shuffle:
            if rows.size and not 0 <= rows.min() <= rows.max() < self.rows:
                raise IndexError(f"a row outside range({self.rows})")
            return epoch * self.rows + rows
        return epoch * self.rows + self._epoch(epoch).invert(rows)

    def _epoch(self, epoch: int) -> Permutation:
        return Permutation(self.rows, *self.key, epoch)

    def _draw_block(self, epoch: int, number: int) -> np.ndarray:
        """Rows of block `number` of an epoch: `BLOCK` rows, or fewer at the end of the epoch."""
        *held, block = self._block
        if held != [epoch, number]:
            block = np.arange(number * BLOCK, min((number + 1) * BLOCK, self.rows))
            if self.shuffle:
                block = self._epoch(epoch)(block)
            block.flags.writeable = False
            self._block = (epoch, number, block)
        return block

    def __getstate__(self) -> dict[str, object]:
        # Pickling for a worker process keeps the settings, not the block.
        return {**self.__dict__, "_block": _NO_BLOCK}
