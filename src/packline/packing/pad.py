"""pad: one document per row, the rest of the row padding. Documents too long for a row are cut or left out.

    seq_len 4      truncate       split          drop
    0 0 0          0 0 0 -        0 0 0 -        0 0 0 -
    1 1 1 1 1 1    1 1 1 1        1 1 1 1        2 - - -
    2              2 - - -        1 1 - -
                                  2 - - -

`truncate` is closed form. `split` and `drop` need the number of rows before a document: `sums_of`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from packline.packing.offsets import Sums, sums_of
from packline.packing.options import Overflow
from packline.packing.packer import Counts, Spans
from packline.packing.selection import Selection


class Pad:
    """Rows of one document each."""

    def __init__(self, selection: Selection, seq_len: int, *, overflow: Overflow = "truncate") -> None:
        self.selection, self.seq_len, self.overflow = selection, seq_len, overflow
        self._sums: Sums | None = None
        """Sums of rows; None for one row per document."""
        if overflow != "truncate":
            self._sums = sums_of(selection, self._rows_each, f"rows, {overflow} at {seq_len}")

    def _rows_each(self, lengths: np.ndarray) -> np.ndarray:
        if self.overflow == "split":
            return -(-lengths // self.seq_len)
        return (
            (lengths <= self.seq_len).astype(np.int64) if self.overflow == "drop" else np.ones_like(lengths)
        )

    def __len__(self) -> int:
        return len(self.selection) if self._sums is None else self._sums.total

    def spans(self, rows: np.ndarray) -> Spans:
        places, before = (rows, rows) if self._sums is None else self._sums.find(rows)
        documents, begins, sizes = self.selection.at(places)
        starts = (rows - before) * self.seq_len
        lengths = np.minimum(sizes - starts, self.seq_len)
        return Spans(np.arange(len(rows) + 1), documents, starts, lengths, begins, sizes)

    def last_place(self, rows: int) -> int:
        last = np.array([rows - 1])
        return int((last if self._sums is None else self._sums.find(last)[0])[0])

    def rows_of(self, document: int) -> np.ndarray:
        place = self.selection.places(np.array([document], np.int64))
        if place[0] < 0:
            return np.empty(0, np.int64)
        first = int((place if self._sums is None else self._sums.before(place))[0])
        return first + np.arange(int(self._rows_each(self.selection.at(place)[2])[0]))

    @cached_property
    def counts(self) -> Counts:
        held = over = split = 0
        for lengths in self.selection.blocks():
            long = lengths > self.seq_len
            held += int(lengths[~long].sum())
            over += int(lengths[long].sum())
            split += int(np.count_nonzero(long))
        dropped = over if self.overflow == "drop" else 0
        truncated = over - split * self.seq_len if self.overflow == "truncate" else 0
        return Counts(
            rows=len(self),
            documents=len(self.selection),
            tokens=held + over,
            padding_tokens=len(self) * self.seq_len - (held + over - dropped - truncated),
            dropped_tokens=dropped,
            truncated_tokens=truncated,
            split_documents=split if self.overflow == "split" else 0,
        )
