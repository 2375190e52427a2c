"""best_fit: whole documents combined so that rows are full, best fit decreasing over the whole selection.

    documents    6 6 6 2 2 2 2 2 13     tokens each, rows of 10

    full rows    row 0: document 8's first 10            a document longer than a row is cut every 10
    packed rows  row 1: 6 2 2    row 2: 6 2 2    row 3: 6 2 .      and its remainder (3) is a piece
                 row 4: 3 . . .

A document of n tokens gives n // L pieces that fill a row and, if n % L is not 0, one of n % L; `fit` packs
them. Full rows come first, in the order of the selection; in a packed row the longest piece comes first,
pieces of equal length in order of place. The plan holds the places of all pieces in order of length (longest
first, stable: a counting sort), which gives their rank, and which runs of ranks make which rows.

Longest first, each piece goes into the row with the least room that still holds it; if there is none, a row
is opened. The contents of a row depend on lengths alone, so equal rows are one group: a range of row numbers
with the same pieces in each.

    3 pieces of 6     rows 0 1 2 opened, 1 each          group [0, 3)  6          room 4
    5 pieces of 2     2 each in rows 0 and 1,            group [0, 2)  6 2 2      room 0
                      the rest in row 2                  group [2, 3)  6 2        room 2

A group with room r is the best fit for a length l if r is the least room with r >= l. After one piece its row
has r - l, and while that is l or more it is again the least: so each of its rows takes r // l pieces at once.
It costs one step each time a group takes a length: about 20,000 for rows of 4,096 tokens, for a million
documents as for a billion (below 0.1 s).

With `pack_window`, the documents of units `n * pack_window` to `(n + 1) * pack_window - 1` of a source are
packed together: rows that neither later units nor other sources change, so they can be read while the store
is built. A unit without selected documents counts, so a selection does not move the others.

Cost, with D documents: two sequential passes, about 50 ns per document in total; memory
D * (2 bytes, or 4 for L above 65,536) + P * (4 bytes, 8 from 2**32 documents) for P pieces, of which a copy
is made + 100 MB. On disk P times as much. A selection of less than a million documents is packed in memory
each time it is opened, in a twentieth of a second.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from packline.errors import CorruptStore, RecipeError
from packline.packing.cache import Plan, Plans, find_plan, place_type, plan_fingerprint, plan_folder
from packline.packing.packer import Counts, Spans
from packline.packing.selection import Selection
from packline.ragged import offsets_of

VERSION = 3
"""Version of the contents of a plan; another version makes plans anew."""
SORT_BLOCK = 1 << 20
"""Pieces sorted at a time: the arrays of a step nearly fit into a processor's cache."""


class Pieces(NamedTuple):
    """Results of one pass over the lengths of a window."""

    counts: np.ndarray
    """int64 `[L+1]`: pieces of each length, full rows last; `counts[0]` means nothing."""
    remainders: np.ndarray
    """uint16 or uint32 `[D]`: the length of each document's piece, 0 for none; empty if not requested."""
    full: np.ndarray
    """uint32 or int64 `[F]`: place of the document of each full row, ascending; empty if not requested."""
    tokens: int
    split: int


class BestFit:
    """Rows of whole documents, in W windows of `units` units; None: all documents are one window.

    `write` writes the plan also of a small selection, and checks every byte of an existing one.
    """

    def __init__(
        self,
        selection: Selection,
        seq_len: int,
        units: int | None = None,
        *,
        plans: Plans = None,
        write: bool = False,
    ) -> None:
        if units is not None and selection.settings["shuffle_documents"] is not None:
            raise RecipeError(
                "expected shuffle_documents or pack_window, found both: windows are units in stored order",
                hint="a loader shuffles the rows",
            )
        self.selection, self.seq_len, self.units = selection, seq_len, units
        # Complete windows of a store that grows stay as they were.
        memory: dict[Any, Any] = plans if isinstance(plans, dict) else {}
        self.plan = find_plan(
            selection.store,
            plans,
            plan_settings(selection, seq_len, units),
            lambda: _make_windows(selection, seq_len, units, memory),
            size=8 * len(selection),
            save=write or plans is not None,
            check=write or None,
        )
        arrays = self.plan.arrays
        self._fit = Fit(*(np.asarray(arrays[name], np.int64) for name in Fit._fields))
        self._order, self._edges, self._rows, self._ranks = (
            arrays[name] for name in ("order", "edges", "rows", "ranks")
        )
        self._full = self._order[: int(self._ranks[0])]
        """Place of the document of each full row, ascending."""

    def __len__(self) -> int:
        return int(self._rows[-1])

    @property
    def counts(self) -> Counts:
        return Counts(**self.plan.facts["counts"])

    def settled(self, following: str | None) -> int:
        """Number of rows that stay as they are when more units are built.

        Args:
            following: name of the first of those; None if it is one of the last unit's window.
        """
        assert self.units is not None
        last = [unit for unit, first in self.selection.units() if first < len(self.selection)][-1]
        if following is None or window_of(following, self.units) == window_of(last, self.units):
            return int(self._rows[-2])
        return len(self)

    def spans(self, rows: np.ndarray) -> Spans:
        firsts, runs, bases, each, sizes = self._fit
        if len(rows) == 1:  # slices take a third of the time
            row = int(rows[0])
            group = int(firsts.searchsorted(row, "right")) - 1
            run: Any = slice(int(runs[group]), int(runs[group + 1]))
            many = each[run]
            ranks, lengths = _ranges(bases[run] + row * many, many), sizes[run].repeat(many)
            offsets, full = np.array([0, len(ranks)]), np.arange(int(ranks[0]) < len(self._full))
        else:
            groups = firsts.searchsorted(rows, "right") - 1
            counts = runs[groups + 1] - runs[groups]
            run, of_row = _ranges(runs[groups], counts), np.arange(len(rows)).repeat(counts)
            many = each[run]
            ranks, lengths = _ranges(bases[run] + rows[of_row] * many, many), sizes[run].repeat(many)
            offsets = offsets_of(np.bincount(of_row, many, len(rows)).astype(np.int64))
            full = (ranks < len(self._full)).nonzero()[0]
        places = self._order[ranks]
        if int(np.maximum.reduce(places, initial=0)) >= len(self.selection):
            raise self._damaged(f"a document at place {int(places.max()):,} of {len(self.selection):,}")
        documents, begins, tokens = self.selection.at(places.astype(np.int64))
        starts = tokens - lengths  # a piece is the end of its document
        if len(full):
            starts[full] = (ranks[full] - self._full.searchsorted(places[full])) * self.seq_len
        wrong = (starts < 0) | (starts % self.seq_len != 0) | (starts + lengths > tokens)
        if wrong.any():
            raise self._damaged(f"a document of {int(tokens[wrong][0]):,} tokens in the wrong row")
        return Spans(offsets, documents, starts, lengths, begins, tokens)

    def last_place(self, rows: int) -> int:
        return int(self._edges[self._rows.searchsorted(rows, "left")]) - 1

    def rows_of(self, document: int) -> np.ndarray:
        place = int(self.selection.places(np.array([document], np.int64))[0])
        if place < 0:
            return np.empty(0, np.int64)
        length = int(self.selection.lengths(place, place + 1)[0])
        full, rest = divmod(length, self.seq_len)
        ranks = int(self._full.searchsorted(self._order.dtype.type(place))) + np.arange(full)
        if rest:
            ranks = np.append(ranks, self._rank_of_piece(place, rest))
        starts, _, run_of = self._by_rank
        run = run_of[starts.searchsorted(ranks, "right") - 1]
        return (ranks - self._fit.bases[run]) // self._fit.each[run]

    def _rank_of_piece(self, place: int, length: int) -> int:
        """Rank of a document's piece: among those of its length in its window."""
        starts, lengths, _ = self._by_rank
        window = int(self._edges.searchsorted(place, "right")) - 1
        first, last = starts.searchsorted(self._ranks[window : window + 2]).tolist()
        first, last = (first + np.searchsorted(-lengths[first:last], [-length, -length + 1])).tolist()
        lowest = int(starts[first]) if first < len(starts) else len(self._order)
        highest = int(starts[last]) if last < len(starts) else len(self._order)
        rank = lowest + int(self._order[lowest:highest].searchsorted(self._order.dtype.type(place)))
        if rank >= highest or int(self._order[rank]) != place:
            raise self._damaged(f"no piece of {length:,} tokens of the document at place {place:,}")
        return rank

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


def window_of(unit: str, units: int) -> tuple[str, int]:
    """Window of a unit, by its name; consecutive units with the same window are packed together.

    >>> window_of("web-000012", 8), window_of("web-000003-000007", 8), window_of("other", 8)
    (('web', 1), ('web-000003', 0), ('other', -1))
    """
    series, _, number = unit.rpartition("-")
    if not number.isdigit():
        return unit, -1
    return series, int(number) // units


def window_edges(selection: Selection, units: int | None) -> list[int]:
    """First place of each window with documents, and one past the last place."""
    begins = [0]
    before: tuple[str, int] | None = None
    for unit, first in selection.units() if units else ():
        window = window_of(unit, units or 1)
        if window != before and begins[-1] < first < len(selection):
            begins.append(first)
        before = window
    return [*begins, len(selection)]


def plan_settings(selection: Selection, seq_len: int, units: int | None = None) -> dict[str, Any]:
    settings = {"packing": "best_fit", "version": VERSION, "seq_len": seq_len, "pack_window": units}
    return {**settings, "selection": selection.fingerprint}


def planned_folder(selection: Selection, seq_len: int, units: int | None = None) -> Path | None:
    """Folder of the plan, next to the store or in the cache, if it exists."""
    settings = plan_settings(selection, seq_len, units)
    folder = plan_folder(selection.store, plan_fingerprint(selection.store, settings))
    return folder if folder.exists() else None


def best_fit_counts(selection: Selection, seq_len: int, units: int | None = None) -> Counts:
    """Costs of best_fit, from a pass over the lengths; nothing is sorted or written."""
    found = []
    for start, stop in pairwise(window_edges(selection, units)):
        pieces = _survey(selection.blocks(start, stop), start, stop, seq_len, keep=False)
        found.append(_counts(stop - start, pieces, fit(pieces.counts, seq_len), seq_len))
    return _summed(found)


def _make_windows(selection: Selection, seq_len: int, units: int | None, memory: dict[Any, Any]) -> Plan:
    """Plan of all windows, but for those that are in memory, which then has those of this plan."""
    key = msgspec.json.encode(selection.identity), seq_len, units
    earlier, made = memory.get(key, {}), dict[tuple[int, int], Plan]()
    memory[key] = made
    edges = window_edges(selection, units)
    for start, stop in pairwise(edges):
        made[start, stop] = earlier.get((start, stop)) or make_plan(
            selection.blocks(start, stop), start, stop, seq_len
        )
    return _joined(list(made.values()), edges, seq_len)


def make_plan(lengths: Iterable[np.ndarray], start: int, stop: int, seq_len: int) -> Plan:
    """Plan of one window, from blocks of lengths."""
    pieces = _survey(lengths, start, stop, seq_len, keep=True)
    fitted = fit(pieces.counts, seq_len)
    counts = _counts(stop - start, pieces, fitted, seq_len)
    arrays = {"full": pieces.full, "order": _sort(pieces, seq_len, start), **fitted._asdict()}
    return Plan(arrays, {"counts": msgspec.to_builtins(counts)})


def _joined(plans: Sequence[Plan], edges: Sequence[int], seq_len: int) -> Plan:
    """One plan of all windows: rows and ranks are counted through, ranks of full rows first."""

    def column(name: str) -> list[np.ndarray]:
        return [one.arrays[name] for one in plans]

    def counted(name: str) -> np.ndarray:
        return offsets_of(np.concatenate([np.diff(one) for one in column(name)]))

    full = offsets_of([len(one) for one in column("full")])
    ranks = offsets_of([len(one) for one in column("order")]) + full[-1]
    rows = offsets_of([int(one[-1]) for one in column("firsts")])
    order = np.concatenate([*column("full"), *column("order")])
    bases = []
    for number, one in enumerate(plans):
        whole = one.arrays["lengths"] == seq_len
        pieces = ranks[number] - len(one.arrays["full"])  # those of full rows have the first ranks there
        shift = np.where(whole, full[number], pieces) - rows[number] * one.arrays["each"]
        bases.append(one.arrays["bases"] + shift)
        # A window that is held takes no memory of its own.
        one.arrays["full"] = order[full[number] : full[number + 1]]
        one.arrays["order"] = order[ranks[number] : ranks[number + 1]]
    arrays = {
        "order": order,
        "firsts": counted("firsts"),
        "runs": counted("runs"),
        "bases": np.concatenate(bases),
        "each": np.concatenate(column("each")),
        "lengths": np.concatenate(column("lengths")),
        "edges": np.array(edges, np.int64),
        "ranks": ranks,
        "rows": rows,
    }
    counts = _summed([Counts(**one.facts["counts"]) for one in plans])
    return Plan(arrays, {"counts": msgspec.to_builtins(counts)})


def _summed(counts: Sequence[Counts]) -> Counts:
    return Counts(*(sum(column) for column in zip(*map(msgspec.structs.astuple, counts), strict=True)))


def _survey(blocks: Iterable[np.ndarray], start: int, stop: int, seq_len: int, *, keep: bool) -> Pieces:
    dtype = place_type(stop)
    remainders = np.empty(stop - start if keep else 0, "<u2" if seq_len <= 1 << 16 else "<u4")
    counts = np.zeros(seq_len + 1, np.int64)
    full_places = [np.empty(0, dtype)]
    done = tokens = split = 0
    for lengths in blocks:
        full = lengths // seq_len
        rest = lengths - full * seq_len
        counts += np.bincount(rest, minlength=seq_len + 1)
        counts[seq_len] += int(full.sum())
        tokens += int(lengths.sum())
        split += int(np.count_nonzero(lengths > seq_len))
        if keep:
            remainders[done : done + len(rest)] = rest
            places = np.arange(start + done, start + done + len(rest), dtype=dtype)
            full_places.append(places.repeat(full))
        done += len(rest)
    return Pieces(counts, remainders, np.concatenate(full_places), tokens, split)


def _sort(pieces: Pieces, seq_len: int, first: int) -> np.ndarray:
    """Sort the places of all pieces, longest first and by place where equal: a counting sort in blocks.

    Each block is sorted separately, and each of its runs of one length goes after those of earlier blocks.
    """
    remainders, counts = pieces.remainders, pieces.counts[:seq_len].copy()
    counts[0] = 0
    order = np.empty(int(counts.sum()), place_type(first + len(remainders)))
    # Position of the next piece of each length.
    following = np.cumsum(counts[::-1])[::-1] - counts
    for start in range(0, len(remainders), SORT_BLOCK):
        block = remainders[start : start + SORT_BLOCK]
        sorted_places = block.argsort(kind="stable")  # for 16 bits NumPy has a radix sort
        here = np.bincount(block, minlength=seq_len)
        sorted_places = sorted_places[here[0] :]
        here[0] = 0
        ends = np.cumsum(here)
        target = np.repeat(following - (ends - here), here)
        target += np.arange(len(target))
        order[target] = sorted_places + first + start
        following += here
    return order


def _counts(documents: int, pieces: Pieces, fitted: Fit, seq_len: int) -> Counts:
    rows = int(fitted.firsts[-1])
    in_row = np.add.reduceat(fitted.each, fitted.runs[:-1])
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


def fit(counts: np.ndarray, seq_len: int) -> Fit:
    """Lay out pieces, best fit decreasing.

    Args:
        counts: number of pieces of each length, integers `[seq_len + 1]` or shorter; `counts[0]` is ignored.

    >>> fitted = fit(np.array([0, 0, 5, 0, 0, 0, 3]), 10)
    >>> fitted.firsts.tolist(), fitted.lengths.tolist(), fitted.each.tolist()
    ([0, 2, 3], [6, 2, 6, 2], [1, 2, 1, 1])
    """
    groups: dict[int, list[tuple[int, int, Link | None]]] = {0: []}
    rooms: list[int] = []  # with groups, ascending
    rows = rank = 0

    def put(start: int, stop: int, link: Link | None, room: int) -> None:
        stack = groups.setdefault(room, [])
        if room and not stack:
            insort(rooms, room)
        stack.append((start, stop, link))

    # Row numbers never affect the result; taking the latest group of a room is the simplest choice.
    for length in (np.flatnonzero(counts[1:])[::-1] + 1).tolist():
        left = int(counts[length])
        while left:
            least = bisect_left(rooms, length)
            if least == len(rooms):
                room, each = seq_len, seq_len // length
                start, stop, link = rows, rows - (-left // each), None
                rows = stop
            else:
                room = rooms[least]
                start, stop, link = groups[room].pop()
                if not groups[room]:
                    del rooms[least]
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
