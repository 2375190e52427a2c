"""Spans: the ranges of documents that fill rows.

Every packing gives spans, and everything else is made from them: arrays of tokens, masks, statistics, traces.
A batch of rows is a few NumPy arrays, so no Python object per span is needed on the way to the trainer:

    row 0 = document 7 whole, document 8's first 3      offsets    0     2  3
    row 1 = document 8 from its token 3                 documents  7  8  8
                                                        starts     0  0  3
                                                        lengths    5  3  8

Places of a row that no span fills are padding, at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packline.ragged import offsets_of


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of B rows, S in total, in their order within the rows.

    >>> spans = Spans(np.array([0, 2, 3]), np.array([7, 8, 8]), np.array([0, 0, 3]), np.array([5, 3, 8]))
    >>> len(spans), spans.filled.tolist(), spans.row(1).documents.tolist()
    (2, [8, 8], [8])
    """

    offsets: np.ndarray
    """int64 `[B+1]`: row b has spans `offsets[b]` to `offsets[b+1]`."""
    documents: np.ndarray
    """int64 `[S]`: number in `store.documents`."""
    starts: np.ndarray
    """int64 `[S]`: first token within the document."""
    lengths: np.ndarray
    """int64 `[S]`: tokens, at least 1."""
    following: np.ndarray | None = None
    """int64 `[B]`: document whose first token comes after the row's last one, if that one ends its document;
    -1 if there is none. None: rows do not follow one another (best fit, pad)."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def filled(self) -> np.ndarray:
        """Tokens of each row that are not padding, int64 `[B]`."""
        ends = offsets_of(self.lengths)
        return ends[self.offsets[1:]] - ends[self.offsets[:-1]]

    def row(self, index: int) -> Spans:
        """Spans of one row."""
        start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
        following = None if self.following is None else self.following[index : index + 1]
        return Spans(
            np.array([0, stop - start], np.int64),
            self.documents[start:stop],
            self.starts[start:stop],
            self.lengths[start:stop],
            following,
        )
