"""Rows: a store's documents as training sequences of one length, chosen at reading time.

    store ── Selection ── packing ── spans ── fill ── arrays
             which, order  which row  of a batch       tokens, targets, position_ids, segment_ids [B, L]

    rows = store.rows(seq_len=4096, packing="best_fit")
    rows[7].tokens                     # one row
    rows.read(np.array([7, 1, 3]))     # a batch, as a loader reads it

Another length or packing is another `rows` call over the same store; nothing but plans is written. Rows are
numbered in the packing's order; `packline.loading` shuffles, mixes and distributes them.

Cost: opening reads nothing if the packing is closed form; then a batch costs the spans (tens of microseconds)
and the copying of its tokens. `Rows` survives fork and pickles as path and settings.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.packing.packer import PACKINGS, Counts, Packer
from packline.packing.row_reader import Row, RowReader, RowSource, Span
from packline.packing.selection import Selection
from packline.packing.spans import Spans
from packline.store.reader import Store

if TYPE_CHECKING:
    from packline.packing.rechunk import Rechunked


__all__ = ["Row", "RowSource", "Rows", "Span"]


class Rows(RowReader):
    """Rows of one packing of a selection of documents, made by `store.rows(...)`.

    Args:
        store: an opened store.
        seq_len: tokens per row, L.
        packing: `concat`, `best_fit` or `pad`; `packline pack` reports the cost of each.
        split: `train`, `val`, or `all`.
        labels: only documents with one of these labels.
        sources: only documents of these sources.
        min_tokens: only documents with at least n tokens, including boundary tokens.
        max_tokens: only documents with at most n tokens.
        shuffle_documents: seed for a shuffle of the documents before they are packed; None keeps the stored
            order. The loader determines the order of the rows.
        min_tail_fraction: for concat: smallest share of L for which the last row is kept, padded.
        overflow: for pad: treatment of documents longer than L: `truncate`, `split` or `drop`.
        boundary_loss: True if the end of a document predicts the beginning of the next.
        pad_id: token at padding; default the end-of-document token.
        plans: folder of plans; default below the store.

    Raises:
        RecipeError: an invalid setting, or one that does not belong to the packing.
        StoreError: no document is left, or no row.
    """

    def __init__(
        self,
        store: Store,
        seq_len: int,
        *,
        packing: str = "concat",
        split: str = "train",
        labels: str | Sequence[str] | None = None,
        sources: str | Sequence[str] | None = None,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        shuffle_documents: int | None = None,
        min_tail_fraction: float = 0.5,
        overflow: str = "truncate",
        boundary_loss: bool = False,
        pad_id: int | None = None,
        plans: str | Path | None = None,
    ) -> None:
        if packing not in PACKINGS:
            raise RecipeError(f"packing is {packing!r}: expected one of {', '.join(PACKINGS)}")
        _check_belongs(packing, min_tail_fraction, overflow)
        self.seq_len = check_seq_len(seq_len, store)
        self.store, self.packing, self.boundary_loss = store, packing, bool(boundary_loss)
        self.pad_id = _check_pad_id(pad_id, store)
        filters: dict[str, Any] = {
            "split": split,
            "labels": labels,
            "sources": sources,
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "shuffle_documents": shuffle_documents,
            "plans": plans,
        }
        self.selection = Selection(store, **filters)
        self._settings = filters | {
            "packing": packing,
            "min_tail_fraction": min_tail_fraction,
            "overflow": overflow,
            "boundary_loss": boundary_loss,
            "pad_id": pad_id,
        }
        self._packer = _make_packer(self.selection, self.seq_len, packing, min_tail_fraction, overflow, plans)
        self._count = len(self._packer)
        if not self._count:
            raise StoreError(
                f"{store.path}: no row of {seq_len:,} tokens: {self.selection!r} gives none with {packing}",
                hint="choose a smaller seq_len, a smaller min_tail_fraction, or another overflow",
            )
        self.fingerprint: str = hash_value(
            {
                "selection": self.selection.fingerprint,
                "packing": packing,
                "seq_len": self.seq_len,
                "min_tail_fraction": float(min_tail_fraction) if packing == "concat" else None,
                "overflow": overflow if packing == "pad" else None,
                "boundary_loss": self.boundary_loss,
                "pad_id": self.pad_id,
            }
        )

    def __len__(self) -> int:
        return self._count

    @property
    def counts(self) -> Counts:
        """Costs of the packing for these documents; takes a pass over the lengths the first time."""
        return self._packer.counts

    def rechunk(self, seq_len: int) -> Rechunked:
        """Cut these rows into shorter ones of `seq_len` tokens each, in the same order; nothing is copied.

        Raises:
            RecipeError: `seq_len` does not divide the length of these rows.
        """
        from packline.packing.rechunk import Rechunked

        return Rechunked(self, seq_len)

    def _spans(self, indices: np.ndarray) -> Spans:
        return self._packer.spans(indices)

    def _rows_of(self, document: int) -> np.ndarray:
        return self._packer.rows_of(document)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return partial(Rows, self.store, self.seq_len, **self._settings), ()

    def _repr_html_(self) -> str:
        """Render for a notebook: number, settings, and the beginning of the first row."""
        from packline.viewing.html import render_notebook
        from packline.viewing.token_pages import rows_page

        return render_notebook(rows_page(self))

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} rows of {self.seq_len:,} tokens, {self.packing}:"
            f" {len(self.selection):,} documents, {self.selection.tokens:,} tokens of {self.store.path}>"
        )


def _make_packer(
    selection: Selection,
    seq_len: int,
    packing: str,
    min_tail_fraction: float,
    overflow: str,
    plans: str | Path | None,
) -> Packer:
    if packing == "concat":
        from packline.packing.concat import Concat

        return Concat(selection, seq_len, min_tail_fraction=min_tail_fraction)
    if packing == "pad":
        from packline.packing.pad import Pad

        return Pad(selection, seq_len, overflow=overflow)
    from packline.packing.best_fit import BestFit

    return BestFit(selection, seq_len, plans=plans)


def check_seq_len(seq_len: int, store: Store) -> int:
    """Row length as an int.

    Raises:
        RecipeError: below 2, above all tokens of the store, or not a whole number.
    """
    try:
        length = operator.index(seq_len)
    except TypeError:
        raise RecipeError(f"seq_len is {seq_len!r}: expected a whole number") from None
    tokens = store.manifest.tokens
    if length < 2 or (length > tokens and store.manifest.documents):
        raise RecipeError(f"seq_len is {length:,}: expected 2 to {tokens:,}, all tokens of the store")
    return length


def _check_pad_id(pad_id: int | None, store: Store) -> int:
    vocab_size = store.manifest.tokenizer.vocab_size
    if pad_id is None:
        return store.eod_id
    if not 0 <= pad_id < vocab_size:
        raise RecipeError(f"pad_id is {pad_id}: expected an id of the vocabulary, 0 to {vocab_size - 1:,}")
    return operator.index(pad_id)


def _check_belongs(packing: str, min_tail_fraction: float, overflow: str) -> None:
    """Reject a setting that the packing would ignore."""
    if packing != "concat" and min_tail_fraction != 0.5:
        raise RecipeError(
            f"min_tail_fraction is {min_tail_fraction}, and packing is {packing}: concat has it"
        )
    if packing != "pad" and overflow != "truncate":
        raise RecipeError(f"overflow is {overflow!r}, and packing is {packing}: pad has it")
