"""Mixtures and stages of a run: rows of several sources by weight, and for how long.

`Interleaving` determines exactly which source a row of the mixture comes from, where random sampling would
make shares inexact. Weights become whole numbers that add up to a period, and one period is laid out so that
after any number of rows every source's count is within one of its share. The rest is counting.

    weights 0.5, 0.3, 0.2    period 10    source  0 1 0 2 0 1 0 2 0 1 | 0 1 0 2 ...
                                          index   0 0 1 0 2 1 3 1 4 2 | 5 3 6 2 ...

Laying out takes a quarter of a second for the longest period, 2**18 rows: weights that need a longer one are
rounded to multiples of 1/2**18, once, and `exact` gives the rounded values.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from packline.errors import RecipeError, refuse_unknown_names
from packline.notebook import Notebook
from packline.quantities import read_number
from packline.ragged import offsets_of

if TYPE_CHECKING:
    from packline.packing.rows import Rows


LONGEST_PERIOD = 1 << 18
ENDLESS = 1 << 40
"""Number of rows of a source as long as it is not known: more than any store has."""

Weight = int | float | str | Fraction


class Interleaving:
    """The source of each of infinitely many rows; a float counts as the decimal number that it prints as.

    >>> interleaving = Interleaving([0.5, 0.25, 0.25])
    >>> interleaving.period, interleaving.sources(0, 8).tolist()
    (4, [0, 1, 0, 2, 0, 1, 0, 2])
    >>> interleaving.counts(6), interleaving.place(source=1, index=1)    # place of row 1 of source 1
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
        return [Fraction(part, self.period) for part in self.parts]

    def sources(self, start: int, stop: int) -> np.ndarray:
        """Source of each of rows `start` to `stop`, int32 `[stop - start]`."""
        first = start % self.period
        if first + stop - start <= self.period:
            return self._schedule[first : first + stop - start]
        return self._schedule[np.arange(start, stop) % self.period]

    def counts(self, rows: int) -> list[int]:
        return [self.count(source, rows) for source in range(len(self))]

    def count(self, source: int, rows: int) -> int:
        if len(self.parts) == 1:
            return rows
        periods, rest = divmod(rows, self.period)
        return periods * self.parts[source] + int(self._places_of(source).searchsorted(rest))

    def place(self, source: int, index: int) -> int:
        """Place of the source's row number `index`, counted over all sources."""
        return int(self.places(source, np.array([index]))[0])

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

    This is Tijdeman's chairman assignment as a list of deadlines; it always exists. With n sources, his bound
    is 1 - 1/(2n - 2). The source's row j (from 1) with a share of part/period stays within it if it comes in
    slot k (from 1) with

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


WeightedRows: TypeAlias = "tuple[Rows, Weight] | tuple[Rows, Weight, int | None]"


class Mixture(Notebook):
    """Rows of several sources by weight.

    Args:
        sources: (rows, weight) or (rows, weight, max_epochs) each. `max_epochs` is the largest number of
            times a row may be used: 1 by default, None for no limit.

    Raises:
        RecipeError: no sources, a weight that is not a number above zero, `max_epochs` below 1, the same rows
            twice, rows of different length or of different tokenizers.

    A stage whose tokens need more of a source than its `max_epochs` allows is rejected before the first
    batch.

    With an open store:

    >>> import packline
    >>> short, long = store.rows(seq_len=5), store.rows(seq_len=10).split_to(5)
    >>> mixture = packline.Mixture([(short, 0.7), (long, 0.3, 4)])  # long ones up to four times
    >>> [str(share) for share in mixture.shares]
    ['7/10', '3/10']
    """

    def __init__(self, sources: Iterable[WeightedRows]) -> None:
        entries = [_entry(entry, number) for number, entry in enumerate(sources)]
        if not entries:
            raise RecipeError("a mixture needs at least one source, found none")
        self.rows: tuple[Rows, ...] = tuple(rows for rows, _, _ in entries)
        self.weights: tuple[Weight, ...] = tuple(weight for _, weight, _ in entries)
        self.max_epochs: tuple[int | None, ...] = tuple(epochs for _, _, epochs in entries)
        self.interleaving = Interleaving(self.weights)
        _check_alike(self.rows)

    def __len__(self) -> int:
        """Number of sources."""
        return len(self.rows)

    @property
    def seq_len(self) -> int:
        """Row length, the same for every source."""
        return self.rows[0].seq_len

    @property
    def shares(self) -> list[Fraction]:
        """Exact share of each source; they add up to 1."""
        return self.interleaving.exact

    def split_to(self, seq_len: int) -> Mixture:
        """Cut the rows of the mixture to another length; returns itself if the length is the same.

        Raises:
            RecipeError: a row length that `seq_len` does not divide.
        """
        if seq_len == self.seq_len:
            return self
        cut = [rows.split_to(seq_len) for rows in self.rows]
        return Mixture(zip(cut, self.weights, self.max_epochs, strict=True))

    def limit(self, consumed: Sequence[int]) -> int | None:
        """Rows of the mixture until a source would exceed its `max_epochs`; None if no source can."""
        limits = [
            None if epochs is None else epochs * len(rows)
            for rows, epochs in zip(self.rows, self.max_epochs, strict=True)
        ]
        return self.rows_within(limits, consumed)

    def rows_within(self, limits: Sequence[int | None], consumed: Sequence[int]) -> int | None:
        """Rows of the mixture until a source would be used more often than its limit; None without limits."""
        places = [
            self.interleaving.place(number, max(0, limit - before))
            for number, (limit, before) in enumerate(zip(limits, consumed, strict=True))
            if limit is not None
        ]
        return min(places, default=None)

    def __repr__(self) -> str:
        shares = ", ".join(
            f"{float(share):.4g} of {rows!r}" for share, rows in zip(self.shares, self.rows, strict=True)
        )
        return f"<Mixture: {shares}>"


def _entry(entry: Any, number: int) -> tuple[Rows, Weight, int | None]:
    if not isinstance(entry, tuple | list) or len(entry) not in (2, 3):
        raise RecipeError(
            f"source {number} of a mixture: expected (rows, weight) or (rows, weight, max_epochs), "
            f"found {entry!r}"
        )
    rows, weight = entry[0], entry[1]
    epochs = entry[2] if len(entry) == 3 else 1
    if epochs is not None and (not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1):
        raise RecipeError(
            f"source {number}: expected max_epochs of 1 or more, or None for no limit, found {epochs!r}"
        )
    if not len(rows):
        raise RecipeError(f"source {number} has no rows: {rows!r}")
    return rows, weight, epochs


def _check_alike(sources: Sequence[Rows]) -> None:
    first, seen = sources[0], dict[str, int]()
    for number, rows in enumerate(sources):
        if rows.seq_len != first.seq_len:
            raise RecipeError(
                f"source {number}: expected rows of {first.seq_len:,} tokens as in source 0, "
                f"found {rows.seq_len:,}",
                hint="make all rows of a mixture with one seq_len, or cut longer ones: rows.split_to(...)",
            )
        check_same_tokenizer(rows, first, f"source {number}", "source 0")
        if rows.fingerprint in seen:
            raise RecipeError(
                f"sources {seen[rows.fingerprint]} and {number} are the same rows: {rows!r}",
                hint="name them once, with the sum of their weights",
            )
        seen[rows.fingerprint] = number


def check_same_tokenizer(rows: Rows, other: Rows, name: str, other_name: str) -> None:
    found, expected = rows.store.manifest.tokenizer, other.store.manifest.tokenizer
    if found.fingerprint != expected.fingerprint:
        raise RecipeError(
            f"{name}: expected ids of the tokenizer {expected.name} ({expected.fingerprint[:8]}) as in "
            f"{other_name}, found {found.name} ({found.fingerprint[:8]})",
            hint="stores that are trained on together must be built with one tokenizer",
        )


class Stage:
    """Rows or a mixture, and their number of tokens.

    Args:
        rows: one source, used once at most, or a mixture.
        tokens: number of tokens to train on, rounded down to whole batches; a number, or text such as "2B".
            Padding counts, since it takes its place in a batch. None: until the first source is used up.
        seq_len: length to which longer rows are cut; it must divide theirs.
        batch_size: rows per global batch, if different from the loader's.
        batch_tokens: the same in tokens, a multiple of the row length; "2M" is 2,097,152.
        from_step: first step of the stage: the stage before ends there, whatever its length.

    Raises:
        RecipeError: a setting out of bounds, rows that cannot be cut to `seq_len`, both `batch_size` and
            `batch_tokens`, or a number of tokens that is not a number of whole rows.

    With a store of one document of 25 tokens:

    >>> import packline
    >>> stages = [packline.Stage(store.rows(seq_len=5), tokens=10), packline.Stage(store.rows(seq_len=10))]
    >>> [batch["tokens"].shape for batch in packline.Loader(stages, batch_size=1)]
    [(1, 5), (1, 5), (1, 10), (1, 10), (1, 10)]
    """

    @refuse_unknown_names
    def __init__(
        self,
        rows: Rows | Mixture,
        *,
        tokens: int | str | None = None,
        seq_len: int | None = None,
        batch_size: int | None = None,
        batch_tokens: int | str | None = None,
        from_step: int | None = None,
    ) -> None:
        mixture = rows if isinstance(rows, Mixture) else Mixture([(rows, 1)])
        self.mixture = mixture if seq_len is None else mixture.split_to(seq_len)
        self.tokens = None if tokens is None else read_number("tokens", tokens)
        if self.tokens is not None and self.tokens < 1:
            raise RecipeError(f"expected tokens of a stage above 0, found {tokens!r}")
        if from_step is not None and from_step < 0:
            raise RecipeError(f"expected a from_step of 0 or more, found {from_step!r}")
        self.from_step = None if from_step is None else operator.index(from_step)  # NumPy's integers too
        self.batch_size = rows_per_batch(self.mixture.seq_len, batch_size, batch_tokens)

    @property
    def seq_len(self) -> int:
        """Tokens per row."""
        return self.mixture.seq_len

    def __repr__(self) -> str:
        length = "until used up" if self.tokens is None else f"{self.tokens:,} tokens"
        if self.from_step is not None:
            length += f" from step {self.from_step:,}"
        batch = "" if self.batch_size is None else f", batches of {self.batch_size:,} rows"
        return f"<Stage: {length}{batch}, {self.mixture!r}>"


def rows_per_batch(seq_len: int, batch_size: int | None, batch_tokens: int | str | None) -> int | None:
    """Rows of a global batch, from their number or from its tokens; None if neither is given.

    >>> rows_per_batch(4096, None, "2M")
    512
    """
    if batch_size is not None and batch_tokens is not None:
        raise RecipeError(
            f"expected batch_size or batch_tokens, found both: {batch_size!r} and {batch_tokens!r}",
            hint="batch_tokens is batch_size times the row length",
        )
    if batch_tokens is None:
        if batch_size is not None and batch_size < 1:
            raise RecipeError(f"expected a batch_size above 0, found {batch_size!r}")
        return None if batch_size is None else operator.index(batch_size)
    tokens = read_number("batch_tokens", batch_tokens)
    rows, rest = divmod(tokens, seq_len)
    if rest or rows < 1:
        nearest = [f"{n * seq_len:,} ({n:,} rows)" for n in (rows, rows + 1) if n > 0]
        raise RecipeError(
            f"batch_tokens is {tokens:,}: expected a multiple of the row length, {seq_len:,} tokens",
            hint=f"nearest: {' or '.join(nearest)}",
        )
    return rows
