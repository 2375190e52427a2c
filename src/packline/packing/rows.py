"""Rows: a store's documents as training sequences of one length, chosen at reading time.

    store ── Selection ── packing ── spans ── copies ── arrays
             which, order  which row  of a batch       tokens, targets, position_ids, segment_ids [B, L]

Cost: opening reads nothing if the packing is closed form; then a batch costs the spans (tens of microseconds)
and the copying of its tokens. `Rows` survives fork and pickles as path and settings.

For stages of training that differ in length alone, rows are cut in k parts each:

    rows of 8               0 0 0 1 1 1 1 2
    cut to 4       0 0 0 1 | 1 1 1 2            row j is columns (j % k) * l of row j // k; k = L / l

Positions restart at the cut, and segments count from 0. The last token before a cut keeps its target, the
next token, if its document continues there. Short rows that are padding alone are kept.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, overload

import msgspec
import numpy as np

from packline.errors import RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.notebook import Notebook
from packline.packing.batch import FIELDS, CompactBatch, PlannedRows
from packline.packing.cache import Plans
from packline.packing.options import DEFAULTS, RowOptions, check_options
from packline.packing.packer import Counts, Packer, Spans
from packline.packing.row import Row, RowSlice
from packline.packing.selection import LeftOut, Selection
from packline.ragged import offsets_of
from packline.store.reader import StoreReader


class Rows(Notebook):
    """Rows of one packing of a selection of documents, made by `store.rows(...)`.

    Args:
        store: an opened store.
        seq_len: tokens per row, L.
        options: documents, their order, and how they fill rows.
        plans: folder of plans; default below the store.

    Raises:
        RecipeError: an invalid setting, or one that does not belong to the packing.
        StoreError: no document is left, or no row.

    >>> rows = store.rows(seq_len=5)
    >>> len(rows), rows[0].tokens.tolist(), rows[0].targets.tolist()
    (5, [0, 1, 0, 0, 1], [1, 0, 0, 1, 0])
    """

    settled: int | None = None
    """Rows that can be read of a store that is still being built; None: all."""

    def __init__(
        self,
        store: StoreReader,
        seq_len: int,
        options: RowOptions = DEFAULTS,
        *,
        plans: Plans = None,
    ) -> None:
        options = check_row_options(options)
        self.seq_len = check_seq_len(seq_len, store)
        self.store, self.options, self.plans = store, options, plans
        self.packing, self.boundary_loss = options.packing, bool(options.boundary_loss)
        self.pad_id = check_pad_id(options.pad_id, store)
        self.selection = Selection(store, options, plans=plans)
        self.packer = _make_packer(self.selection, self.seq_len, options, plans)
        self._whole: Rows | None = None
        self._count = len(self.packer)
        if not self._count:
            raise StoreError(
                f"{store.place}: no row of {seq_len:,} tokens: "
                f"{self.selection!r} gives none with {self.packing}",
                hint="choose a smaller seq_len, a smaller min_tail_fraction, or another overflow",
            )
        self.settings_fingerprint: str = settings_fingerprint(
            options, self.seq_len, self.pad_id, self.selection.identity
        )
        self.fingerprint: str = hash_value([store.manifest.checksum, self.settings_fingerprint])

    def __len__(self) -> int:
        return self._count

    @property
    def counts(self) -> Counts:
        """Costs of the packing for these documents; takes a pass over the lengths the first time."""
        return self.packer.counts

    @property
    def described(self) -> dict[str, Any]:
        """Settings of its documents that are not the default."""
        return self.selection.described

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Documents and tokens that each filter removed, in the order in which filters apply."""
        return self.selection.left_out

    def split_to(self, seq_len: int) -> Rows:
        """Cut these rows into shorter ones of `seq_len` tokens each, in the same order; nothing is copied.

        Raises:
            RecipeError: `seq_len` does not divide the length of these rows.
        """
        check_divides(self.seq_len, seq_len)
        whole, rows = self._whole or self, Rows.__new__(Rows)
        vars(rows).update(vars(whole))
        rows._whole, rows.seq_len = whole, int(seq_len)
        rows.packer = Cut(whole.packer, whole.selection, rows.seq_len)
        rows._count = len(rows.packer)
        rows.fingerprint = hash_value({"parent": whole.fingerprint, "seq_len": rows.seq_len})
        rows.settings_fingerprint = split_fingerprint(whole.settings_fingerprint, rows.seq_len)
        return rows

    def spans(self, indices: np.ndarray | Sequence[int] | int) -> Spans:
        """Documents that these rows hold, in the order of `indices`, int64 `[B]`.

        Raises:
            IndexError: no such row.
        """
        indices = np.atleast_1d(np.asarray(indices))
        if indices.dtype != np.int64:
            if indices.size and indices.dtype.kind not in "iu":
                raise IndexError(f"rows of dtype {indices.dtype}: expected integers")
            indices = indices.astype(np.int64)
        # Viewed as unsigned, negative numbers are the largest of all.
        if len(indices) and int(indices.view(np.uint64).max()) >= self._count:
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"row {wrong:,} of {len(self):,}")
        return self.packer.spans(indices)

    def read(
        self, indices: np.ndarray | Sequence[int] | int, fields: Sequence[str] = FIELDS
    ) -> dict[str, np.ndarray]:
        """Read a batch.

        Args:
            indices: row numbers, int64 `[B]`, in any order; repeats are allowed; or one number.
            fields: arrays to read; `loss_mask` in addition to the default ones.

        Returns:
            Each field as an array `[B, L]`; row b is row `indices[b]`.

        Raises:
            IndexError: no such row.
            CorruptStore: a token is outside of this store's vocabulary.
        """
        return CompactBatch.of(self.plan(indices), fields).arrays()

    def plan(self, rows: np.ndarray | Sequence[int] | int) -> PlannedRows:
        """Plan what reading these rows copies, int64 `[B]`."""
        return self._plan(self.spans(rows))

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is in none.

        Raises:
            IndexError: no such document in the store.
        """
        number = operator.index(document)
        if not 0 <= number < len(self.store.documents):
            raise IndexError(f"document {number:,} of {len(self.store.documents):,}")
        return self.packer.rows_of(number)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> RowSlice: ...
    def __getitem__(self, index: int | np.integer[Any] | slice) -> Row | RowSlice:
        """One row, by an int, a negative one or a NumPy one; or several, by a slice. Tokens are read on first
        use.

        Raises:
            IndexError: no such row.
        """
        if isinstance(index, slice):
            return RowSlice(self, range(len(self))[index])
        try:
            number = range(len(self))[operator.index(index)]
        except IndexError:
            raise IndexError(f"row {index:,} of {len(self):,}") from None
        return Row(self, number, self.packer.spans(np.array([number])))

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def _plan(self, spans: Spans) -> PlannedRows:
        pad_id, boundary_loss = self.pad_id, self.boundary_loss
        return PlannedRows.of(self.store, spans, self.seq_len, pad_id=pad_id, boundary_loss=boundary_loss)

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read the tokens of rows `start` to `stop` into the page cache, without waiting.

        Only for rows that lie together in the store: others are not asked for.
        """
        if self.options.shuffle_documents is None and (
            self.packing != "best_fit" or self.options.pack_window
        ):
            places = [0 if row == 0 else self.packer.last_place(row) for row in (start, stop)]
            first, last = self.selection.documents(np.array(places)).tolist()
            self.store.will_need(first, last)

    def last_document(self, rows: int) -> int:
        """Number of the last document that the first `rows` rows depend on, their targets included.

        Args:
            rows: number of rows, 1 to R.
        """
        if self.options.shuffle_documents is not None:
            return int(self.selection.documents(np.arange(len(self.selection))).max())
        place = np.array([self.packer.last_place(rows)])
        return int(self.selection.documents(place)[0])

    def __reduce__(self) -> Any:
        if self._whole is not None:
            return Rows.split_to, (self._whole, self.seq_len)
        return partial(Rows, plans=self.plans), (self.store, self.seq_len, self.options)

    def __repr__(self) -> str:
        rows = f"{len(self):,} rows of {self.seq_len:,} tokens"
        if self._whole is not None:
            return f"<{rows}, cut from {self._whole!r}>"
        return (
            f"<{rows}, {self.packing}: {len(self.selection):,} documents,"
            f" {self.selection.tokens:,} tokens of {self.store.place}>"
        )


def _make_packer(selection: Selection, seq_len: int, options: RowOptions, plans: Plans) -> Packer:
    if options.packing == "best_fit":
        from packline.packing.best_fit import BestFit

        return BestFit(selection, seq_len, options.pack_window, plans=plans)
    from packline.packing.in_order import Concat, Pad

    if options.packing == "pad":
        return Pad(selection, seq_len, overflow=options.overflow)
    return Concat(selection, seq_len, min_tail_fraction=options.min_tail_fraction)


def check_seq_len(seq_len: int, store: StoreReader) -> int:
    try:
        length = operator.index(seq_len)
    except TypeError:
        raise RecipeError(f"seq_len is {seq_len!r}: expected a whole number") from None
    tokens = store.manifest.tokens
    if length < 2 or (length > tokens and store.manifest.documents):
        raise RecipeError(f"seq_len is {length:,}: expected 2 to {tokens:,}, all tokens of the store")
    return length


def check_pad_id(pad_id: int | None, store: StoreReader) -> int:
    vocab_size = store.manifest.tokenizer.vocab_size
    if pad_id is None:
        return store.eod_id
    if not 0 <= pad_id < vocab_size:
        raise RecipeError(f"pad_id is {pad_id}: expected an id of the vocabulary, 0 to {vocab_size - 1:,}")
    return operator.index(pad_id)


def settings_fingerprint(options: RowOptions, seq_len: int, pad_id: int, selection: dict[str, Any]) -> str:
    """Fingerprint of the settings of rows, without their store, from the identity of their selection."""
    packing = options.packing
    return hash_value(
        {
            "selection": selection,
            "packing": packing,
            "seq_len": seq_len,
            "min_tail_fraction": float(options.min_tail_fraction) if packing == "concat" else None,
            "overflow": options.overflow if packing == "pad" else None,
            "pack_window": options.pack_window,
            "boundary_loss": bool(options.boundary_loss),
            "pad_id": pad_id,
        }
    )


def check_row_options(options: RowOptions) -> RowOptions:
    """Refuse values that no store can have, and a setting that the packing would ignore."""
    options = check_options(options)
    owners = {"min_tail_fraction": "concat", "pack_window": "best_fit", "overflow": "pad"}
    for name, packing in owners.items():
        value = getattr(options, name)
        if options.packing != packing and value != getattr(DEFAULTS, name):
            raise RecipeError(f"{name} is {value!r}, and packing is {options.packing}: {packing} has it")
    return options


def split_fingerprint(settings: str, seq_len: int) -> str:
    return hash_value([settings, seq_len])


def check_divides(whole: int, seq_len: int) -> None:
    if seq_len < 2 or whole % seq_len:
        raise RecipeError(
            f"cannot cut rows of {whole:,} tokens into rows of {seq_len:,}: expected a divisor, at least 2"
        )


CUT_BLOCK = 4096
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
        for start in range(0, len(self), CUT_BLOCK):
            spans = self.spans(np.arange(start, min(start + CUT_BLOCK, len(self))))
            shared += int(np.count_nonzero(np.diff(spans.offsets) > 1))
            places, found = np.unique(self._selection.places(spans.documents), return_counts=True)
            times[places] = np.minimum(times[places] + found, 2)
        return msgspec.structs.replace(
            self._whole.counts,
            rows=len(self),
            split_documents=int(np.count_nonzero(times > 1)),
            rows_with_several_documents=shared,
        )
