"""What can be asked of rows, whichever way they are made: one row, a batch, what it is of.

    spans(indices)    which documents a batch of rows holds
    read(indices)     its arrays [B, L]: the spans, filled
    rows[i]           a row of its own, for people
    rows_of(document) the way back

`RowSource` is what a loader relies on; `RowReader` is the part that packed and rechunked rows share.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from packline.packing.arrays import ALL_FIELDS, FIELDS, fill
from packline.packing.spans import Spans
from packline.store.reader import Store


class RowSource(Protocol):
    """What a loader needs of rows: how many, which tokens, where from, and who they are."""

    @property
    def store(self) -> Store:
        """Where the tokens are."""

    @property
    def seq_len(self) -> int:
        """Tokens of a row, L."""

    @property
    def fingerprint(self) -> str:
        """The hash of all that decides what is in which row."""

    def __len__(self) -> int:
        """Rows, R."""

    def read(self, indices: np.ndarray, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        """Arrays `[B, L]` of these rows, int64 `[B]`."""

    def spans(self, indices: np.ndarray) -> Spans:
        """Which documents these rows hold."""

    def rows_of(self, document: int) -> np.ndarray:
        """Every row with tokens of this document, sorted int64."""

    def rechunk(self, seq_len: int) -> RowSource:
        """The same rows cut to a length that divides theirs."""


class Span(NamedTuple):
    """A stretch of a document in a row."""

    document: int
    """Number in `store.documents`."""
    start: int
    """Its first token within the document."""
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One training sequence of L tokens."""

    index: int
    tokens: np.ndarray
    """int32 `[L]`; padding at its end is `pad_id`."""
    targets: np.ndarray
    """int32 `[L]`: the next token, -100 where nothing is to be learned."""
    position_ids: np.ndarray
    """int32 `[L]`: place within the span; padding counts from 0 again."""
    segment_ids: np.ndarray
    """int32 `[L]`: number of the span within the row; -1 at padding."""
    loss_mask: np.ndarray
    """uint8 `[L]`: 1 where there is a target."""
    spans: tuple[Span, ...]
    source: RowReader | None = field(default=None, repr=False)
    """The rows that it is one of, where it was read from some."""

    def cu_seqlens(self) -> np.ndarray:
        """Where each span begins, and the end of the row; padding is a segment of its own. int32 `[N+1]`."""
        from packline.packing.masks import cu_seqlens

        return cu_seqlens(self.segment_ids)

    @property
    def max_seqlen(self) -> int:
        """The longest segment, padding included."""
        return int(np.diff(self.cu_seqlens()).max())

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        padding, learned = int((self.segment_ids < 0).sum()), int(self.loss_mask.sum())
        return (
            f"<Row {self.index:,}: {len(self):,} tokens in {len(self.spans):,} spans, "
            f"{learned:,} with a target, {padding:,} of padding>"
        )

    def _repr_html_(self) -> str | None:
        """How a notebook shows it: its tokens, documents, padding; nothing where its store is unknown."""
        if self.source is None:
            return None
        from packline.viewing.html import notebook
        from packline.viewing.pages import NOTEBOOK_TOKENS, row_page

        return notebook(row_page(self.source, self.index, most=NOTEBOOK_TOKENS))


class RowReader(ABC):
    """What all rows can do, given what they hold: `_spans`, `_rows_of` and a length of their own."""

    store: Store
    seq_len: int
    pad_id: int
    boundary_loss: bool

    @abstractmethod
    def __len__(self) -> int:
        """Rows, R."""

    @abstractmethod
    def _spans(self, indices: np.ndarray) -> Spans:
        """Spans of rows that exist."""

    @abstractmethod
    def _rows_of(self, document: int) -> np.ndarray:
        """Rows of a document that exists."""

    def spans(self, indices: np.ndarray) -> Spans:
        """Which documents these rows hold, in the order of `indices`, int64 `[B]`.

        Raises:
            IndexError: no such row.
        """
        indices = np.asarray(indices)
        if indices.dtype != np.int64:
            if indices.size and indices.dtype.kind not in "iu":
                raise IndexError(f"rows of dtype {indices.dtype}: expected integers")
            indices = indices.astype(np.int64)
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"row {wrong:,} of {len(self):,}")
        return self._spans(indices)

    def read(self, indices: np.ndarray, fields: Sequence[str] = FIELDS) -> dict[str, np.ndarray]:
        """Read a batch.

        Args:
            indices: rows, int64 `[B]`, in any order, each as often as it is named.
            fields: which arrays; `loss_mask` besides the default ones.

        Returns:
            Each field as an array `[B, L]`, row b of it from row `indices[b]`.

        Raises:
            IndexError: no such row.
            CorruptStore: the tokens are no tokens of this store's vocabulary.
        """
        return self._fill(self.spans(indices), fields)

    def rows_of(self, document: int) -> np.ndarray:
        """Every row with tokens of this document, sorted int64; empty where it is in none.

        Raises:
            IndexError: no such document in the store.
        """
        number = operator.index(document)
        if not 0 <= number < len(self.store.documents):
            raise IndexError(f"document {number:,} of {len(self.store.documents):,}")
        return self._rows_of(number)

    def __getitem__(self, index: int | np.integer[Any]) -> Row:
        """One row, by an int, a negative one or a NumPy one.

        Raises:
            IndexError: no such row.
        """
        try:
            number = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        spans = self._spans(np.array([number]))
        columns = (spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist())
        arrays = {field: array[0] for field, array in self._fill(spans, ALL_FIELDS).items()}
        return Row(index=number, spans=tuple(map(Span, *columns)), source=self, **arrays)

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def _fill(self, spans: Spans, fields: Sequence[str]) -> dict[str, np.ndarray]:
        """Arrays of rows with these spans."""
        return fill(
            self.store,
            spans,
            self.seq_len,
            fields=fields,
            pad_id=self.pad_id,
            boundary_loss=self.boundary_loss,
        )
