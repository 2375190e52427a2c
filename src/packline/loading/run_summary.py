"""Run files in figures: what a run reads of each source, and what differs between two run files.

Also the documents that a run has read: their list, and the refusal of a later stage that would read them
again. A new source, of a store that was built again or with other settings, begins with its first rows,
whatever was trained on before: so a stage with `from_step` is refused if it takes documents of an earlier
one, unless its `max_epochs` allows one pass more than were begun before. Documents are the same if their
shards have equal tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.loading.mixture import Mixture, Stage
from packline.loading.run_file import load_run, read_run, run_schedule
from packline.loading.schedule import Schedule, ScheduledStage, source_name
from packline.store.difference import Change, changes_of

if TYPE_CHECKING:
    from packline.loading.order import Order
    from packline.packing.rows import Rows
    from packline.store.reader import StoreReader


SAMPLE = 4096
"""Rows of an earlier source that are looked at: the first, the last, and others at equal distances."""
ROWS = 1 << 16


def write_read_documents(schedule: Schedule, steps: range, path: str | Path) -> int:
    """Write the list of all documents that a run reads in some steps, for `exclude`; return their number."""
    from packline.packing.exclusions import check_list_path, write_list

    check_list_path(path)
    if steps.step != 1 or not 0 <= steps.start < steps.stop <= len(schedule):
        raise RecipeError(
            f"steps {steps.start}:{steps.stop}: expected some of the {len(schedule):,} steps of this run",
            hint="0:40 are the first 40 steps, from 0 to 39",
        )
    read: dict[str, tuple[StoreReader, np.ndarray]] = {}
    for stage in schedule.stages:
        first, stop = (
            min(max(step - stage.first_step, 0), stage.steps) * stage.batch_size
            for step in (steps.start, steps.stop)
        )
        for begin in range(first, stop, ROWS):
            for source, numbers in stage.rows_by_source(begin, min(begin + ROWS, stop)):
                rows = stage.mixture.rows[source]
                none = rows.store, np.zeros(int(rows.store.firsts[-1]), bool)
                read.setdefault(rows.store.manifest.checksum, none)[1][rows.spans(numbers).documents] = True
    reason = f"read in steps {steps.start} to {steps.stop - 1}"
    return write_list(path, [(store, np.flatnonzero(marks), reason) for store, marks in read.values()])


def refuse_used_again(schedule: Schedule) -> None:
    """Refuse a stage with `from_step` whose new sources have documents that were trained on before it."""
    orders: dict[str, Order] = {}
    for stage in schedule.stages:
        sources = list(zip(stage.mixture.rows, stage.mixture.max_epochs, stage.orders, strict=True))
        for place, (rows, most, _) in enumerate(sources):
            if not schedule.declared[stage.number].from_step or rows.fingerprint in orders or most is None:
                continue
            for earlier, draws in schedule.drawn(stage.first_step):
                passes = -(-draws // max(len(earlier), 1))
                if not passes or passes < most:
                    continue
                document = _shared_document(earlier, orders[earlier.fingerprint], draws, rows)
                if document is not None:
                    step = stage.first_step
                    raise RecipeError(
                        f"stage {stage.number}: source {place} ({source_name(rows)}) would train again on "
                        f"documents that were trained on before step {step:,} as part of "
                        f"{source_name(earlier)}, such as document {document:,}",
                        hint=f"packline trace run.toml --steps 0:{step} --write seen.parquet lists them, and "
                        f'exclude = "seen.parquet" leaves them out; or max_epochs = {passes + 1} uses them '
                        "again",
                    )
        orders |= {rows.fingerprint: order for rows, _, order in sources}


def _shared_document(earlier: Rows, order: Order, draws: int, rows: Rows) -> int | None:
    """A document of these rows that the first rows of an earlier source have; None if none was found."""
    selection = getattr(rows, "selection", None)
    if selection is None or (earlier.settled is not None and earlier.settled < draws):
        return None  # rows without a store, or not built yet
    sample = np.unique(np.linspace(0, draws - 1, min(draws, SAMPLE)).astype(np.int64))
    documents = np.unique(earlier.spans(order(sample)).documents)
    found = _in_other_store(earlier.store, documents, rows.store)
    again = found[selection.places(found) >= 0]
    return int(again[0]) if len(again) else None


def _in_other_store(store: StoreReader, documents: np.ndarray, other: StoreReader) -> np.ndarray:
    """Numbers in another store of those of the documents that it has, ascending."""
    if store is other or (store.build is None and store.manifest.checksum == other.manifest.checksum):
        return documents
    # Number of the only shard with the same tokens in the other store, by shard of this one.
    mine, theirs = (one.manifest.shards.names("bin_checksum") for one in (store, other))
    times = Counter(theirs)
    numbers = {checksum: number for number, checksum in enumerate(theirs) if times[checksum] == 1}
    shards = np.array([numbers.get(checksum, -1) for checksum in mine], np.int64)
    number = store.firsts.searchsorted(documents, "right") - 1
    there = shards[number]
    return np.sort((other.firsts[there] + documents - store.firsts[number])[there >= 0])


class SourceUse(msgspec.Struct, frozen=True):
    source: str
    """Store, and the settings of its documents."""
    store: str
    share: float
    rows: int
    used: int
    epochs: float
    """Passes at the end of the stage, counted from the beginning of the run."""
    max_epochs: int | None
    missing: int


class StageUse(msgspec.Struct, frozen=True):
    first_step: int
    steps: int
    batch_size: int
    seq_len: int
    tokens: int
    sources: tuple[SourceUse, ...]


class RunUse(msgspec.Struct, frozen=True):
    steps: int
    tokens: int
    seed: int
    order: str
    stages: tuple[StageUse, ...]
    warnings: tuple[str, ...]


def summarize_run(path: str | Path) -> RunUse:
    """Stages of a run file, and the use of their sources; also of a run whose sources have too few rows."""
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
    one: str
    other: str
    equal: bool
    settings: list[Change]
    """Settings with another value, as in `stages[1].sources[0].weight`; None where a file leaves it out."""


def compare_runs(one: str | Path, other: str | Path) -> RunDifference:
    """Compare the settings of two run files; folders are compared as resolved. No store is opened."""
    mine, theirs = (dict(_settings_of(read_run(path), "")) for path in (one, other))
    changes = changes_of(mine, theirs)
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
