"""Interface of every packing: number of rows, contents of each, rows of a document, and costs.

    concat     documents back to back, cut every seq_len tokens      splits documents, pads or drops one tail
    best_fit   whole documents put where they fit best               pads a little, splits only the long ones
    pad        one document per row                                  pads much; truncates, splits or drops

A packing uses lengths alone, never tokens. Rows are numbered in the packing's own order, which is independent
of the order in which a trainer reads them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from packline.packing.spans import Spans

PACKINGS = ("concat", "best_fit", "pad")
OVERFLOWS = ("truncate", "split", "drop")


class Counts(msgspec.Struct, frozen=True):
    """Costs of a packing for one selection of documents. They must balance:

        tokens + padding_tokens == rows * seq_len + dropped_tokens + truncated_tokens

    >>> counts = Counts(rows=2, documents=3, tokens=9, padding_tokens=1, dropped_tokens=2)
    >>> counts.imbalance(seq_len=4)
    0
    """

    rows: int
    documents: int
    """Documents selected, including dropped ones."""
    tokens: int
    """Tokens of those documents, including boundary tokens."""
    padding_tokens: int = 0
    """Places of rows without a token."""
    dropped_tokens: int = 0
    """Tokens left out: a tail too short for a row (concat), documents too long for one (pad, drop)."""
    truncated_tokens: int = 0
    """Tokens cut off the ends of documents too long for a row (pad, truncate)."""
    split_documents: int = 0
    """Documents with tokens in more than one row."""
    rows_with_several_documents: int = 0

    def imbalance(self, seq_len: int) -> int:
        """Tokens that the counts leave unexplained; 0 for a correct packing."""
        held = self.rows * seq_len + self.dropped_tokens + self.truncated_tokens
        return self.tokens + self.padding_tokens - held


class Packer(Protocol):
    """A packing of one selection of documents into rows of one length."""

    @property
    def name(self) -> str:
        """Name in `packing=`."""

    @property
    def seq_len(self) -> int:
        """Tokens per row, L."""

    @property
    def counts(self) -> Counts:
        """Costs of the packing; may take a pass over the lengths the first time."""

    def __len__(self) -> int:
        """Number of rows, R."""

    def spans(self, rows: np.ndarray) -> Spans:
        """Spans of these rows, int64 `[B]`, each from 0 to R - 1, checked by the caller."""

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is not selected."""
