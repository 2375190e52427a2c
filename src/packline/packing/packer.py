"""Interface of every packing: settings in, spans and counts out.

    concat     documents back to back, cut every seq_len tokens      splits documents, pads or drops one tail
    best_fit   whole documents put where they fit best               pads a little, splits only the long ones
    pad        one document per row                                  pads much; truncates, splits or drops

`DocumentFilter` (documents of a store and their order) and `RowOptions` (the same, and how they fill rows)
are the requested settings, used by Python, run files, the command line, exports and the viewer alike;
`Selection` and `Rows` check them against a store.

A packing uses lengths alone, never tokens. Rows are numbered in the packing's own order, which is independent
of the order in which a trainer reads them. A packing gives spans, the ranges of documents that fill rows, and
everything else is made from them: arrays of tokens, masks, statistics, traces. A batch of rows is a few NumPy
arrays, so no Python object per span is needed on the way to the trainer:

    row 0 = document 7 whole, document 8's first 3      offsets    0     2  3
    row 1 = document 8 from its token 3                 documents  7  8  8
                                                        starts     0  0  3
                                                        lengths    5  3  8
                                                        begins     40 45 45
                                                        sizes      5  11 11

Places of a row that no span fills are padding, at its end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import Meta

from packline.conversion import convert
from packline.errors import RecipeError
from packline.ragged import offsets_of
from packline.recipe import Natural, Positive, Seed
from packline.where.grammar import canonical_where

Packing: TypeAlias = Literal["concat", "best_fit", "pad"]
SplitChoice: TypeAlias = Literal["train", "val", "test", "all"]
Overflow: TypeAlias = Literal["truncate", "split", "drop"]
Field: TypeAlias = Literal["tokens", "targets", "position_ids", "segment_ids", "loss_mask"]
"""Array of a batch."""
Keys: TypeAlias = Literal["packline", "huggingface"]
"""Convention for the names of the arrays."""
PACKINGS: tuple[Packing, ...] = get_args(Packing)
OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)


class DocumentFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Documents of a store, and their order.

    >>> DocumentFilter(labels=["web", "code", "web"]).canonical().labels
    ('code', 'web')
    """

    split: str = "train"
    """`train`, `val`, `test`, or `all`."""
    labels: str | tuple[str, ...] | None = None
    """Only documents with this label, or with one of these."""
    sources: str | tuple[str, ...] | None = None
    """Only documents of this source, or of these."""
    min_tokens: Natural | None = None
    """Only documents with at least n tokens, including boundary tokens."""
    max_tokens: Positive | None = None
    """Only documents with at most n tokens."""
    where: str | None = None
    """Only documents that meet a condition on their columns: `score >= 3 and language in ['de', 'en']`."""
    unique: bool | str | tuple[str, ...] = False
    """True: only the first of equal texts. Folders of other stores: also no text that one of them has."""
    exclude: str | tuple[str, ...] | None = None
    """List of documents to leave out, or several: Parquet, as `packline verify --write` makes it."""
    shuffle_documents: Seed | None = None
    """Seed for a shuffle of the documents before they are packed; None keeps the stored order."""

    def canonical(self) -> DocumentFilter:
        """The same choice in one form: equal choices of documents are equal values."""
        return DocumentFilter(
            split=self.split,
            labels=_names(self.labels),
            sources=_names(self.sources),
            min_tokens=self.min_tokens if self.min_tokens is not None and self.min_tokens > 1 else None,
            max_tokens=self.max_tokens,
            where=None if self.where is None else canonical_where(self.where),
            unique=(self.unique if isinstance(self.unique, bool) else _names(self.unique)) or False,
            exclude=_names(self.exclude) or None,
            shuffle_documents=self.shuffle_documents,
        )


class RowOptions(DocumentFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Documents of a store, and how they fill rows."""

    packing: Packing = "concat"
    """`concat`, `best_fit` or `pad`; `packline info --seq-len` reports the cost of each."""
    min_tail_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """For concat: smallest share of a row for which the last row is kept, padded."""
    pack_window: Positive | None = None
    """For best_fit: units of a source that are packed together; None: all documents."""
    overflow: Overflow = "truncate"
    """For pad: `truncate`, `split` or `drop` documents longer than a row."""
    boundary_loss: bool = False
    """True if the end of a document predicts the beginning of the next."""
    pad_id: Natural | None = None
    """Token at padding; None: the end-of-document token."""


DEFAULTS = RowOptions()
"""Rows of the split train, packed by `concat`."""

Choice = TypeVar("Choice", bound=DocumentFilter)


def check_choice(choice: Choice) -> Choice:
    """Refuse values that no store can have; return the choice, with the values of Python's own types.

    Raises:
        RecipeError: a value of the wrong type or out of its limits, or limits that contradict each other.

    >>> check_choice(RowOptions(packing="bestfit"))
    Traceback (most recent call last):
    packline.errors.RecipeError: packing is 'bestfit': expected best_fit, concat or pad
    """
    given = {name: _plain(getattr(choice, name)) for name in choice.__struct_fields__}
    choice = convert(given, type(choice))
    least, most = choice.min_tokens, choice.max_tokens
    if least is not None and most is not None and most < least:
        raise RecipeError(f"max_tokens is {most}: expected at least min_tokens, {least}")
    return choice


def _plain(value: Any) -> Any:
    """A value without the types of NumPy and paths."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if isinstance(value, np.generic) else value


def _names(names: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """One name or several, deduplicated and sorted."""
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(sorted(set(names)))


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of B rows, S in total, in their order within the rows.

    >>> documents, starts, lengths = np.array([7, 8, 8]), np.array([0, 0, 3]), np.array([5, 3, 8])
    >>> begins, sizes = np.array([40, 45, 45]), np.array([5, 11, 11])
    >>> spans = Spans(np.array([0, 2, 3]), documents, starts, lengths, begins, sizes)
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

    def row(self, index: int) -> Spans:
        """Spans of one row."""
        return self.part(index, index + 1)

    def part(self, first: int, last: int) -> Spans:
        """Spans of rows `first` to `last`."""
        start, stop = int(self.offsets[first]), int(self.offsets[last])
        following = None if self.following is None else self.following[first:last]
        return Spans(
            self.offsets[first : last + 1] - start,
            self.documents[start:stop],
            self.starts[start:stop],
            self.lengths[start:stop],
            self.begins[start:stop],
            self.sizes[start:stop],
            following,
        )


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

    def last_place(self, rows: int) -> int:
        """Place of the last document that the first `rows` rows depend on, at least one of them."""
