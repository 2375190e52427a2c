"""One row, some of the rows in order, and the rows of which a trainer learns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

import numpy as np

from packline.notebook import Notebook
from packline.packing.batch import FIELDS, CompactBatch, PlannedRows
from packline.packing.layout import cu_seqlens
from packline.packing.packer import Spans

if TYPE_CHECKING:
    from packline.packing.rows import Rows

READ_WITH = {
    "tokens": ("tokens",),
    "targets": ("tokens", "targets"),
    "loss_mask": ("tokens", "targets", "loss_mask"),
    "position_ids": ("position_ids", "segment_ids"),
    "segment_ids": ("position_ids", "segment_ids"),
}
"""Arrays of one row that are filled with each: those that it is made from, or that cost little beside it."""


class RowSpan(NamedTuple):
    """Range of a document in a row."""

    document: int
    start: int
    length: int


class Row(Notebook):
    """One training sequence of L tokens. Its arrays are read on first use.

    Arrays raise `CorruptStore` if a token is outside of the store's vocabulary.
    """

    __slots__ = ("_arrays", "_found", "_planned", "index", "source")

    def __init__(self, source: Rows, index: int, found: Spans) -> None:
        self.source, self.index, self._found = source, index, found
        self._planned: PlannedRows | None = None
        self._arrays: dict[str, np.ndarray] = {}

    @property
    def tokens(self) -> np.ndarray:
        """int32 `[L]`; padding at its end is `pad_id`."""
        return self._array("tokens")

    @property
    def targets(self) -> np.ndarray:
        """int32 `[L]`: the next token, -100 where there is no loss."""
        return self._array("targets")

    @property
    def position_ids(self) -> np.ndarray:
        """int32 `[L]`: offset within the span; padding counts from 0 again."""
        return self._array("position_ids")

    @property
    def segment_ids(self) -> np.ndarray:
        """int32 `[L]`: number of the span within the row; -1 at padding."""
        return self._array("segment_ids")

    @property
    def loss_mask(self) -> np.ndarray:
        """uint8 `[L]`: 1 where there is a target."""
        return self._array("loss_mask")

    @property
    def text(self) -> str:
        """Decoded tokens without padding; special tokens are shown as their strings."""
        return self.source.store.decode(self.tokens[: int(self._found.lengths.sum())])

    @property
    def spans(self) -> tuple[RowSpan, ...]:
        """Spans of the row, in order."""
        found = self._found
        return tuple(map(RowSpan, found.documents.tolist(), found.starts.tolist(), found.lengths.tolist()))

    def cu_seqlens(self) -> np.ndarray:
        """Start of each span, and the end of the row, int32 `[N+1]`; padding is a separate segment."""

        return cu_seqlens(self.segment_ids)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest segment, padding included."""
        return int(np.diff(self.cu_seqlens()).max())

    def __len__(self) -> int:
        return self.source.seq_len

    def __repr__(self) -> str:
        padding, learned = int((self.segment_ids < 0).sum()), int(self.loss_mask.sum())
        spans = len(self._found.documents)
        return (
            f"<Row {self.index:,}: {len(self):,} tokens in {spans:,} span{'s' * (spans != 1)}, "
            f"{learned:,} with a target, {padding:,} of padding>"
        )

    def _array(self, field: str) -> np.ndarray:
        if field not in self._arrays:
            if self._planned is None:
                self._planned = self.source._plan(self._found)
            compact = CompactBatch.of(self._planned, READ_WITH[field])
            for name, array in compact.arrays().items():
                self._arrays.setdefault(name, array[0])
        return self._arrays[field]


class RowSlice(Sequence[Row]):
    """Some of the rows, in order: `rows[10:20]`. Nothing is read before a row is used."""

    def __init__(self, source: Rows, numbers: range) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> RowSlice: ...
    def __getitem__(self, index: int | slice) -> Row | RowSlice:
        if isinstance(index, slice):
            return RowSlice(self.source, self.numbers[index])
        try:
            return self.source[self.numbers[index]]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None

    def read(self, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        """Arrays `[B, L]` of all of them; see `Rows.read`."""
        return self.source.read(np.array(self.numbers, np.int64), fields)

    def __repr__(self) -> str:
        return f"<{len(self):,} of {self.source!r}>"


BLOCK_TOKENS = 1 << 20


def untrained_rows(rows: Rows, last_targets: bool = True) -> np.ndarray:
    """Numbers of the rows without a target, of which a trainer learns nothing: int64, sorted.

    Args:
        last_targets: False leaves the target of a row's last token out of account.

    Cost: a pass over the spans, and with a loss mask one over the tokens.

    >>> untrained_rows(store.rows(seq_len=5)).tolist()
    []
    """
    found = [np.empty(0, np.int64)]
    step = max(BLOCK_TOKENS // rows.seq_len, 1)
    for start in range(0, len(rows), step):
        numbers = np.arange(start, min(start + step, len(rows)))
        if not rows.store.has_loss:  # then the second token of a span is a target
            spans = rows.spans(numbers)
            held = np.arange(len(numbers)).repeat(np.diff(spans.offsets))
            numbers = np.delete(numbers, held[spans.lengths > 1])
        if len(numbers):
            mask = rows.read(numbers, ("loss_mask",))["loss_mask"]
            found.append(numbers[~mask[:, : None if last_targets else -1].any(axis=1)])
    return np.concatenate(found)
