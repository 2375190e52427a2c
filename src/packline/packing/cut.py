"""Rows of another packing in k parts each, for stages of training that differ in length alone.

    rows of 8               0 0 0 1 1 1 1 2
    cut to 4       0 0 0 1 | 1 1 1 2            row j is columns (j % k) * l of row j // k; k = L / l

Positions restart at the cut, and segments count from 0. The last token before a cut keeps its target, the
next token, if its document continues there. Short rows that are padding alone are kept.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from packline.packing.packer import Counts, Packer, Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of

BLOCK = 4096
"""Rows per step of a pass over cut rows."""


class Cut:
    """Rows of `seq_len` tokens, k from each row of `whole`."""

    def __init__(self, whole: Packer, selection: Selection, seq_len: int) -> None:
        self.seq_len, self._whole, self._selection = seq_len, whole, selection
        self._each = whole.seq_len // seq_len

    def __len__(self) -> int:
        return len(self._whole) * self._each

    def spans(self, rows: np.ndarray) -> Spans:
        whole = self._whole.spans(rows // self._each)
        cut = rows % self._each * self.seq_len  # first column of each row
        counts = np.diff(whole.offsets)
        sums = offsets_of(whole.lengths)
        begins = sums[:-1] - np.repeat(sums[whole.offsets[:-1]] + cut, counts)  # relative to the cut
        ends = begins + whole.lengths
        kept = (ends > 0) & (begins < self.seq_len)
        skipped = np.maximum(-begins, 0)[kept]
        return Spans(
            offsets_of(kept)[whole.offsets],
            whole.documents[kept],
            whole.starts[kept] + skipped,
            np.minimum(ends[kept], self.seq_len) - np.maximum(begins[kept], 0),
            whole.begins[kept],
            whole.sizes[kept],
            self._following(whole, cut, begins),
        )

    def _following(self, whole: Spans, cut: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Document that starts right after a row, within the long row or after it."""
        following = np.full(len(cut), -1, np.int64)
        behind = np.flatnonzero((begins == self.seq_len) & (whole.starts == 0))
        following[whole.offsets.searchsorted(behind, "right") - 1] = whole.documents[behind]
        if whole.following is not None:
            last = cut == self._whole.seq_len - self.seq_len
            following[last] = whole.following[last]
        return following

    def rows_of(self, document: int) -> np.ndarray:
        rows = self._whole.rows_of(document)
        candidates = (rows[:, None] * self._each + np.arange(self._each)).reshape(-1)
        spans = self.spans(candidates)
        held = np.repeat(np.arange(len(candidates)), np.diff(spans.offsets))
        return candidates[np.unique(held[spans.documents == document])]

    def last_place(self, rows: int) -> int:
        return self._whole.last_place(-(-rows // self._each))

    @cached_property
    def counts(self) -> Counts:
        times = np.zeros(len(self._selection), np.uint8)  # rows that hold a document: 0, 1, or 2 for more
        shared = 0
        for start in range(0, len(self), BLOCK):
            spans = self.spans(np.arange(start, min(start + BLOCK, len(self))))
            shared += int(np.count_nonzero(np.diff(spans.offsets) > 1))
            places, found = np.unique(self._selection.places(spans.documents), return_counts=True)
            times[places] = np.minimum(times[places] + found, 2)
        return msgspec.structs.replace(
            self._whole.counts,
            rows=len(self),
            split_documents=int(np.count_nonzero(times > 1)),
            rows_with_several_documents=shared,
        )
