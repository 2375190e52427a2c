"""Shares: the source of each row of a mixture, evenly spread and exact.

Weights become whole numbers that add up to a period, and one period is laid out so that after any number of
rows every source's count is within one of its share. The rest is counting.

    weights 0.5, 0.3, 0.2    period 10    source  0 1 0 2 0 1 0 2 0 1 | 0 1 0 2 ...
                                          index   0 0 1 0 2 1 3 1 4 2 | 5 3 6 2 ...

The layout is Tijdeman's chairman assignment as a list of deadlines: the n-th row of a source has an earliest
and a latest slot that keep its count within the bound, and of the available sources the most urgent one is
taken. Such a layout always exists. It costs one pass over the period, a quarter of a second for the longest;
after that, everything is a look-up in either direction.

A period is at most 2**18 rows: weights that need a longer one are rounded to multiples of 1/2**18, once, and
`exact` gives the rounded values.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from packline.errors import RecipeError
from packline.ragged import offsets_of

LONGEST_PERIOD = 1 << 18

Weight = int | float | str | Fraction


class Shares:
    """Schedule of shares alone: the source of each of infinitely many rows.

    Args:
        weights: one per source, above zero: a number, or text such as "1/3". A float counts as the decimal
            number that it prints as.

    Raises:
        RecipeError: no weights, or one that is not a number above zero.

    >>> shares = Shares([0.5, 0.25, 0.25])
    >>> shares.period, shares.sources(0, 8).tolist()
    (4, [0, 1, 0, 2, 0, 1, 0, 2])
    >>> shares.counts(6), shares.place(source=1, index=1)    # taken of each; where row 1 of source 1 comes
    ([3, 2, 1], 5)
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.parts = _parts([_exact(weight, number) for number, weight in enumerate(weights)])
        self.period = sum(self.parts)
        self._schedule = _schedule(self.parts, self.period)
        # Places of each source in a period, ascending: source s has places[bounds[s]:bounds[s+1]].
        self._places = np.argsort(self._schedule, kind="stable").astype(np.int32)
        self._bounds = offsets_of(self.parts).tolist()

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def exact(self) -> list[Fraction]:
        """Exact share of each source; they add up to 1."""
        return [Fraction(part, self.period) for part in self.parts]

    def sources(self, start: int, stop: int) -> np.ndarray:
        """Source of each of rows `start` to `stop`, int32 `[stop - start]`."""
        first = start % self.period
        if first + stop - start <= self.period:
            return self._schedule[first : first + stop - start]
        return self._schedule[np.arange(start, stop) % self.period]

    def counts(self, rows: int) -> list[int]:
        """Number of the first `rows` that come from each source."""
        return [self.count(source, rows) for source in range(len(self))]

    def count(self, source: int, rows: int) -> int:
        """Number of the first `rows` that come from a source."""
        periods, rest = divmod(rows, self.period)
        return periods * self.parts[source] + int(np.searchsorted(self._places_of(source), rest))

    def place(self, source: int, index: int) -> int:
        """Place of the source's row number `index`, counted over all sources."""
        periods, rest = divmod(index, self.parts[source])
        return periods * self.period + int(self._places_of(source)[rest])

    def places(self, source: int, indices: np.ndarray) -> np.ndarray:
        """Places of these rows of a source, counted over all sources; int64 of the same shape."""
        periods, rest = np.divmod(np.asarray(indices, np.int64), self.parts[source])
        return periods * self.period + self._places_of(source)[rest]

    def _places_of(self, source: int) -> np.ndarray:
        return self._places[self._bounds[source] : self._bounds[source + 1]]


def _exact(weight: Weight, number: int) -> Fraction:
    """Weight as the exact number that it prints as."""
    try:
        # "nan" and "inf" are not fractions; True is not a weight, though Python counts it as 1.
        exact = Fraction(-1) if isinstance(weight, bool) else Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(-1)
    if exact <= 0:
        raise RecipeError(
            f"source {number}: expected a weight above 0, found {weight!r}",
            hint="leave out a source that is not wanted",
        )
    return exact


def _parts(weights: Sequence[Fraction]) -> list[int]:
    """Whole numbers in the proportion of the weights, with a sum of at most LONGEST_PERIOD."""
    if not 1 <= len(weights) <= LONGEST_PERIOD:
        raise RecipeError(f"expected 1 to {LONGEST_PERIOD:,} weights, found {len(weights):,}")
    total = sum(weights)
    shares = [weight / total for weight in weights]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= LONGEST_PERIOD:
        return [int(share * period) for share in shares]
    # Largest remainder; a source keeps at least one row per period, taken from those that have most.
    ideal = [share * LONGEST_PERIOD for share in shares]
    parts = [max(1, int(value)) for value in ideal]
    lacking = LONGEST_PERIOD - sum(parts)
    by_need = sorted(range(len(parts)), key=lambda number: parts[number] - ideal[number])
    for number in by_need[: max(0, lacking)]:
        parts[number] += 1
    for _ in range(-lacking):
        parts[parts.index(max(parts))] -= 1
    divisor = math.gcd(*parts)
    return [part // divisor for part in parts]


def _schedule(parts: Sequence[int], period: int) -> np.ndarray:
    """One period: the source of each row, int32 `[period]`, counts within one of their shares throughout.

    With n sources, Tijdeman's bound is 1 - 1/(2n - 2). The source's row j (from 1) with a share of
    part/period stays within it if it comes in slot k (from 1) with

        k >= (j - 1 + 1/(2n-2)) * period / part    and    k <= (j - 1/(2n-2)) * period / part + 1.

    Jobs of one slot with whole release times and deadlines can all be met by taking the earliest deadline
    first, if they can be met at all.
    """
    if len(parts) == 1:
        return np.zeros(1, np.int32)
    bound = 2 * len(parts) - 2

    def deadline(source: int, row: int) -> int:
        return (row * bound - 1) * period // (bound * parts[source]) + 1

    def release(source: int, row: int) -> int:
        return -(-((row - 1) * bound + 1) * period // (bound * parts[source]))

    waiting = [(release(source, 1), source, 1) for source in range(len(parts))]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    schedule = np.empty(period, np.int32)
    for slot in range(1, period + 1):
        while waiting and waiting[0][0] <= slot:
            _, source, row = heapq.heappop(waiting)
            heapq.heappush(ready, (deadline(source, row), source, row))
        _, source, row = heapq.heappop(ready)
        schedule[slot - 1] = source
        if row < parts[source]:
            heapq.heappush(waiting, (release(source, row + 1), source, row + 1))
    return schedule
