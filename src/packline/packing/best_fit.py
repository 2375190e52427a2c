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

`fit` computes best fit decreasing on counts of lengths. Longest first, each piece goes into the row with the
least room that still holds it; if there is none, a row is opened. The contents of a row depend on lengths
alone, so equal rows are treated as one: a group is a range of row numbers with the same pieces in each:

    3 pieces of 6     rows 0 1 2 opened, 1 each          group [0, 3)  6          room 4
    5 pieces of 2     2 each in rows 0 and 1,            group [0, 2)  6 2 2      room 0
                      the rest in row 2                  group [2, 3)  6 2        room 2

A group with room r is the best fit for a length l if r is the least room with r >= l. After one piece its row
has r - l, and while that is l or more it is again the least: so each of its rows takes r // l pieces at once.
That is exactly best fit decreasing, which depends on rooms and never on row numbers. It costs one step each
time a group takes a length: about 20,000 for rows of 4,096 tokens, for a million documents as for a billion
(below 0.1 s), and never more than there are pieces.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.fingerprint import hash_value
from packline.packing.cache import CachedArrays, cached_arrays, plan_folder
from packline.packing.documents import Selection
from packline.packing.packer import Counts, Spans
from packline.ragged import offsets_of

WORD = 10
"""Rooms are kept as bits, 2**WORD in one int, so that both levels are only a few hundred bytes."""

Link = tuple["Link | None", int, int, int]
"""Contents of a group's rows: the pieces before, then length, pieces per row, rank of row 0's first one."""


class Fit(NamedTuple):
    """Rows as G groups, and the contents of a row of each as runs of equal lengths, E in total.

    Row r of group g, in run e (`runs[g] <= e < runs[g+1]`), holds the pieces with the ranks
    `bases[e] + r * each[e]` and the `each[e] - 1` after it, all of `lengths[e]` tokens. Rank 0 is the first
    of the longest pieces.
    """

    firsts: np.ndarray
    """int64 `[G+1]`: first row of each group; the last is the number of rows."""
    runs: np.ndarray
    """int64 `[G+1]`: first run of each group; the last is the number of runs."""
    bases: np.ndarray
    """int64 `[E]`; may be negative, since rows count from 0 and not from the group's first."""
    each: np.ndarray
    """int64 `[E]`: pieces per row."""
    lengths: np.ndarray
    """int64 `[E]`: tokens per piece, descending within a group."""


class _Rooms:
    """Set of ints below a bound that finds its least member from a given number."""

    def __init__(self, bound: int) -> None:
        self._words = [0] * ((bound >> WORD) + 1)
        self._summary = 0

    def add(self, room: int) -> None:
        self._words[room >> WORD] |= 1 << (room & ((1 << WORD) - 1))
        self._summary |= 1 << (room >> WORD)

    def remove(self, room: int) -> None:
        self._words[room >> WORD] ^= 1 << (room & ((1 << WORD) - 1))
        if not self._words[room >> WORD]:
            self._summary ^= 1 << (room >> WORD)

    def least(self, start: int) -> int:
        """Least member that is `start` or more; -1 if there is none."""
        word, bit = start >> WORD, start & ((1 << WORD) - 1)
        found = self._words[word] >> bit
        if found:
            return start + _lowest(found)
        above = self._summary >> (word + 1)
        if not above:
            return -1
        word += 1 + _lowest(above)
        return (word << WORD) + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def fit(counts: np.ndarray, seq_len: int) -> Fit:
    """Lay out pieces, best fit decreasing.

    Args:
        counts: number of pieces of each length, integers `[seq_len + 1]` or shorter; `counts[0]` is ignored.
        seq_len: tokens per row, at least the length of the longest piece.

    >>> fitted = fit(np.array([0, 0, 5, 0, 0, 0, 3]), 10)
    >>> fitted.firsts.tolist(), fitted.lengths.tolist(), fitted.each.tolist()
    ([0, 2, 3], [6, 2, 6, 2], [1, 2, 1, 1])
    """
    groups: dict[int, list[tuple[int, int, Link | None]]] = {0: []}
    rooms = _Rooms(seq_len)
    rows = rank = 0

    def put(start: int, stop: int, link: Link | None, room: int) -> None:
        stack = groups.setdefault(room, [])
        if room and not stack:
            rooms.add(room)
        stack.append((start, stop, link))

    # Row numbers never affect the result; taking the latest group of a room is the simplest choice.
    for length in (np.flatnonzero(counts[1:])[::-1] + 1).tolist():
        left = int(counts[length])
        while left:
            room = rooms.least(length)
            if room < 0:
                room, each = seq_len, seq_len // length
                start, stop, link = rows, rows - (-left // each), None
                rows = stop
            else:
                stack = groups[room]
                start, stop, link = stack.pop()
                if not stack:
                    rooms.remove(room)
                each = room // length
            whole = min(stop - start, left // each)
            if whole:
                middle = start + whole
                put(start, middle, (link, length, each, rank - start * each), room - each * length)
                start, rank, left = middle, rank + whole * each, left - whole * each
            if left and start < stop:  # fewer than `each` remain
                put(start, start + 1, (link, length, left, rank - start * left), room - left * length)
                start, rank, left = start + 1, rank + left, 0
            if start < stop:
                put(start, stop, link, room)
    return _collect([group for stack in groups.values() for group in stack], rows)


def _collect(groups: list[tuple[int, int, Link | None]], rows: int) -> Fit:
    """Arrange the groups in the order of their rows, with their links unrolled."""
    groups.sort(key=lambda group: group[0])
    firsts, runs = array("q"), array("q", [0])
    lengths, each, bases = array("q"), array("q"), array("q")
    for start, _, link in groups:
        held = []
        while link is not None:
            held.append(link)
            link = link[0]
        for _, length, many, base in reversed(held):
            lengths.append(length)
            each.append(many)
            bases.append(base)
        firsts.append(start)
        runs.append(len(lengths))
    firsts.append(rows)
    return Fit(*(np.array(column, np.int64) for column in (firsts, runs, bases, each, lengths)))


VERSION = 1
"""Version of the contents of a plan; another version makes plans anew."""
SMALL = 1 << 20
"""Number of documents below which making a plan again is cheaper than a file."""
SORT_BLOCK = 1 << 20
"""Pieces sorted at a time: the arrays of a step nearly fit into a processor's cache."""


class LengthBlocks(Protocol):
    """The part of a selection that packing needs."""

    def __len__(self) -> int:
        """Documents, D."""

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """All lengths in order: the place of a block's first document, and the block, int64."""


class Pieces(NamedTuple):
    """Results of one pass over the lengths."""

    counts: np.ndarray
    """int64 `[L]`: pieces of each length; `counts[0]` documents that fill rows exactly."""
    remainders: np.ndarray | None
    """uint16 or uint32 `[D]`: the length of each document's piece, 0 for none; None if not requested."""
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
        plans: folder of plans; default below the store. If given, the plan of a small selection is written
            too.

    Raises:
        CorruptStore: the plan on disk is damaged, or belongs to another store.
        StoreError: a plan cannot be written.
    """

    name: ClassVar[str] = "best_fit"

    def __init__(self, selection: Selection, seq_len: int, *, plans: str | Path | None = None) -> None:
        self.selection, self.seq_len = selection, seq_len
        self.fingerprint = plan_fingerprint(selection, seq_len)
        folder = plan_folder(selection.store, self.fingerprint, plans)
        self.plan: CachedArrays = cached_arrays(
            folder,
            self.fingerprint,
            lambda: make_plan(selection, seq_len),
            save=plans is not None or len(selection) >= SMALL,
        )
        arrays = self.plan.arrays
        self._fit = Fit(*(np.asarray(arrays[name], np.int64) for name in Fit._fields))
        self._order = arrays["order"]
        self._long_places, self._long_rows = arrays["long_places"], arrays["long_rows"]
        self._full = int(self._long_rows[-1])
        """Rows of one document each; packed rows are numbered from here."""

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
        documents, tokens = self._documents(places)
        starts = tokens - all_lengths  # a piece is the end of its document
        starts[whole] = (rows[full] - self._long_rows[numbers]) * self.seq_len
        self._check(starts, all_lengths, tokens)
        return Spans(offsets, documents, starts, all_lengths)

    def _row(self, row: int) -> Spans:
        """Do the same for one row, in a third of the calls."""
        if row < self._full:
            number = int(self._long_rows.searchsorted(row, "right")) - 1
            lengths = np.array([self.seq_len])
            documents, tokens = self._documents(np.asarray(self._long_places[number : number + 1], np.int64))
            starts = np.array([(row - int(self._long_rows[number])) * self.seq_len])
        else:
            firsts, runs, bases, each, sizes = self._fit
            group = int(firsts.searchsorted(row - self._full, "right")) - 1
            run = slice(int(runs[group]), int(runs[group + 1]))
            many = each[run]
            ranks = _ranges(bases[run] + (row - self._full) * many, many)
            lengths = sizes[run].repeat(many)
            documents, tokens = self._documents(np.asarray(self._order[ranks], np.int64))
            starts = tokens - lengths
        self._check(starts, lengths, tokens)
        return Spans(np.array([0, len(lengths)]), documents, starts, lengths)

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

    def _documents(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and lengths of the documents at these places."""
        if len(places) and int(places.max()) >= len(self.selection):
            raise self._damaged(f"a document at place {int(places.max()):,} of {len(self.selection):,}")
        return self.selection.at(places)

    def rows_of(self, document: int) -> np.ndarray:
        """All rows with tokens of this document, sorted int64; empty if it is not selected."""
        place = int(self.selection.places(np.array([document], np.int64))[0])
        if place < 0:
            return np.empty(0, np.int64)
        length = int(self.selection.lengths(place, place + 1)[0])
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
        where = self.plan.folder or self.selection.store.path
        return CorruptStore(
            f"the plan of {where} does not fit the lengths in the store: found {found}",
            hint="packline verify checks the store; packline pack --write checks the plan",
        )


def plan_fingerprint(selection: Selection, seq_len: int) -> str:
    """Fingerprint of everything that a plan depends on."""
    settings = {"packing": "best_fit", "version": VERSION, "seq_len": seq_len}
    return hash_value({**settings, "selection": selection.fingerprint})


def best_fit_counts(selection: LengthBlocks, seq_len: int) -> Counts:
    """Costs of best_fit, from a pass over the lengths; nothing is sorted or written."""
    pieces = _survey(selection, seq_len, keep=False)
    return _counts(selection, pieces, fit(_without_zero(pieces.counts), seq_len), seq_len)


def make_plan(selection: LengthBlocks, seq_len: int) -> CachedArrays:
    """Make the plan of a selection, in memory; see the module for its cost."""
    pieces = _survey(selection, seq_len, keep=True)
    fitted = fit(_without_zero(pieces.counts), seq_len)
    counts = _counts(selection, pieces, fitted, seq_len)
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


def _without_zero(counts: np.ndarray) -> np.ndarray:
    pieces = counts.copy()
    pieces[0] = 0
    return pieces


def _survey(selection: LengthBlocks, seq_len: int, *, keep: bool) -> Pieces:
    """Run the pass over the lengths."""
    place_type = _place_type(len(selection))
    remainders = np.empty(len(selection), "<u2" if seq_len <= 1 << 16 else "<u4") if keep else None
    counts = np.zeros(seq_len, np.int64)
    long_places, long_full = [np.empty(0, place_type)], [np.empty(0, np.uint32)]
    tokens = split = full_rows = 0
    for start, lengths in selection.blocks():
        full = lengths // seq_len
        rest = lengths - full * seq_len
        counts += np.bincount(rest, minlength=seq_len)
        tokens += int(lengths.sum())
        split += int(np.count_nonzero(lengths > seq_len))
        if remainders is not None:
            remainders[start : start + len(rest)] = rest
            long = np.flatnonzero(full)
            long_places.append((long + start).astype(place_type))
            long_full.append(full[long].astype(np.uint32))
        else:
            full_rows += int(full.sum())
    if remainders is None:
        return Pieces(counts, None, long_places[0], np.array([full_rows], np.int64), tokens, split)
    places, full = np.concatenate(long_places), np.concatenate(long_full)
    return Pieces(counts, remainders, places, offsets_of(full), tokens, split)


def _sort(pieces: Pieces, seq_len: int) -> np.ndarray:
    """Sort the places of all pieces, longest first and by place where equal: a counting sort in blocks.

    Each block is sorted separately, and each of its runs of one length goes after those of earlier blocks.
    """
    remainders = pieces.remainders
    assert remainders is not None
    counts = _without_zero(pieces.counts)
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


def _counts(selection: LengthBlocks, pieces: Pieces, fitted: Fit, seq_len: int) -> Counts:
    packed = int(fitted.firsts[-1])
    rows = packed + int(pieces.long_rows[-1])
    in_row = np.add.reduceat(fitted.each, fitted.runs[:-1]) if packed else np.empty(0, np.int64)
    return Counts(
        rows=rows,
        documents=len(selection),
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
