"""Layout: the places of a batch that its spans fill, and those that are padding.

A batch of B rows is treated as `B*L` consecutive places. Rows of 6, two spans in the first:

    place     0 1 2 3 4 5 | 6 7 8 9 10 11       begins  0 3 6
    span      0 0 0 1 1 . | 2 2 2 2 2 2         padding 1 0

Cost: ten microseconds per batch of a hundred spans, twenty if there is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packline.errors import RecipeError
from packline.packing.spans import Spans
from packline.ragged import offsets_of


@dataclass(frozen=True, slots=True)
class Layout:
    """Spans of B rows in their places.

    >>> spans = Spans(np.array([0, 2, 3]), np.array([7, 8, 9]), np.zeros(3, int), np.array([3, 2, 6]))
    >>> layout = Layout.of(spans, 6)
    >>> layout.begins.tolist(), layout.padding.tolist(), layout.spread(np.array([1, 2, 3]), 0).tolist()
    ([0, 3, 6], [1, 0], [1, 1, 1, 2, 2, 0, 3, 3, 3, 3, 3, 3])
    """

    spans: Spans
    seq_len: int
    rows: np.ndarray
    """int64 `[S]`: row of each span."""
    begins: np.ndarray
    """int64 `[S]`: place of a span's first token."""
    padding: np.ndarray
    """int64 `[B]`: places at the end of each row that no span fills."""
    padded: bool
    """True if there is any padding."""

    @classmethod
    def of(cls, spans: Spans, seq_len: int) -> Layout:
        """Lay spans out.

        Raises:
            RecipeError: a row is fuller than `seq_len`.
        """
        if len(spans) == 1:
            return cls._of_row(spans, seq_len)
        counts = spans.offsets[1:] - spans.offsets[:-1]
        # Methods, not functions, of NumPy here and below: half the cost for arrays this small.
        rows = np.arange(len(counts)).repeat(counts)
        ends = offsets_of(spans.lengths)
        padding = seq_len - (ends[spans.offsets[1:]] - ends[spans.offsets[:-1]])
        sizes = padding.tolist()
        if min(sizes, default=0) < 0:
            row = sizes.index(min(sizes))
            raise _too_full(row, seq_len - sizes[row], seq_len)
        begins = ends[:-1]
        padded = any(sizes)
        if padded:
            begins = begins + (padding.cumsum() - padding)[rows]
        return cls(spans, seq_len, rows, begins, padding, padded)

    @classmethod
    def _of_row(cls, spans: Spans, seq_len: int) -> Layout:
        """Do the same for one row, in a third of the calls."""
        ends = spans.lengths.cumsum()
        filled = int(ends[-1]) if len(ends) else 0
        if filled > seq_len:
            raise _too_full(0, filled, seq_len)
        rows = np.zeros(len(ends), np.int64)
        return cls(spans, seq_len, rows, ends - spans.lengths, np.array([seq_len - filled]), filled < seq_len)

    def __len__(self) -> int:
        return len(self.spans) * self.seq_len

    def pads(self) -> list[tuple[int, int]]:
        """Start and end of the padding of each row that has any."""
        if not self.padded:
            return []
        rows = np.flatnonzero(self.padding)
        ends = (rows + 1) * self.seq_len
        return list(zip((ends - self.padding[rows]).tolist(), ends.tolist(), strict=True))

    def spread(self, of_spans: np.ndarray, of_padding: np.ndarray | int) -> np.ndarray:
        """Repeat a value per span at all its places, and a value per row at all its padding.

        Args:
            of_spans: values per span, `[S]`, from -1 to L.
            of_padding: values per row, `[B]`, or one for all rows, from -1 to L.

        Returns:
            int16 `[B*L]`, or int32 where rows are too long for it: half the memory takes half the time.
        """
        kind = np.int16 if self.seq_len <= np.iinfo(np.int16).max else np.int32
        if not self.padded:
            return of_spans.astype(kind).repeat(self.spans.lengths)
        # One piece per span, and after the spans of each row one for its padding, which may be empty.
        spans = np.arange(len(self.rows)) + self.rows
        padding = self.spans.offsets[1:] + np.arange(len(self.padding))
        values = np.empty(len(spans) + len(padding), kind)
        lengths = np.empty(len(values), np.int64)
        values[spans], values[padding] = of_spans, of_padding
        lengths[spans], lengths[padding] = self.spans.lengths, self.padding
        return values.repeat(lengths)


def _too_full(row: int, tokens: int, seq_len: int) -> RecipeError:
    return RecipeError(
        f"row {row} of the batch has {tokens:,} tokens: expected at most seq_len={seq_len:,}",
        hint="give the seq_len that the spans were made for",
    )
