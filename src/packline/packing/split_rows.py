"""Rows cut into shorter ones of equal length; nothing is copied."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from packline.errors import RecipeError
from packline.fingerprint import hash_value
from packline.packing.packer import Counts, Spans
from packline.packing.rows import RowReader, Rows
from packline.ragged import offsets_of

SPLIT_BLOCK = 4096
"""Rows per step of a pass over cut rows."""


class SplitRows(RowReader):
    """Rows of `seq_len` tokens, k from each row of the parent: for stages that differ in length alone.

        rows of 8                    0 0 0 1 1 1 1 2
        split to 4          0 0 0 1 | 1 1 1 2            row j is columns (j % k) * l of row j // k; k = L / l

    The documents and their order are the same, so a stage of 4,096 tokens and one of 32,768 pass over equal
    data. A short row is determined by its own spans: positions restart at the cut, and segments count from 0.
    The last token before a cut keeps its target, the next token, if its document continues there.

    Cost: the spans of the long row, cut. Only tokens of the short row are read. If a long row is padded, some
    short rows may be padding alone: they are kept, since a row is found by arithmetic, and they have no
    targets, so they do not change a mean over the batch's tokens. A target across a boundary
    (`boundary_loss`) that falls on a cut is kept if the next span starts its document.

    Args:
        parent: rows of k times as many tokens.
        seq_len: tokens per row, l.

    Raises:
        RecipeError: `seq_len` does not divide the parent's, or is below 2.
    """

    def __init__(self, parent: Rows, seq_len: int) -> None:
        check_divides(parent.seq_len, seq_len)
        self.parent, self.seq_len = parent, int(seq_len)
        self.store, self.packing, self.selection = parent.store, parent.packing, parent.selection
        self.pad_id, self.boundary_loss = parent.pad_id, parent.boundary_loss
        self._each = parent.seq_len // self.seq_len
        self.fingerprint: str = hash_value({"parent": parent.fingerprint, "seq_len": self.seq_len})
        self.settings_fingerprint: str = split_fingerprint(parent.settings_fingerprint, self.seq_len)

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read these rows; see `Rows.will_need`."""
        self.parent.will_need(start // self._each, -(-stop // self._each))

    def __len__(self) -> int:
        return len(self.parent) * self._each

    def split_to(self, seq_len: int) -> SplitRows:
        """These rows cut into shorter ones; see `Rows.split_to`."""
        check_divides(self.seq_len, seq_len)
        return SplitRows(self.parent, seq_len)

    def _spans(self, indices: np.ndarray) -> Spans:
        whole = self.parent.spans(indices // self._each)
        cut = indices % self._each * self.seq_len  # first column of each row
        counts = np.diff(whole.offsets)
        sums = offsets_of(whole.lengths)
        begins = sums[:-1] - np.repeat(sums[whole.offsets[:-1]] + cut, counts)  # relative to the cut
        ends = begins + whole.lengths
        kept = (ends > 0) & (begins < self.seq_len)
        held = offsets_of(kept)
        skipped = np.maximum(-begins, 0)[kept]
        return Spans(
            held[whole.offsets],
            whole.documents[kept],
            whole.starts[kept] + skipped,
            np.minimum(ends[kept], self.seq_len) - np.maximum(begins[kept], 0),
            self._following(whole, cut, begins),
        )

    def _following(self, whole: Spans, cut: np.ndarray, begins: np.ndarray) -> np.ndarray:
        """Document that starts right after a row, within the parent's row or after it."""
        following = np.full(len(cut), -1, np.int64)
        behind = np.flatnonzero((begins == self.seq_len) & (whole.starts == 0))
        following[whole.offsets.searchsorted(behind, "right") - 1] = whole.documents[behind]
        if whole.following is not None:
            last = cut == self.parent.seq_len - self.seq_len
            following[last] = whole.following[last]
        return following

    def _rows_of(self, document: int) -> np.ndarray:
        rows = self.parent.rows_of(document)
        candidates = (rows[:, None] * self._each + np.arange(self._each)).reshape(-1)
        spans = self._spans(candidates)
        held = np.repeat(np.arange(len(candidates)), np.diff(spans.offsets))
        return candidates[np.unique(held[spans.documents == document])]

    @cached_property
    def counts(self) -> Counts:
        """Costs of the packing; takes a pass over all spans, with one byte per document."""
        before = self.parent.counts
        times = np.zeros(len(self.selection), np.uint8)  # rows that hold a document: 0, 1, or 2 for more
        shared = 0
        for start in range(0, len(self), SPLIT_BLOCK):
            spans = self._spans(np.arange(start, min(start + SPLIT_BLOCK, len(self))))
            shared += int(np.count_nonzero(np.diff(spans.offsets) > 1))
            places, found = np.unique(self.selection.places(spans.documents), return_counts=True)
            times[places] = np.minimum(times[places] + found, 2)
        return Counts(
            rows=len(self),
            documents=before.documents,
            tokens=before.tokens,
            padding_tokens=before.padding_tokens,
            dropped_tokens=before.dropped_tokens,
            truncated_tokens=before.truncated_tokens,
            split_documents=int(np.count_nonzero(times > 1)),
            rows_with_several_documents=shared,
        )

    def __reduce__(self) -> tuple[Any, tuple[Rows, int]]:
        return SplitRows, (self.parent, self.seq_len)

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {self.seq_len:,} tokens, cut from {self.parent!r}>"


def split_fingerprint(settings: str, seq_len: int) -> str:
    """Fingerprint of the settings of cut rows, from that of the whole ones."""
    return hash_value([settings, seq_len])


def check_divides(whole: int, seq_len: int) -> None:
    """Reject rows that cannot be cut.

    Raises:
        RecipeError: `seq_len` does not divide the length of the rows.
    """
    if seq_len < 2 or whole % seq_len:
        raise RecipeError(
            f"cannot cut rows of {whole:,} tokens into rows of {seq_len:,}: expected a divisor, at least 2"
        )
