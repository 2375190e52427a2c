"""Interface of every packing: spans and counts of the rows that documents fill.

A packing uses lengths alone, never tokens. Rows are numbered in the packing's own order. Everything else is
made from their spans: arrays of tokens, masks, statistics, traces.

    row 0 = document 7 whole, document 8's first 3      offsets    0     2  3
    row 1 = document 8 from its token 3                 documents  7  8  8
                                                        starts     0  0  3
                                                        lengths    5  3  8
                                                        begins     40 45 45
                                                        sizes      5  11 11

Places of a row that no span fills are padding, at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from packline.ragged import offsets_of


@dataclass(slots=True, eq=False)
class Spans:
    """Spans of B rows, S in total, in their order within the rows.

    >>> documents, starts, lengths = np.array([7, 8, 8]), np.array([0, 0, 3]), np.array([5, 3, 8])
    >>> begins, sizes = np.array([40, 45, 45]), np.array([5, 11, 11])
    >>> spans = Spans(np.array([0, 2, 3]), documents, starts, lengths, begins, sizes)
    >>> len(spans), spans.filled.tolist()
    (2, [8, 8])
    """

    offsets: np.ndarray
    """int64 `[B+1]`: row b has spans `offsets[b]` to `offsets[b+1]`."""
    documents: np.ndarray
    """int64 `[S]`: number in `store.documents`."""
    starts: np.ndarray
    """int64 `[S]`: first token within the document."""
    lengths: np.ndarray
    """int64 `[S]`: tokens, at least 1."""
    begins: np.ndarray
    """int64 `[S]`: first token of the document, counted through all shards of the store (`token_firsts`)."""
    sizes: np.ndarray
    """int64 `[S]`: tokens of the whole document."""
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


class Counts(msgspec.Struct, frozen=True):
    """Costs of a packing for one selection of documents. They must balance:

    tokens + padding_tokens == rows * seq_len + dropped_tokens + truncated_tokens

    """

    rows: int
    documents: int
    tokens: int
    """Tokens of those documents, including boundary tokens."""
    padding_tokens: int = 0
    dropped_tokens: int = 0
    """Tokens left out: a tail too short for a row (concat), documents too long for one (pad, drop)."""
    truncated_tokens: int = 0
    """Tokens cut off the ends of documents too long for a row (pad, truncate)."""
    split_documents: int = 0
    rows_with_several_documents: int = 0


class Packer(Protocol):
    """A packing of one selection of documents into rows of one length."""

    @property
    def seq_len(self) -> int: ...

    @property
    def counts(self) -> Counts:
        """Costs of the packing; may take a pass over the lengths the first time."""

    def __len__(self) -> int: ...

    def spans(self, rows: np.ndarray) -> Spans:
        """Spans of these rows, int64 `[B]`, each from 0 to R - 1, checked by the caller."""

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is not selected."""

    def last_place(self, rows: int) -> int:
        """Place of the last document that the first `rows` rows depend on, at least one of them."""
