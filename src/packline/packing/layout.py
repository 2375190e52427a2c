"""Places of a batch that its spans fill, and what follows from them: positions, segments, targets, masks.

    spans of a row   document 7 whole (3 tokens) | document 8, first 2 of more | padding
    tokens             a    b    c                 d    e                        pad
    targets            b    c -100                 e    f                       -100
    position_ids       0    1    2                 0    1                          0
    segment_ids        0    0    0                 1    1                         -1
    cu_seqlens         0              3                  5                         6

All arrays of a batch follow from its tokens and its layout, which is small: so a process can send both, and
another one make the rest. Targets are the tokens shifted by one place and corrected at the last token of
every document. Slower alternatives measured: slices of a template or `concatenate` of them for positions and
segments (beyond a hundred spans), sums over ones. Padding is a separate segment that attends to itself only,
so that no softmax is over nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from packline.errors import RecipeError
from packline.ragged import offsets_of

IGNORED = -100
"""Target that torch's losses ignore by default."""
NO_ROWS = np.empty(0, np.bool_)
INT16, INT32 = np.dtype(np.int16), np.dtype(np.int32)


@dataclass(slots=True, eq=False)
class Layout:
    """Spans of B rows in their places.

    >>> layout = Layout.of(np.array([0, 2, 3]), np.array([3, 2, 6]), 6)
    >>> layout.begins.tolist(), layout.padding.tolist(), layout.spread(np.array([1, 2, 3]), 0).tolist()
    ([0, 3, 6], [1, 0], [1, 1, 1, 2, 2, 0, 3, 3, 3, 3, 3, 3])
    """

    offsets: np.ndarray
    """int64 `[B+1]`: row b has spans `offsets[b]` to `offsets[b+1]`."""
    lengths: np.ndarray
    """int64 `[S]`: tokens of each span."""
    seq_len: int
    rows: np.ndarray
    """int64 `[S]`: row of each span."""
    begins: np.ndarray
    """int64 `[S]`: place of a span's first token."""
    padding: np.ndarray
    """int64 `[B]`: places at the end of each row that no span fills."""
    padded: bool
    last_targets: np.ndarray = field(default_factory=lambda: NO_ROWS)
    """bool `[B]`: True for rows with a token behind them that is the target of their last one."""
    linked: np.ndarray | None = None
    """bool `[B]`: True for rows in which the end of a document predicts the next one; None for no row."""
    trained: np.ndarray | None = None
    """uint8 `[B, L+1]`: 1 where a token is trained on, anything at padding; None if all are."""

    @classmethod
    def of(cls, offsets: np.ndarray, lengths: np.ndarray, seq_len: int) -> Layout:
        counts = offsets[1:] - offsets[:-1]
        # Methods, not functions, of NumPy here and below: half the cost for arrays this small.
        rows = np.arange(len(counts)).repeat(counts)
        ends = offsets_of(lengths)
        padding = seq_len - (ends[offsets[1:]] - ends[offsets[:-1]])
        sizes = padding.tolist()
        if min(sizes, default=0) < 0:
            row = sizes.index(min(sizes))
            raise RecipeError(
                f"row {row} of the batch has {seq_len - sizes[row]:,} tokens: "
                f"expected at most seq_len={seq_len:,}",
                hint="give the seq_len that the spans were made for",
            )
        begins = ends[:-1]
        padded = any(sizes)
        if padded:
            begins = begins + (padding.cumsum() - padding)[rows]
        return cls(offsets, lengths, seq_len, rows, begins, padding, padded)

    @classmethod
    def join(cls, layouts: Sequence[Layout], places: Sequence[np.ndarray]) -> Layout:
        """One layout of rows that several layouts of equal length have, without a loss mask.

        Args:
            places: rows of the result that the rows of each layout are, int64 `[B_i]` each.
        """
        rows = np.concatenate([place[one.rows] for one, place in zip(layouts, places, strict=True)])
        counts = np.bincount(rows, minlength=sum(map(len, places)))
        lengths = np.concatenate([one.lengths for one in layouts])[rows.argsort(kind="stable")]
        joined = cls.of(offsets_of(counts), lengths, layouts[0].seq_len)
        joined.last_targets = np.empty(len(joined), np.bool_)
        if any(one.linked is not None for one in layouts):
            joined.linked = np.zeros(len(joined), np.bool_)
        for one, place in zip(layouts, places, strict=True):
            joined.last_targets[place] = one.last_targets
            if joined.linked is not None:
                joined.linked[place] = one.linked is not None
        return joined

    def part(self, first: int, last: int) -> Layout:
        offsets, padding = self.offsets[first : last + 1], self.padding[first:last]
        here = slice(offsets[0], offsets[-1])
        rows, begins = self.rows[here] - first, self.begins[here] - first * self.seq_len
        padded = self.padded and bool(padding.any())
        linked = None if self.linked is None else self.linked[first:last]
        facts = (offsets - offsets[0], self.lengths[here], self.seq_len, rows, begins, padding, padded)
        return Layout(*facts, self.last_targets[first:last], linked)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def pads(self) -> list[tuple[int, int]]:
        if not self.padded:
            return []
        rows = np.flatnonzero(self.padding)
        ends = (rows + 1) * self.seq_len
        return list(zip((ends - self.padding[rows]).tolist(), ends.tolist(), strict=True))

    def spread(
        self, of_spans: np.ndarray, of_padding: np.ndarray | int, kind: npt.DTypeLike = np.int64
    ) -> np.ndarray:
        """Repeat a value per span at all its places, and a value per row at all its padding, `[B*L]`.

        Args:
            kind: a dtype that holds all of them; a smaller one takes less time.
        """
        if not self.padded:
            return of_spans.astype(kind).repeat(self.lengths)
        # One piece per span, and after the spans of each row one for its padding, which may be empty.
        spans = np.arange(len(self.rows)) + self.rows
        padding = self.offsets[1:] + np.arange(len(self.padding))
        values = np.empty(len(spans) + len(padding), kind)
        lengths = np.empty(len(values), np.int64)
        values[spans], values[padding] = of_spans, of_padding
        lengths[spans], lengths[padding] = self.lengths, self.padding
        return values.repeat(lengths)

    def fill_positions(self, positions: np.ndarray) -> None:
        """Fill in the offset within the span, int32 `[B*L]`; padding counts from 0 again."""
        # In a small dtype, then converted: two quick passes instead of a slow one. Places and begins may be
        # more than it holds: their difference is right nevertheless.
        places = _places(len(positions), _small(self.seq_len))
        ends = np.arange(1, len(self) + 1) * self.seq_len if self.padded else 0
        begins = self.spread(self.begins, ends - self.padding, places.dtype)
        positions[:] = np.subtract(places, begins, out=begins)

    def fill_segments(self, segments: np.ndarray) -> None:
        """Fill in the number of the span within its row, int32 `[B*L]`; -1 at padding."""
        numbers = np.arange(len(self.rows)) - self.offsets[self.rows]
        few = len(numbers) <= 1 << 7 or numbers.max() < 1 << 7
        segments[:] = self.spread(numbers, -1, np.int8 if few else _small(self.seq_len))

    def leave_out(self, values: np.ndarray, ignored: int) -> None:
        """Enter one value of `[B, L]`, in one block of memory, wherever the next token is no target."""
        flat = values.reshape(-1)
        inside = self.begins % self.seq_len != 0  # spans that do not begin a row
        if self.linked is not None:
            inside &= ~self.linked[self.rows]
        flat[self.begins[inside] - 1] = ignored
        if self.trained is not None:
            values[self.trained[:, 1:] == 0] = ignored
        values[~self.last_targets, -1] = ignored
        for begin, end in self.pads():
            flat[max(begin - 1, end - self.seq_len) : end] = ignored

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        trained = None if self.trained is None else np.packbits(self.trained.reshape(-1) != 0)
        facts = (self.offsets, self.lengths.astype(np.int32), self.seq_len)
        return _unpickled, (*facts, self.last_targets, self.linked, trained)


def _small(seq_len: int) -> np.dtype[Any]:
    return INT16 if seq_len < 1 << 15 else INT32


@lru_cache(maxsize=4)
def _places(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """0 to `count` - 1, as far as the dtype holds them, `[count]`; read-only."""
    places = np.arange(count).astype(dtype)
    places.flags.writeable = False
    return places


def _unpickled(
    offsets: np.ndarray,
    lengths: np.ndarray,
    seq_len: int,
    last_targets: np.ndarray,
    linked: np.ndarray | None,
    trained: np.ndarray | None,
) -> Layout:
    shape = (len(offsets) - 1, seq_len + 1)
    if trained is not None:
        trained = np.unpackbits(trained, count=shape[0] * shape[1]).reshape(shape)
    layout = Layout.of(offsets, lengths.astype(np.int64), seq_len)
    layout.last_targets, layout.linked, layout.trained = last_targets, linked, trained
    return layout


MOST_TOKENS = np.iinfo(np.int32).max
"""Kernels take `cu_seqlens` as int32, so a batch holds at most this many tokens."""


def cu_seqlens(segment_ids: np.ndarray) -> np.ndarray:
    """Start of each segment in the flattened batch, and the end of the last one.

    Args:
        segment_ids: integers `[B, L]` or `[L]`; a segment is a run of equal ids within a row.

    Returns:
        int32 `[N+1]` of N segments, including the padding of each row; the last one is `B*L`.

    >>> cu_seqlens(np.array([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0]])).tolist()
    [0, 3, 5, 6, 12]
    """
    rows = _rows(segment_ids)
    if rows.size > MOST_TOKENS:
        raise RecipeError(
            f"a batch of {rows.size:,} tokens: cu_seqlens counts at most {MOST_TOKENS:,} (int32)",
            hint="take the batch in parts",
        )
    if not rows.size:
        return np.zeros(1, np.int32)
    begins = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    return np.append(np.flatnonzero(begins), rows.size).astype(np.int32)


def attention_mask(segment_ids: np.ndarray) -> np.ndarray:
    """Causal attention within segments, as a mask for every pair of places.

    Args:
        segment_ids: integers `[B, L]` or `[L]`; the places of an id are contiguous in a row.

    Returns:
        bool `[B, 1, L, L]`, `B*L*L` bytes: True where the place of the third axis sees the place of the
        fourth. The axis of size 1 is for all heads. Every place sees itself, so no row of the mask is empty.

    >>> attention_mask(np.array([0, 0, 1, -1]))[0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 1]])
    """
    rows = _rows(segment_ids)
    same = rows[:, None, :, None] == rows[:, None, None, :]
    length = rows.shape[1]
    same &= np.tri(length, dtype=np.bool_)
    return same


def _rows(segment_ids: np.ndarray) -> np.ndarray:
    found = np.atleast_2d(segment_ids)
    if found.ndim != 2:
        raise RecipeError(
            f"segment_ids has the shape {list(found.shape)}: expected [L] or [B, L]",
            hint="flatten the dimensions of micro-batches first",
        )
    return found
