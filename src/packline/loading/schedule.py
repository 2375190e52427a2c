"""The schedule of a run: the rows of each global batch, as a closed form of the step.

    step ─> stage, rows k..k+B of its mixture ─> source and draw ─> row          and back

Resuming, other world sizes, workers and traces all use this one function. It does not depend on ranks,
threads and processes, nor on tokens: it never reads a store.

A source that several stages use resumes where the previous stage left off: the second stage consumes rows
that the first has not. The draw numbers of a source are therefore counted over the whole run, and so is
`max_epochs`. The key of a source's order is (seed, its number, epoch); sources are numbered by first
appearance in the run.

Making the schedule checks that every stage has enough rows.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from packline.errors import RecipeError
from packline.fingerprint import hash_value
from packline.loading.mixture import Mixture, check_tokenizer
from packline.loading.order import Order
from packline.loading.stages import Stage


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows of one global batch, in their order."""

    stage: int
    sources: np.ndarray
    """int64 `[B]`: number of the source within the stage's mixture."""
    rows: np.ndarray
    """int64 `[B]`: number of the row within its source."""
    epochs: np.ndarray
    """int64 `[B]`: complete passes over the source before, from 0."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Occurrences of rows of one source in a stage, U in total, in order of step."""

    rows: np.ndarray
    """int64 `[U]`: number of the row within its source."""
    epochs: np.ndarray
    """int64 `[U]`: complete passes over the source before."""
    steps: np.ndarray
    """int64 `[U]`: counted from the beginning of the run, from 0."""
    places: np.ndarray
    """int64 `[U]`: place in the global batch."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stage and its range of steps in the run."""

    number: int
    mixture: Mixture
    batch_size: int
    """Rows per global batch."""
    first_step: int
    steps: int
    drawn: tuple[int, ...]
    """Rows of each source consumed in earlier stages."""
    orders: tuple[Order, ...]
    """Order of each source."""
    left_over: int
    """Rows after the last whole batch, if the stage ends because a source is used up."""

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """(source, rows in order of use) of the stage's rows `start` to `stop`."""
        shares = self.mixture.schedule
        for source, (order, drawn) in enumerate(zip(self.orders, self.drawn, strict=True)):
            first, last = shares.count(source, start), shares.count(source, stop)
            if first < last:
                yield source, order.between(drawn + first, drawn + last)


class Schedule:
    """All stages of a run, in sequence.

    Args:
        stages: at least one.
        batch_size: rows per global batch, for stages without their own.
        seed: seed for the orders of all sources.
        shuffle: False consumes each source's rows in the order of their numbers.

    Raises:
        RecipeError: no stage, no batch size, a stage without a whole batch or without an end, a source that
            is used up before its stage ends, stages of different tokenizers.
    """

    def __init__(
        self, stages: Sequence[Stage], *, batch_size: int | None, seed: int, shuffle: bool = True
    ) -> None:
        if not stages:
            raise RecipeError("a run needs at least one stage, found none")
        self.seed, self.shuffle = seed, shuffle
        self.stretches: list[Stretch] = []
        orders: dict[str, Order] = {}
        drawn: dict[str, int] = {}
        for number, stage in enumerate(stages):
            size = stage.batch_size if stage.batch_size is not None else batch_size
            if size is None or size < 1:
                raise RecipeError(f"stage {number}: expected a batch_size above 0, found {size!r}")
            first = stages[0].mixture.rows[0]
            check_tokenizer(stage.mixture.rows[0], first, f"stage {number}", "stage 0")
            for rows in stage.mixture.rows:
                if rows.fingerprint not in orders:
                    orders[rows.fingerprint] = Order(len(rows), seed, len(orders), shuffle=shuffle)
            before = [drawn.get(rows.fingerprint, 0) for rows in stage.mixture.rows]
            stretch = _place(number, stage, size, len(self), before, orders)
            self.stretches.append(stretch)
            counts = stage.mixture.schedule.counts(stretch.steps * size)
            for rows, start, count in zip(stage.mixture.rows, before, counts, strict=True):
                drawn[rows.fingerprint] = start + count
        self._firsts = [stretch.first_step for stretch in self.stretches]

    def __len__(self) -> int:
        """Total number of steps, that is global batches."""
        return self.stretches[-1].first_step + self.stretches[-1].steps if self.stretches else 0

    def stretch_of(self, step: int) -> Stretch:
        """Stage that a step belongs to.

        Raises:
            IndexError: no such step.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self):,}")
        return self.stretches[bisect.bisect_right(self._firsts, step) - 1]

    def rows_of_step(self, step: int) -> Drawn:
        """Rows of a global batch.

        Raises:
            IndexError: no such step.
        """
        stretch = self.stretch_of(step)
        start = (step - stretch.first_step) * stretch.batch_size
        stop = start + stretch.batch_size
        shares = stretch.mixture.schedule
        sources = shares.sources(start, stop).astype(np.int64)
        rows, epochs = np.empty_like(sources), np.empty_like(sources)
        for source, found in stretch.parts(start, stop):
            here = sources == source
            first = stretch.drawn[source] + shares.count(source, start)
            rows[here] = found
            epochs[here] = np.arange(first, first + len(found)) // stretch.orders[source].rows
        return Drawn(stretch.number, sources, rows, epochs)

    def uses_of(self, stage: int, source: int, rows: np.ndarray) -> Uses:
        """Occurrences of rows of a source in a stage: the inverse of `rows_of_step`.

        Args:
            stage: number of the stage.
            source: number of the source within the stage's mixture.
            rows: int64 `[N]`, numbers of rows within the source.

        Raises:
            IndexError: no such stage, source or row.
        """
        stretch = self.stretches[stage]
        shares, order = stretch.mixture.schedule, stretch.orders[source]
        first = stretch.drawn[source]
        stop = first + shares.count(source, stretch.steps * stretch.batch_size)
        rows = np.asarray(rows, np.int64).reshape(-1)
        epochs = range(first // order.rows, -(-stop // order.rows))
        draws = np.empty((len(epochs), len(rows)), np.int64)
        for number in range(len(epochs)):
            draws[number] = order.draws_of(rows, epochs[number])
        epoch, index = np.nonzero((draws >= first) & (draws < stop))
        places = shares.places(source, draws[epoch, index] - first)
        by_place = np.argsort(places)
        places, epoch, index = places[by_place], epoch[by_place] + epochs.start, index[by_place]
        steps, inner = np.divmod(places, stretch.batch_size)
        return Uses(rows[index], epoch, steps + stretch.first_step, inner)

    def fingerprints(self) -> dict[str, str]:
        """12 hexadecimal digits for each thing that determines the contents of the batches, by its name.

        The length of the last stage affects nothing before its end, so a run may be extended.
        """
        stretches = self.stretches
        rows = [rows for stretch in stretches for rows in stretch.mixture.rows]
        facts = {
            "stores": [source.store.manifest.checksum for source in rows],
            "rows (seq_len, packing, selection)": [source.fingerprint for source in rows],
            "stages (weights, tokens)": [
                [stretch.mixture.schedule.parts for stretch in stretches],
                [stretch.steps for stretch in stretches[:-1]],
            ],
            "batch_size": [stretch.batch_size for stretch in stretches],
            "shuffle": [str(self.seed), self.shuffle],
        }
        return {name: hash_value(fact)[:12] for name, fact in facts.items()}


def _place(
    number: int, stage: Stage, batch_size: int, first_step: int, drawn: list[int], orders: dict[str, Order]
) -> Stretch:
    """Place a stage in the run, after checking that it has enough rows."""
    mixture = stage.mixture
    limit = mixture.limit(drawn)
    if stage.tokens is not None:
        steps = stage.tokens // (batch_size * mixture.seq_len)
        if not steps:
            raise RecipeError(
                f"stage {number}: {stage.tokens:,} tokens are less than one batch of {batch_size:,} rows of "
                f"{mixture.seq_len:,} tokens",
                hint="more tokens or a smaller batch_size",
            )
        if limit is not None and steps * batch_size > limit:
            raise _used_up(number, mixture, steps * batch_size, drawn)
    elif limit is None:
        raise RecipeError(
            f"stage {number} has no end: its sources may be drawn any number of times",
            hint="say how long: Stage(..., tokens=...), or set max_epochs of a source",
        )
    else:
        steps = limit // batch_size
        if not steps:
            raise RecipeError(
                f"stage {number}: expected at least one batch of {batch_size:,} rows, found {limit:,} rows "
                "until a source is used up",
                hint="a smaller batch_size, or more epochs",
            )
    return Stretch(
        number=number,
        mixture=mixture,
        batch_size=batch_size,
        first_step=first_step,
        steps=steps,
        drawn=tuple(drawn),
        orders=tuple(orders[rows.fingerprint] for rows in mixture.rows),
        left_over=limit - steps * batch_size if stage.tokens is None and limit is not None else 0,
    )


def _used_up(number: int, mixture: Mixture, rows: int, drawn: list[int]) -> RecipeError:
    """Error that names the sources with too few rows for a stage, and how many are missing."""
    missing = []
    enough = []
    for source, count in enumerate(mixture.schedule.counts(rows)):
        epochs, size = mixture.max_epochs[source], len(mixture.rows[source])
        if epochs is None or drawn[source] + count <= epochs * size:
            continue
        earlier = f" after {drawn[source]:,} in earlier stages" if drawn[source] else ""
        missing.append(
            f"source {source} needs {count:,} rows{earlier} and has {size:,} x {epochs} epochs: "
            f"{drawn[source] + count - epochs * size:,} are missing"
        )
        enough.append(f"max_epochs={-(-(drawn[source] + count) // size)} for source {source}")
    return RecipeError(
        f"stage {number} is longer than its sources: {'; '.join(missing)}",
        hint=f"fewer tokens, other weights, or Mixture([(rows, weight, max_epochs), ...]) with "
        f"{', '.join(enough)}",
    )
