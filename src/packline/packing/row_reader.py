"""What can be asked of rows, whichever way they are made: one row, a batch, what it is of.

    spans(indices)    which documents a batch of rows holds
    read(indices)     its arrays [B, L]: the spans, filled
    rows[i]           a row of its own, whose arrays are read as they are asked for
    rows_of(document) the way back

`RowSource` is what a loader relies on; `RowReader` is the part that packed and rechunked rows share.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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


class Row:
    """One training sequence of L tokens. Tokens are read when they are first asked for, and so is the rest.

    Args:
        source: the rows that it is one of.
        index: its number among them.
        found: its spans.

    Arrays raise `CorruptStore` where the tokens are no tokens of the store's vocabulary.
    """

    __slots__ = ("_arrays", "_found", "index", "source")

    def __init__(self, source: RowReader, index: int, found: Spans) -> None:
        self.source, self.index, self._found = source, index, found
        self._arrays: dict[str, np.ndarray] = {}

    @property
    def tokens(self) -> np.ndarray:
        """int32 `[L]`; padding at its end is `pad_id`."""
        return self._array("tokens")

    @property
    def targets(self) -> np.ndarray:
        """int32 `[L]`: the next token, -100 where nothing is to be learned."""
        return self._array("targets")

    @property
    def position_ids(self) -> np.ndarray:
        """int32 `[L]`: place within the span; padding counts from 0 again."""
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
    def spans(self) -> tuple[Span, ...]:
        """What it is made of, in order."""
        found = self._found
        return tuple(map(Span, found.documents.tolist(), found.starts.tolist(), found.lengths.tolist()))

    def cu_seqlens(self) -> np.ndarray:
        """Where each span begins, and the end of the row; padding is a segment of its own. int32 `[N+1]`."""
        from packline.packing.masks import cu_seqlens

        return cu_seqlens(self.segment_ids)

    @property
    def max_seqlen(self) -> int:
        """The longest segment, padding included."""
        return int(np.diff(self.cu_seqlens()).max())

    def __len__(self) -> int:
        return self.source.seq_len

    def __repr__(self) -> str:
        padding, learned = int((self.segment_ids < 0).sum()), int(self.loss_mask.sum())
        return (
            f"<Row {self.index:,}: {len(self):,} tokens in {len(self._found.documents):,} spans, "
            f"{learned:,} with a target, {padding:,} of padding>"
        )

    def _repr_html_(self) -> str:
        """How a notebook shows it: its tokens, documents, padding."""
        from packline.viewing.html import notebook
        from packline.viewing.pages import NOTEBOOK_TOKENS, row_page

        return notebook(row_page(self.source, self.index, most=NOTEBOOK_TOKENS))

    def _array(self, field: str) -> np.ndarray:
        if field not in self._arrays:
            # Who asks for one of the others asks for most of them.
            fields = ("tokens",) if field == "tokens" else ALL_FIELDS
            for name, array in self.source._fill(self._found, fields).items():
                self._arrays.setdefault(name, array[0])
        return self._arrays[field]


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
        """One row, by an int, a negative one or a NumPy one. Its tokens are read when they are asked for.

        Raises:
            IndexError: no such row.
        """
        try:
            number = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        return Row(self, number, self._spans(np.array([number])))

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
