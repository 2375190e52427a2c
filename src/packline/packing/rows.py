"""Rows: a store's documents as training sequences of one length, chosen at reading time.

    store ── Selection ── packing ── spans ── copies ── arrays
             which, order  which row  of a batch       tokens, targets, position_ids, segment_ids [B, L]

    rows = store.rows(seq_len=4096, packing="best_fit")
    rows[7].tokens                     # one row, whose arrays are read on first use
    rows.read(np.array([7, 1, 3]))     # a batch, as a loader reads it
    rows.spans(np.array([7, 1, 3]))    # the documents in these rows
    rows.rows_of(12)                   # the rows that hold a document
    rows.split_to(1024)                # the same rows, cut into shorter ones

Another length or packing is another `rows` call over the same store; nothing but plans is written. Rows are
numbered in the packing's order; `packline.loading` shuffles, mixes and distributes them. `RowSource` is the
interface that a loader relies on.

Cost: opening reads nothing if the packing is closed form; then a batch costs the spans (tens of microseconds)
and the copying of its tokens. `Rows` survives fork and pickles as path and settings.
"""

from __future__ import annotations

import operator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from packline.errors import RecipeError, StoreError
from packline.fingerprint import hash_value
from packline.notebook import Notebook
from packline.packing.cache import PlanMemory
from packline.packing.documents import Selection
from packline.packing.filtering import LeftOut
from packline.packing.options import DEFAULTS, RowOptions, check_options
from packline.packing.packer import Counts, Packer, Spans
from packline.packing.row_reader import RowReader
from packline.ragged import offsets_of
from packline.store.reader import StoreReader

Plans: TypeAlias = str | Path | PlanMemory | None
"""Folder of plans; None: below the store. A `PlanMemory` for a store that is still being built."""


class Rows(RowReader, Notebook):
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
    def left_out(self) -> tuple[LeftOut, ...]:
        """Documents and tokens that each filter removed, in the order in which filters apply."""
        return self.selection.left_out

    def split_to(self, seq_len: int) -> SplitRows:
        """Cut these rows into shorter ones of `seq_len` tokens each, in the same order; nothing is copied.

        Raises:
            RecipeError: `seq_len` does not divide the length of these rows.
        """
        return SplitRows(self, seq_len)

    def _spans(self, indices: np.ndarray) -> Spans:
        return self.packer.spans(indices)

    def _rows_of(self, document: int) -> np.ndarray:
        return self.packer.rows_of(document)

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

    def __reduce__(self) -> tuple[Any, tuple[StoreReader, int, RowOptions]]:
        return partial(Rows, plans=self.plans), (self.store, self.seq_len, self.options)

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} rows of {self.seq_len:,} tokens, {self.packing}:"
            f" {len(self.selection):,} documents, {self.selection.tokens:,} tokens of {self.store.place}>"
        )


def _make_packer(selection: Selection, seq_len: int, options: RowOptions, plans: Plans) -> Packer:
    if options.packing == "concat":
        from packline.packing.concat import Concat

        return Concat(selection, seq_len, min_tail_fraction=options.min_tail_fraction)
    if options.packing == "pad":
        from packline.packing.pad import Pad

        return Pad(selection, seq_len, overflow=options.overflow)
    if options.pack_window is not None:
        from packline.packing.windows import WindowedBestFit

        return WindowedBestFit(selection, seq_len, options.pack_window, plans=plans)
    if isinstance(plans, PlanMemory):
        raise RecipeError(
            "packing is best_fit, and the store is still being built: its rows depend on all documents",
            hint="pack_window=8 packs the documents of 8 units together; or wait for the build to finish",
        )
    from packline.packing.best_fit import BestFit

    return BestFit.of_store(selection, seq_len, plans=plans)


def check_seq_len(seq_len: int, store: StoreReader) -> int:
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


def check_pad_id(pad_id: int | None, store: StoreReader) -> int:
    """Token at padding.

    Raises:
        RecipeError: no id of the vocabulary.
    """
    vocab_size = store.manifest.tokenizer.vocab_size
    if pad_id is None:
        return store.eod_id
    if not 0 <= pad_id < vocab_size:
        raise RecipeError(f"pad_id is {pad_id}: expected an id of the vocabulary, 0 to {vocab_size - 1:,}")
    return operator.index(pad_id)


def settings_fingerprint(options: RowOptions, seq_len: int, pad_id: int, selection: dict[str, Any]) -> str:
    """Fingerprint of the settings of rows, without their store.

    Args:
        selection: identity of the selection.
    """
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
    """Refuse values that no store can have, and a setting that the packing would ignore.

    Raises:
        RecipeError: names the setting.
    """
    options = check_options(options)
    packing = options.packing
    if packing != "concat" and options.min_tail_fraction != 0.5:
        raise RecipeError(
            f"min_tail_fraction is {options.min_tail_fraction}, and packing is {packing}: concat has it"
        )
    if packing != "best_fit" and options.pack_window is not None:
        raise RecipeError(f"pack_window is {options.pack_window}, and packing is {packing}: best_fit has it")
    if packing != "pad" and options.overflow != "truncate":
        raise RecipeError(f"overflow is {options.overflow!r}, and packing is {packing}: pad has it")
    return options


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
            whole.begins[kept],
            whole.sizes[kept],
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
