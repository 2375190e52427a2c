"""Run files in figures: what a run reads of each source, and what differs between two run files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import RecipeError
from packline.loading.mixture import Mixture, Stage
from packline.loading.run_file import load_run, read_run, run_schedule
from packline.loading.schedule import Schedule, ScheduledStage, source_name
from packline.loading.used_again import refuse_used_again
from packline.store.difference import Change


class SourceUse(msgspec.Struct, frozen=True):
    """Use of one source in a stage."""

    source: str
    """Store, and the settings of its documents."""
    store: str
    share: float
    rows: int
    """Rows that it has."""
    used: int
    """Rows that the stage uses, with repetition."""
    epochs: float
    """Passes at the end of the stage, counted from the beginning of the run."""
    max_epochs: int | None
    missing: int
    """Rows that it lacks for this."""


class StageUse(msgspec.Struct, frozen=True):
    """One stage of a run."""

    first_step: int
    steps: int
    batch_size: int
    """Rows per global batch."""
    seq_len: int
    tokens: int
    sources: tuple[SourceUse, ...]


class RunUse(msgspec.Struct, frozen=True):
    """A whole run."""

    steps: int
    tokens: int
    seed: int
    order: str
    stages: tuple[StageUse, ...]
    warnings: tuple[str, ...]
    """Reasons for which a loader refuses the run."""


def summarize_run(path: str | Path) -> RunUse:
    """Stages of a run file, and the use of their sources; also of a run whose sources have too few rows.

    Raises:
        RecipeError: an invalid run file.
        StoreError: a store is missing, damaged or has no rows to give.
    """
    stages, settings = load_run(path)
    warnings = []
    schedule: Schedule | None = None
    try:
        schedule = run_schedule(stages, settings)
        refuse_used_again(schedule)
    except RecipeError as error:
        warnings.append(f"{error.message}; {error.hint}")
        schedule = schedule or run_schedule(list(_without_limits(stages)), settings)
    used = tuple(_stage_use(stage, stages[stage.number]) for stage in schedule.stages)
    tokens = sum(stage.tokens for stage in used)
    return RunUse(len(schedule), tokens, schedule.seed, settings.order, used, tuple(warnings))


def _without_limits(stages: list[Stage]) -> Iterator[Stage]:
    """The same stages; those with an end of their own may use their sources any number of times."""
    for stage, after in zip(stages, [*stages[1:], None], strict=True):
        if stage.tokens is None and (after is None or after.from_step is None):
            yield stage
            continue
        entries = zip(stage.mixture.rows, stage.mixture.weights, [None] * len(stage.mixture), strict=True)
        yield Stage(
            Mixture(entries), tokens=stage.tokens, batch_size=stage.batch_size, from_step=stage.from_step
        )


def _stage_use(stage: ScheduledStage, declared: Stage) -> StageUse:
    mixture, rows = stage.mixture, stage.steps * stage.batch_size
    counts = mixture.interleaving.counts(rows)
    sources = []
    for number, source in enumerate(mixture.rows):
        most, total = declared.mixture.max_epochs[number], stage.consumed[number] + counts[number]
        sources.append(
            SourceUse(
                source_name(source),
                str(source.store.place),
                float(mixture.shares[number]),
                len(source),
                counts[number],
                total / len(source),
                most,
                0 if most is None else max(total - most * len(source), 0),
            )
        )
    seq_len = mixture.seq_len
    return StageUse(stage.first_step, stage.steps, stage.batch_size, seq_len, rows * seq_len, tuple(sources))


class RunDifference(msgspec.Struct, frozen=True):
    """Difference between two run files."""

    one: str
    other: str
    equal: bool
    settings: list[Change]
    """Settings with another value, as in `stages[1].sources[0].weight`; None where a file leaves it out."""


def compare_runs(one: str | Path, other: str | Path) -> RunDifference:
    """Compare the settings of two run files; folders are compared as resolved. No store is opened.

    Raises:
        RecipeError: an invalid run file.
    """
    mine, theirs = (dict(_settings_of(read_run(path), "")) for path in (one, other))
    changes = [
        Change(name, mine.get(name), theirs.get(name))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]
    return RunDifference(str(one), str(other), not changes, changes)


def _settings_of(table: msgspec.Struct, name: str) -> Iterator[tuple[str, Any]]:
    """Every setting that is not the default, by its place."""
    for field in msgspec.structs.fields(table):
        value, place = getattr(table, field.name), f"{name}{field.name}"
        if isinstance(value, msgspec.Struct):
            yield from _settings_of(value, f"{place}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            for number, one in enumerate(value):
                yield from _settings_of(one, f"{place}[{number}].")
        elif value != field.default:
            yield place, value
