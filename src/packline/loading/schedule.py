"""The schedule of a run: the rows of each global batch, as a closed form of the step.

    step ─> stage, rows k..k+B of its mixture ─> source and draw ─> row          and back

It does not depend on ranks, threads and processes, nor on tokens: it never reads a store. A source that
several stages use resumes where the previous stage left off, so its draws are counted over the whole run, and
so is `max_epochs`. The key of a source's order is (seed, its number, epoch); sources are numbered by first
appearance in the run, so steps before a changed stage are those of the run without the change.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packline.errors import RecipeError
from packline.fingerprint import hash_value
from packline.loading.mixture import ENDLESS, Mixture, Stage, check_same_tokenizer, rows_per_batch
from packline.loading.order import GLOBAL, Order, RowOrder
from packline.packing.batch import BatchPart

if TYPE_CHECKING:
    from packline.packing.rows import Rows


@dataclass(frozen=True, slots=True)
class BatchRows:
    stage: int
    sources: np.ndarray
    """int64 `[B]`: number of the source within the stage's mixture."""
    rows: np.ndarray
    """int64 `[B]`: number of the row within its source."""
    epochs: np.ndarray
    """int64 `[B]`: complete passes over the source before, from 0."""


@dataclass(frozen=True, slots=True)
class Occurrences:
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
class ScheduledStage:
    """A stage and its range of steps in the run."""

    number: int
    mixture: Mixture
    batch_size: int
    first_step: int
    steps: int
    consumed: tuple[int, ...]
    """Rows of each source consumed in earlier stages."""
    orders: tuple[Order, ...]
    left_over: int
    """Rows after the last whole batch, if the stage ends because a source is used up."""

    def draws(self, source: int, row: int) -> int:
        """Uses of a source, counted through the whole run, before a row of the stage."""
        return self.consumed[source] + self.mixture.interleaving.count(source, row)

    def rows_by_source(self, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """(source, rows in order of use) of the stage's rows `start` to `stop`."""
        for source, order in enumerate(self.orders):
            first, last = self.draws(source, start), self.draws(source, stop)
            if first < last:
                yield source, order.between(first, last)


def parts_of(stage: ScheduledStage, start: int, stop: int) -> list[BatchPart]:
    """The stage's rows `start` to `stop`, by source, and their places in the batch."""
    found = list(stage.rows_by_source(start, stop))
    if len(found) == 1:
        return [BatchPart(stage.mixture.rows[source], rows) for source, rows in found]
    sources = stage.mixture.interleaving.sources(start, stop)
    return [
        BatchPart(stage.mixture.rows[source], rows, np.flatnonzero(sources == source))
        for source, rows in found
    ]


class Schedule:
    """All stages of a run, in sequence; `batch_size` or `batch_tokens` is for stages without their own."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        batch_size: int | None,
        batch_tokens: int | str | None = None,
        seed: int,
        order: RowOrder = GLOBAL,
    ) -> None:
        if not stages:
            raise RecipeError("a run needs at least one stage, found none")
        self.seed, self.order = seed, order
        self.declared = list(stages)
        self.sizes = [
            _batch_size(number, stage, batch_size, batch_tokens) for number, stage in enumerate(stages)
        ]
        self.stages: list[ScheduledStage] = []
        """Those that have a place: up to the first whose end is not known."""
        self.has_end = True
        """False if the end of the last of them depends on rows that are not there yet."""
        orders: dict[str, Order] = {}
        consumed: dict[str, int] = {}
        ends = [*(stage.from_step for stage in stages[1:]), None]
        if stages[0].from_step:
            raise RecipeError(
                f"stage 0: from_step is {stages[0].from_step:,}: expected 0, the beginning of the run",
                hint="keep the stages of the steps before, also where they are over",
            )
        for number, (stage, size, end) in enumerate(zip(stages, self.sizes, ends, strict=True)):
            first = stages[0].mixture.rows[0]
            check_same_tokenizer(stage.mixture.rows[0], first, f"stage {number}", "stage 0")
            if not self.has_end:
                continue
            mixture = stage.mixture
            for rows in mixture.rows:
                if rows.fingerprint not in orders:
                    orders[rows.fingerprint] = Order(len(rows), seed, len(orders), order=order)
            before = [consumed.get(rows.fingerprint, 0) for rows in mixture.rows]
            steps, left_over = _length(number, stage, size, len(self), end, before)
            scheduled = ScheduledStage(
                number,
                mixture,
                size,
                len(self),
                steps,
                tuple(before),
                tuple(orders[rows.fingerprint] for rows in mixture.rows),
                left_over,
            )
            self.stages.append(scheduled)
            for source, rows in enumerate(mixture.rows):
                consumed[rows.fingerprint] = scheduled.draws(source, steps * size)
            said = end is not None or stage.tokens is not None
            self.has_end = said or all(len(rows) < ENDLESS for rows in mixture.rows)
        self._firsts = [stage.first_step for stage in self.stages]

    def __len__(self) -> int:
        return self.stages[-1].first_step + self.stages[-1].steps if self.stages else 0

    def drawn(self, step: int) -> list[tuple[Rows, int]]:
        """Every source that is used before a step, once each, and how often until then."""
        found: dict[str, tuple[Rows, int]] = {}
        for stage in self.stages:
            if stage.first_step >= step:
                break
            rows = min(step - stage.first_step, stage.steps) * stage.batch_size
            for number, source in enumerate(stage.mixture.rows):
                found[source.fingerprint] = (source, stage.draws(number, rows))
        return list(found.values())

    def stage_of(self, step: int) -> ScheduledStage:
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self):,}")
        return self.stages[bisect.bisect_right(self._firsts, step) - 1]

    def rows_of_step(self, step: int) -> BatchRows:
        scheduled = self.stage_of(step)
        start = (step - scheduled.first_step) * scheduled.batch_size
        stop = start + scheduled.batch_size
        sources = scheduled.mixture.interleaving.sources(start, stop).astype(np.int64)
        rows, epochs = np.empty_like(sources), np.empty_like(sources)
        for source, found in scheduled.rows_by_source(start, stop):
            here = sources == source
            first = scheduled.draws(source, start)
            rows[here] = found
            epochs[here] = np.arange(first, first + len(found)) // scheduled.orders[source].rows
        return BatchRows(scheduled.number, sources, rows, epochs)

    def occurrences_of(self, stage: int, source: int, rows: np.ndarray) -> Occurrences:
        """Occurrences of rows of a source in a stage, int64 `[N]`: the inverse of `rows_of_step`."""
        scheduled = self.stages[stage]
        interleaving, order = scheduled.mixture.interleaving, scheduled.orders[source]
        first = scheduled.consumed[source]
        stop = scheduled.draws(source, scheduled.steps * scheduled.batch_size)
        rows = np.asarray(rows, np.int64).reshape(-1)
        epochs = range(first // order.rows, -(-stop // order.rows))
        draws = np.empty((len(epochs), len(rows)), np.int64)
        for number in range(len(epochs)):
            draws[number] = order.draws_of(rows, epochs[number])
        epoch, index = np.nonzero((draws >= first) & (draws < stop))
        places = interleaving.places(source, draws[epoch, index] - first)
        by_place = np.argsort(places)
        places, epoch, index = places[by_place], epoch[by_place] + epochs.start, index[by_place]
        steps, inner = np.divmod(places, scheduled.batch_size)
        return Occurrences(rows[index], epoch, steps + scheduled.first_step, inner)

    @cached_property
    def sources(self) -> dict[str, Rows]:
        """Rows of every source by fingerprint, once each, in the order of their numbers."""
        return {rows.fingerprint: rows for stage in self.declared for rows in stage.mixture.rows}

    def fingerprints(self) -> dict[str, str]:
        """12 hexadecimal digits for each thing that determines the contents of the batches, by its name.

        The length of the last stage affects nothing before its end, so a run may be extended.
        """
        rows = [rows for stage in self.declared for rows in stage.mixture.rows]
        facts = {
            "stores": [source.store.manifest.checksum for source in rows],
            "rows (seq_len, packing, selection)": [source.settings_fingerprint for source in rows],
            "stages (weights, tokens)": [
                [stage.mixture.interleaving.parts for stage in self.declared],
                self._ends(),
            ],
            "batch_size": self.sizes,
            "order": [str(self.seed), str(self.order)],
        }
        return {name: hash_value(fact)[:12] for name, fact in facts.items()}

    def _ends(self) -> list[Any]:
        """Steps of all stages but the last; where rows may not be there yet, what decides them if rows do."""
        if not self.order.window_rows:
            return [stage.steps for stage in self.stages[:-1]]
        facts: list[Any] = []
        first: int | None = 0
        for stage, size, after in zip(self.declared, self.sizes, self.declared[1:], strict=False):
            steps, end = _steps(stage, size), after.from_step
            if end is None:
                facts.append(steps or list(stage.mixture.max_epochs))
                first = None if first is None or steps is None else first + steps
            else:
                facts.append([*stage.mixture.max_epochs, end] if first is None else end - first)
                first = end
        return facts


def source_name(rows: Rows) -> str:
    """Store of a source, with the settings of its documents that are not the default."""
    words = ", ".join(
        f"{name} {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
        for name, value in rows.described.items()
    )
    name = Path(rows.store.place).name
    return f"{name} ({words})" if words else name


def _length(
    number: int, stage: Stage, batch_size: int, first_step: int, end: int | None, consumed: list[int]
) -> tuple[int, int]:
    """Steps of a stage, and rows left over, if it has enough rows; `end`: first step of the next."""
    mixture = stage.mixture
    limit = mixture.limit(consumed)
    steps, left_over = _steps(stage, batch_size), 0
    if end is not None:
        last = None if steps is None else first_step + steps
        if end <= first_step or (last is not None and last < end):
            upto = "" if last is None else f", and at most {last:,}, where it ends"
            raise RecipeError(
                f"stage {number + 1}: from_step is {end:,}: expected a step after {first_step:,}, the "
                f"first of stage {number}{upto}",
                hint=f"leave stage {number} out if it has no step, or give it more tokens",
            )
        steps = end - first_step
    if steps is None and limit is None:
        raise RecipeError(
            f"stage {number} has no end: its sources may be used any number of times",
            hint="give its length: Stage(..., tokens=...), or set max_epochs of a source",
        )
    if steps is None:
        steps, left_over = divmod(limit or 0, batch_size)
    elif limit is not None and steps * batch_size > limit:
        raise _used_up(number, mixture, steps * batch_size, consumed)
    if not steps:
        found = f"{limit:,} rows in its sources" if stage.tokens is None else f"{stage.tokens:,} tokens"
        raise RecipeError(
            f"stage {number}: expected at least one batch of {batch_size:,} rows of {mixture.seq_len:,} "
            f"tokens, found {found}",
            hint="more tokens or epochs, or a smaller batch_size",
        )
    return steps, left_over


def _batch_size(number: int, stage: Stage, batch_size: int | None, batch_tokens: int | str | None) -> int:
    try:
        size = stage.batch_size or rows_per_batch(stage.seq_len, batch_size, batch_tokens)
    except RecipeError as error:
        raise RecipeError(f"stage {number}: {error.message}", hint=error.hint) from None
    if size is None:
        raise RecipeError(
            f"stage {number}: expected a batch_size above 0, found None",
            hint="batch_size counts rows, batch_tokens tokens; of the loader or of every stage",
        )
    return size


def _steps(stage: Stage, batch_size: int) -> int | None:
    """Steps of a stage that is as long as its tokens; None for one that lasts until a source is used up."""
    return None if stage.tokens is None else stage.tokens // (batch_size * stage.mixture.seq_len)


def _used_up(number: int, mixture: Mixture, rows: int, consumed: list[int]) -> RecipeError:
    """Error that names the sources with too few rows for a stage, and how many are missing."""
    missing, enough = [], []
    for source, count in enumerate(mixture.interleaving.counts(rows)):
        before, epochs, size = consumed[source], mixture.max_epochs[source], len(mixture.rows[source])
        if epochs is None or before + count <= epochs * size:
            continue
        earlier = f" after {before:,} in earlier stages" if before else ""
        missing.append(
            f"source {source} ({source_name(mixture.rows[source])}) needs {count:,} rows{earlier} and has "
            f"{size:,} x {epochs} epochs: {before + count - epochs * size:,} are missing"
        )
        enough.append(f"max_epochs = {-(-(before + count) // size)} for source {source}")
    return RecipeError(
        f"stage {number} is longer than its sources: {'; '.join(missing)}",
        hint=f"fewer tokens, other weights, or more epochs: {', '.join(enough)} (in Python: "
        "Mixture([(rows, weight, max_epochs), ...]))",
    )
