"""Best fit decreasing, computed on counts of lengths.

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
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import NamedTuple

import numpy as np

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
