"""The order in which the rows of a source are drawn: a pure function of (seed, source, draw).

Draws are counted through all epochs; each epoch is a permutation of its own.

    draw    0 1 2 3 4 | 5 6 7 8 9 | 10 ...        5 rows
    epoch       0     |     1     |  2
    row     3 0 4 1 2 | 1 4 2 3 0 | ...

Nothing is stored but one block of an epoch's draws, so that asking for a batch at a time costs next to
nothing; asking here and there costs a block each time. What it does not do: keep rows apart that
resemble each other.
"""

from __future__ import annotations

import numpy as np

from packline.errors import RecipeError
from packline.permutation import Permutation

BLOCK = 1 << 14
"""Draws of one epoch computed at a time: half a millisecond for as many as 500 batches of 32 take."""

_NO_BLOCK: tuple[int, int, np.ndarray] = (-1, -1, np.empty(0, np.int64))


class Order:
    """Which row is drawn when, of one source.

    Args:
        rows: how many rows the source has.
        key: the seed and the number of the source. Other keys, other orders.
        shuffle: False draws rows 0, 1, 2, ... in every epoch.

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
        # One tuple, exchanged as a whole: a prefetching thread and a caller may both look here.
        self._block = _NO_BLOCK

    def __call__(self, draws: np.ndarray) -> np.ndarray:
        """Rows of any draws, int64 of the same shape."""
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
        """Rows of draws `start` to `stop`, int64 `[stop - start]`."""
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
        """At which draws these rows come in an epoch, int64 of the same shape.

        Raises:
            IndexError: there is no such row.
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
        """Rows of the draws of one epoch from `number * BLOCK` on, as many as a block and the epoch hold."""
        *held, block = self._block
        if held != [epoch, number]:
            block = np.arange(number * BLOCK, min((number + 1) * BLOCK, self.rows))
            if self.shuffle:
                block = self._epoch(epoch)(block)
            block.flags.writeable = False
            self._block = (epoch, number, block)
        return block

    def __getstate__(self) -> dict[str, object]:
        # What goes to a worker process is the settings, not the block.
        return {**self.__dict__, "_block": _NO_BLOCK}
