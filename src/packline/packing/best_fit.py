"""best_fit: whole documents combined so that rows are full, best fit decreasing over the whole selection.

    documents    6 6 6 2 2 2 2 2 13     tokens each, rows of 10

    full rows    row 0: document 8's first 10            a document longer than a row is cut every 10
    packed rows  row 1: 6 2 2    row 2: 6 2 2    row 3: 6 2 .      and its remainder (3) is a piece
                 row 4: 3 . . .

A document of n tokens gives n // L full rows and, if n % L is not 0, one piece of n % L, which `fit` packs.
Only documents longer than a row are split, no token is dropped, and the padding on ordinary text is below a
hundredth of a percent. Full rows come first, in the order of the selection; in a packed row the longest piece
comes first, pieces of equal length in order of place.

The plan holds the places of all pieces in order of length (longest first, stable: a counting sort), and from
`fit` a small table of which runs of that order make which rows. A row is found by a search in a few
thousand groups, and a document by a search among those of its length: no reverse index is kept.

Cost, with D documents: two sequential passes, about 50 ns per document in total; memory
D * (2 bytes, or 4 for L above 65,536) + P * (4 bytes, 8 from 2**32 documents) for P <= D pieces
+ 12 bytes per document of L tokens or more + 100 MB. On disk the same without the first term. A selection
of less than a million documents is packed in memory each time it is opened, in a twentieth of a second.

Limits: packing looks at lengths alone; it does not keep neighboring documents together.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.fingerprint import hash_value
from packline.packing.cache import CachedArrays, cached_arrays, plan_folder
from packline.packing.fit import Fit, fit
from packline.packing.packer import Counts, Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of

VERSION = 1
"""Version of the contents of a plan; another version makes plans anew."""
SMALL = 1 << 20
"""Number of documents below which making a plan again is cheaper than a file."""
SORT_BLOCK = 1 << 20
"""Pieces sorted at a time: the arrays of a step nearly fit into a processor's cache."""


class Pieces(NamedTuple):
    """Results of one pass over the lengths."""

    counts: np.ndarray
    """int64 `[L]`: pieces of each length; `counts[0]` documents that fill rows exactly."""
    remainders: np.ndarray
    """uint16 or uint32 `[D]`: the length of each document's piece, 0 for none; empty if not requested."""
    long_places: np.ndarray
    """uint32 or int64 `[K]`: places of the documents of L tokens or more, ascending."""
    long_rows: np.ndarray
    """int64 `[K+1]`: full rows before each of them; the last is the number of full rows."""
    tokens: int
    split: int
    """Documents with more than one row."""


class BestFit:
    """Rows of whole documents.

    Args:
        selection: documents to pack.
        seq_len: tokens per row, L.
        plan: plan of these documents; `of_store` finds or makes it.
        start: place of the first document.
        stop: one past the last place; None: all.
    """

    def __init__(
        self,
        selection: Selection,
        seq_len: int,
        plan: CachedArrays,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        self.selection, self.seq_len, self.plan = selection, seq_len, plan
        self._start = start
        self._count = (len(selection) if stop is None else stop) - start
        arrays = plan.arrays
        self._fit = Fit(*(np.asarray(arrays[name], np.int64) for name in Fit._fields))
        self._order = arrays["order"]
        self._long_places, self._long_rows = arrays["long_places"], arrays["long_rows"]
        self._full = int(self._long_rows[-1])
        """Rows of one document each; packed rows are numbered from here."""

    @classmethod
    def of_store(cls, selection: Selection, seq_len: int, *, plans: str | Path | None = None) -> BestFit:
        """Rows of a selection, whose plan is mapped, or made and kept.

        Args:
            selection: documents to pack.
            seq_len: tokens per row, L.
            plans: folder of plans; default below the store. If given, the plan of a small selection is
                written too.

        Raises:
            CorruptStore: the plan on disk is damaged, or belongs to another store.
            StoreError: a plan cannot be written.
        """
        fingerprint = plan_fingerprint(selection, seq_len)
        plan = cached_arrays(
            plan_folder(selection.store, fingerprint, plans),
            fingerprint,
            lambda: make_plan(selection.blocks(), len(selection), seq_len),
            save=plans is not None or len(selection) >= SMALL,
        )
        return cls(selection, seq_len, plan)

    def __len__(self) -> int:
        return self._full + int(self._fit.firsts[-1])

    @property
    def counts(self) -> Counts:
        """Costs of the packing, from the plan."""
        return Counts(**self.plan.facts["counts"])

    def spans(self, rows: np.ndarray) -> Spans:
        """Spans of these rows.

        Args:
            rows: row numbers, int64 `[B]`, each from 0 to R - 1.

        Raises:
            CorruptStore: the plan puts a document where its length does not belong.
        """
        if len(rows) == 1:
            return self._row(int(rows[0]))
        full = rows < self._full
        ranks, lengths, pieces = self._pieces(rows[~full] - self._full)
        each = np.ones(len(rows), np.int64)
        each[~full] = pieces
        offsets = offsets_of(each)
        whole = np.repeat(full, each)
        numbers = self._long_rows.searchsorted(rows[full], "right") - 1
        places = np.empty(len(whole), np.int64)
        places[whole], places[~whole] = self._long_places[numbers], self._order[ranks]
        all_lengths = np.full(len(whole), self.seq_len, np.int64)
        all_lengths[~whole] = lengths
        documents, begins, tokens = self._documents(places)
        starts = tokens - all_lengths  # a piece is the end of its document
        starts[whole] = (rows[full] - self._long_rows[numbers]) * self.seq_len
        self._check(starts, all_lengths, tokens)
        return Spans(offsets, documents, starts, all_lengths, begins, tokens)

    def _row(self, row: int) -> Spans:
        """Do the same for one row, in a third of the calls."""
        if row < self._full:
            number = int(self._long_rows.searchsorted(row, "right")) - 1
            lengths = np.array([self.seq_len])
            documents, begins, tokens = self._documents(self._long_places[number : number + 1])
            starts = np.array([(row - int(self._long_rows[number])) * self.seq_len])
        else:
            firsts, runs, bases, each, sizes = self._fit
            group = int(firsts.searchsorted(row - self._full, "right")) - 1
            run = slice(int(runs[group]), int(runs[group + 1]))
            many = each[run]
            ranks = _ranges(bases[run] + (row - self._full) * many, many)
            lengths = sizes[run].repeat(many)
            documents, begins, tokens = self._documents(self._order[ranks])
            starts = tokens - lengths  # a piece is the end of its document
        self._check(starts, lengths, tokens)
        return Spans(np.array([0, len(lengths)]), documents, starts, lengths, begins, tokens)

    def _check(self, starts: np.ndarray, lengths: np.ndarray, tokens: np.ndarray) -> None:
        """Refuse a plan that puts pieces where the lengths of their documents do not belong."""
        wrong = (starts < 0) | (starts % self.seq_len != 0) | (starts + lengths > tokens)
        if wrong.any():
            raise self._damaged(f"a document of {int(tokens[wrong][0]):,} tokens in the wrong row")

    def _pieces(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ranks and lengths of the pieces of packed rows, row by row, and the number of pieces per row."""
        firsts, runs, bases, each, lengths = self._fit
        groups = firsts.searchsorted(rows, "right") - 1
        run = _ranges(runs[groups], runs[groups + 1] - runs[groups])
        of_row = np.repeat(np.arange(len(rows)), runs[groups + 1] - runs[groups])
        many = each[run]
        ranks = _ranges(bases[run] + rows[of_row] * many, many)
        pieces = np.bincount(of_row, many, len(rows)).astype(np.int64)
        return ranks, np.repeat(lengths[run], many), pieces

    def _documents(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers, first tokens and lengths of the documents at these places; see `Selection.at`."""
        places = np.asarray(places, np.int64)
        if int(np.maximum.reduce(places, initial=0)) >= self._count:
            raise self._damaged(f"a document at place {int(places.max()):,} of {self._count:,}")
        return self.selection.at(places + self._start)

    def last_place(self, rows: int) -> int:
        """Place of the last document that the first `rows` rows depend on: packing looks at all."""
        return self._start + self._count - 1

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is not selected."""
        found = int(self.selection.places(np.array([document], np.int64))[0])
        place = found - self._start
        if found < 0 or not 0 <= place < self._count:
            return np.empty(0, np.int64)
        length = int(self.selection.lengths(found, found + 1)[0])
        full, rest = divmod(length, self.seq_len)
        number = int(self._long_places.searchsorted(place)) if full else 0
        rows = int(self._long_rows[number]) + np.arange(full)
        return np.append(rows, self._full + self._row_of_piece(place, rest)) if rest else rows

    def _row_of_piece(self, place: int, length: int) -> int:
        """Packed row of a document's piece: its rank, then the run that has this rank."""
        starts, lengths, run_of = self._by_rank
        first, last = np.searchsorted(-lengths, [-length, -length + 1])
        lowest = int(starts[first]) if first < len(starts) else len(self._order)
        highest = int(starts[last]) if last < len(starts) else len(self._order)
        rank = lowest + int(self._order[lowest:highest].searchsorted(place))
        if rank >= highest or int(self._order[rank]) != place:
            raise self._damaged(f"no piece of {length:,} tokens of the document at place {place:,}")
        run = int(run_of[int(starts.searchsorted(rank, "right")) - 1])
        return (rank - int(self._fit.bases[run])) // int(self._fit.each[run])

    @cached_property
    def _by_rank(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First rank, length and number of every run, in order of rank."""
        firsts, runs, bases, each, lengths = self._fit
        starts = bases + np.repeat(firsts[:-1], np.diff(runs)) * each
        order = np.argsort(starts)
        return starts[order], lengths[order], order

    def _damaged(self, found: str) -> CorruptStore:
        where = self.plan.folder or self.selection.store.place
        return CorruptStore(
            f"the plan of {where} does not fit the lengths in the store: found {found}",
            hint="packline verify checks the store; packline info --seq-len N --write checks the plan",
        )


def plan_fingerprint(selection: Selection, seq_len: int, pack_window: int | None = None) -> str:
    """Fingerprint of everything that a plan depends on."""
    settings = {"packing": "best_fit", "version": VERSION, "seq_len": seq_len, "pack_window": pack_window}
    return hash_value({**settings, "selection": selection.fingerprint})


def best_fit_counts(lengths: Iterable[np.ndarray], documents: int, seq_len: int) -> Counts:
    """Costs of best_fit, from a pass over the lengths; nothing is sorted or written."""
    pieces = _survey(lengths, documents, seq_len, keep=False)
    return _counts(documents, pieces, fit(pieces.counts, seq_len), seq_len)


def make_plan(lengths: Iterable[np.ndarray], documents: int, seq_len: int) -> CachedArrays:
    """Make the plan of documents in memory, from blocks of their lengths; see the module for its cost."""
    pieces = _survey(lengths, documents, seq_len, keep=True)
    fitted = fit(pieces.counts, seq_len)
    counts = _counts(documents, pieces, fitted, seq_len)
    arrays = {
        "order": _sort(pieces, seq_len),
        "long_places": pieces.long_places,
        "long_rows": pieces.long_rows,
        **fitted._asdict(),
    }
    facts = {"packing": "best_fit", "seq_len": seq_len, "counts": msgspec.to_builtins(counts)}
    return CachedArrays(arrays, facts)


def _place_type(documents: int) -> np.dtype:
    return np.dtype("<u4" if documents < 2**32 else "<i8")


def _survey(blocks: Iterable[np.ndarray], documents: int, seq_len: int, *, keep: bool) -> Pieces:
    """Run the pass over the lengths."""
    place_type = _place_type(documents)
    remainders = np.empty(documents if keep else 0, "<u2" if seq_len <= 1 << 16 else "<u4")
    counts = np.zeros(seq_len, np.int64)
    long_places, long_full = [np.empty(0, place_type)], [np.empty(0, np.uint32)]
    start = tokens = split = full_rows = 0
    for lengths in blocks:
        full = lengths // seq_len
        rest = lengths - full * seq_len
        counts += np.bincount(rest, minlength=seq_len)
        tokens += int(lengths.sum())
        split += int(np.count_nonzero(lengths > seq_len))
        full_rows += int(full.sum())
        if keep:
            long = np.flatnonzero(full)
            remainders[start : start + len(rest)] = rest
            long_places.append((long + start).astype(place_type))
            long_full.append(full[long].astype(np.uint32))
        start += len(rest)
    long_rows = offsets_of(np.concatenate(long_full) if keep else [full_rows])
    return Pieces(counts, remainders, np.concatenate(long_places), long_rows, tokens, split)


def _sort(pieces: Pieces, seq_len: int) -> np.ndarray:
    """Sort the places of all pieces, longest first and by place where equal: a counting sort in blocks.

    Each block is sorted separately, and each of its runs of one length goes after those of earlier blocks.
    """
    remainders, counts = pieces.remainders, pieces.counts.copy()
    counts[0] = 0
    order = np.empty(int(counts.sum()), _place_type(len(remainders)))
    # Position of the next piece of each length.
    following = np.cumsum(counts[::-1])[::-1] - counts
    for start in range(0, len(remainders), SORT_BLOCK):
        block = remainders[start : start + SORT_BLOCK]
        sorted_places = _stable_order(block)
        here = np.bincount(block, minlength=seq_len)
        sorted_places = sorted_places[here[0] :]
        here[0] = 0
        ends = np.cumsum(here)
        target = np.repeat(following - (ends - here), here)
        target += np.arange(len(target))
        order[target] = sorted_places + start
        following += here
    return order


def _stable_order(keys: np.ndarray) -> np.ndarray:
    """Indices that sort keys, equal ones in their order. NumPy has a radix sort for 16 bits only."""
    if keys.dtype.itemsize == 2:
        return np.argsort(keys, kind="stable")
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    return order[np.argsort((keys >> 16).astype(np.uint16)[order], kind="stable")]


def _counts(documents: int, pieces: Pieces, fitted: Fit, seq_len: int) -> Counts:
    packed = int(fitted.firsts[-1])
    rows = packed + int(pieces.long_rows[-1])
    in_row = np.add.reduceat(fitted.each, fitted.runs[:-1]) if packed else np.empty(0, np.int64)
    return Counts(
        rows=rows,
        documents=documents,
        tokens=pieces.tokens,
        padding_tokens=rows * seq_len - pieces.tokens,
        split_documents=pieces.split,
        rows_with_several_documents=int(np.diff(fitted.firsts)[in_row > 1].sum()),
    )


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenate the ranges `starts[i], starts[i] + 1, ...` of `counts[i]` numbers each.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    ranges = np.repeat(starts - (ends - counts), counts)
    ranges += np.arange(len(ranges))
    return ranges
