"""The order of rows: the row of each draw of a source, as a closed form, and the way back.

A draw is one use of a row, counted through all epochs; every epoch contains each row once:

    draw    0 1 2 3 4 | 5 6 7 8 9 | 10 ...        5 rows
    epoch       0     |     1     |  2
    row     3 0 4 1 2 | 1 4 2 3 0 | ...

`stored` is 0, 1, 2, ... in every epoch, `global` a keyed permutation of all rows, and `blocks` a shuffle of
blocks of rows within windows (docs/reading.md shows one):

1. The whole blocks are numbered anew by a permutation of the epoch; the first epoch keeps their order. The
   rows that do not fill a last block stay last.
2. Consecutive blocks form windows of `block_rows * window_blocks` rows; the last one may be shorter.
3. Within a window, rows are permuted with a key of the seed, the source, the epoch and the window.

In the first epoch a full window therefore depends on nothing behind it.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.packing.options import LoaderOptions
from packline.permutation import Permutation

BLOCK_ROWS = 256
"""Default rows of a block: 2 MB of rows of 4,096 tokens in uint16, enough for sequential reads."""
WINDOW_BLOCKS = 256
"""Default blocks of a window: 65,536 rows, 268 million tokens in rows of 4,096."""
MOST_WINDOW_ROWS = 1 << 40

ORDER_BLOCK = 1 << 14
"""Draws of one epoch computed at a time: half a millisecond, enough for 500 batches of 32."""
WINDOWS_AT_ONCE = 64
"""Most windows of such a block, since a window costs a tenth of a millisecond whatever its size."""


class RowOrder(msgspec.Struct, frozen=True):
    """Settings of an order; made by `row_order`."""

    kind: Literal["global", "blocks", "stored"] = "global"
    block_rows: int = 0
    window_blocks: int = 0

    @property
    def window_rows(self) -> int:
        """Rows that the first epoch orders without regard to later ones.

        A window for blocks, one row in stored order, and 0 for the global order, which depends on all.
        """
        return {"stored": 1, "global": 0, "blocks": self.block_rows * self.window_blocks}[self.kind]

    def __str__(self) -> str:
        if self.kind != "blocks":
            return self.kind
        return f"blocks of {self.block_rows:,} rows in windows of {self.window_blocks:,}"


GLOBAL = RowOrder()


def row_order(options: LoaderOptions = LoaderOptions()) -> RowOrder:  # noqa: B008  frozen
    """Order of the rows of every source.

    >>> row_order(LoaderOptions(block_rows=64))
    Traceback (most recent call last):
    packline.errors.RecipeError: block_rows is 64, and order is global
    """
    sizes = {"block_rows": options.block_rows, "window_blocks": options.window_blocks}
    if options.order == "global":
        for name, value in sizes.items():
            if value is not None:
                raise RecipeError(
                    f"{name} is {value}, and order is global", hint='order="blocks" shuffles blocks of rows'
                )
        return GLOBAL if options.shuffle else RowOrder("stored")
    if not options.shuffle:
        raise RecipeError(
            'shuffle is False, and order is "blocks": expected one of them',
            hint="leave out order for rows in stored order",
        )
    rows, blocks = options.block_rows or BLOCK_ROWS, options.window_blocks or WINDOW_BLOCKS
    if rows * blocks > MOST_WINDOW_ROWS:
        raise RecipeError(f"a window has {rows:,} x {blocks:,} rows: expected at most {MOST_WINDOW_ROWS:,}")
    return RowOrder("blocks", rows, blocks)


_NO_BLOCK: tuple[int, int, np.ndarray] = (-1, -1, np.empty(0, np.int64))


class Order:
    """Order in which the rows of one source are consumed; the key is the seed and the number of the source.

    >>> order = Order(5, 42, 0)
    >>> sorted(order.between(5, 10).tolist())       # draws 5 to 10 are the second epoch
    [0, 1, 2, 3, 4]
    >>> row = int(order(np.array([7]))[0])
    >>> int(order.draws_of(np.array([row]), epoch=1)[0])
    7
    """

    def __init__(self, rows: int, *key: int, order: RowOrder = GLOBAL) -> None:
        if rows < 1:
            raise RecipeError("cannot order the rows of a source that has none")
        self.rows, self.key, self.order = rows, key, order
        most = WINDOWS_AT_ONCE * order.window_rows if order.kind == "blocks" else ORDER_BLOCK
        self._step = min(ORDER_BLOCK, most)
        self._blocks = -(-rows // max(order.block_rows, 1))
        # One tuple, replaced as a whole: a prefetching thread and a caller may both read it.
        self._block = _NO_BLOCK

    def __call__(self, draws: np.ndarray) -> np.ndarray:
        """Rows for any draw numbers, int64 of the same shape."""
        draws = np.asarray(draws, np.int64)
        epochs, places = np.divmod(draws, self.rows)
        rows = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = self._permuted(int(epoch), places[here], inverse=False)
        return rows

    def between(self, start: int, stop: int) -> np.ndarray:
        """Rows from draw `start` to draw `stop`, int64 `[stop - start]`."""
        if stop <= start:
            return np.empty(0, np.int64)
        pieces = []
        while start < stop:
            epoch, place = divmod(start, self.rows)
            number, inner = divmod(place, self._step)
            piece = self._order_block(epoch, number)[inner : inner + stop - start]
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def draws_of(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Draw numbers of these rows in an epoch, int64 of the same shape."""
        rows = np.asarray(rows, np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < self.rows:
            raise IndexError(f"a row outside range({self.rows})")
        return epoch * self.rows + self._permuted(epoch, rows, inverse=True)

    def block_number(self, draw: int) -> int:
        """Number of the block of a draw, in the order in which blocks come first, over all epochs."""
        epoch, place = divmod(draw, self.rows)
        return epoch * self._blocks + place // self.order.block_rows

    def block(self, number: int) -> tuple[int, int]:
        """First row of the block with this number, and one past its last row."""
        epoch, slot = divmod(number, self._blocks)
        first = np.array([slot * self.order.block_rows])
        start = int(self._renumbered(epoch, first, inverse=False)[0])
        return start, min(start + self.order.block_rows, self.rows)

    def _permuted(self, epoch: int, values: np.ndarray, *, inverse: bool) -> np.ndarray:
        """Rows at places of an epoch, or the places of rows."""
        if self.order.kind == "stored":
            return values
        if self.order.kind == "global":
            permutation = Permutation(self.rows, *self.key, epoch)
            return (permutation.invert if inverse else permutation)(values)
        if inverse:
            values = self._renumbered(epoch, values, inverse=True)
        found, size = np.empty_like(values), self.order.window_rows
        windows = values // size
        for window in np.unique(windows).tolist():
            first, here = window * size, windows == window
            permutation = Permutation(min(size, self.rows - first), *self.key, epoch, window)
            found[here] = first + (permutation.invert if inverse else permutation)(values[here] - first)
        return found if inverse else self._renumbered(epoch, found, inverse=False)

    def _renumbered(self, epoch: int, rows: np.ndarray, *, inverse: bool) -> np.ndarray:
        """Exchange the blocks of rows as in an epoch; the first epoch and the last, short block stay."""
        whole = self.rows // self.order.block_rows
        if epoch == 0 or not whole or not rows.size:
            return rows
        blocks, inner = np.divmod(rows, self.order.block_rows)
        permutation = Permutation(whole, *self.key, epoch)
        moved = blocks < whole
        blocks[moved] = (permutation.invert if inverse else permutation)(blocks[moved])
        return blocks * self.order.block_rows + inner

    def _order_block(self, epoch: int, number: int) -> np.ndarray:
        *held, block = self._block
        if held != [epoch, number]:
            places = np.arange(number * self._step, min((number + 1) * self._step, self.rows))
            block = self._permuted(epoch, places, inverse=False)
            block.flags.writeable = False
            self._block = (epoch, number, block)
        return block
