"""From a batch to its documents, and from a document to its batches: closed forms of the loader's schedule.

Steps are counted from 0: step n is the batch that follows after n batches, the next one of a loader whose
state contains `"step": n`. Ranks, stages, sources, epochs and rows are counted from 0 too.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import overload

import msgspec
import numpy as np

from packline.errors import RecipeError, refuse_unknown_names
from packline.loading.loader import Loader
from packline.loading.run_file import load_run, run_schedule
from packline.loading.run_summary import write_read_documents
from packline.packing.packer import Spans
from packline.packing.rows import Rows
from packline.ragged import offsets_of
from packline.store.files import store_files
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader, document_number, provenance_of


class SpanTrace(msgspec.Struct, frozen=True):
    column: int
    """Place of its first token in the row."""
    tokens: int
    document: int
    start: int
    """First token, counted within the document."""
    provenance: Provenance


class RowTrace(msgspec.Struct, frozen=True):
    index: int
    """Place in the global batch."""
    rank: int
    place: int
    """Place in this rank's part of the batch."""
    source: int
    store: str
    row: int
    epoch: int
    """Complete passes over the source before."""
    padding: int
    spans: tuple[SpanTrace, ...]


class StepTrace(msgspec.Struct, frozen=True):
    """A global batch, or some of its rows."""

    step: int
    steps: int
    stage: int
    stages: int
    batch_size: int
    seq_len: int
    world_size: int
    fingerprint: str
    """Fingerprint of the loader, as in a saved state: equal fingerprints, equal batches."""
    rows: tuple[RowTrace, ...]


class Occurrence(msgspec.Struct, frozen=True, order=True):
    step: int
    index: int
    """Place of the row in the global batch."""
    column: int
    """Place of its first token in the row."""
    tokens: int
    start: int
    """First token, counted within the document."""
    stage: int
    source: int
    """Number of the source within the stage's mixture."""
    epoch: int
    rank: int
    place: int
    """Place of the row in this rank's part of the batch."""
    row: int


@overload
def trace(
    run: Loader | str | Path, step: int, *, rank: int | None = None, row: int | None = None
) -> StepTrace: ...
@overload
def trace(
    run: Loader | str | Path, *, document: int, store: str | Path | StoreReader | None = None
) -> list[Occurrence]: ...
@overload
def trace(run: Loader | str | Path, *, steps: range, write: str | Path) -> int: ...
@refuse_unknown_names
def trace(
    run: Loader | str | Path,
    step: int | None = None,
    *,
    rank: int | None = None,
    row: int | None = None,
    document: int | None = None,
    store: str | Path | StoreReader | None = None,
    steps: range | None = None,
    write: str | Path | None = None,
) -> StepTrace | list[Occurrence] | int:
    """Trace a batch to its documents, a document to its batches, or write the list of all that was read.

    Args:
        run: a loader, or the path of a run file.
        step: step, counted from 0: the batch after `step` batches.
        rank: limit to the rows of this rank.
        row: limit to this row of the global batch.
        document: number of a document, instead of a step.
        store: store of the document, or its folder, if the run reads several.
        steps: steps whose documents are written to a list, for `exclude`; `range(40)` are the first 40. Of a
            run file, stages that begin behind them are not opened.
        write: file of that list, `.parquet`.

    Returns:
        Contents of the batch; all uses of the document, sorted by step; or the number of documents written.

    Raises:
        RecipeError: not one of step, document and steps; no such step, rank, row or store.
        IndexError: no such document.

    >>> import packline
    >>> loader = packline.Loader(store.rows(seq_len=5), batch_size=2, shuffle=False)
    >>> [span.document for row in trace(loader, 0).rows for span in row.spans]
    [0, 0]
    >>> [(use.step, use.index) for use in trace(loader, document=0)]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    if sum(given is not None for given in (step, document, steps)) != 1 or (steps is None) != (write is None):
        raise RecipeError("expected a step, or a document, or steps and a file to write")
    if steps is not None:
        assert write is not None
        if isinstance(run, Loader):
            _refuse_unfinished(run)
            return write_read_documents(run.schedule, steps, write)
        return write_read_documents(run_schedule(*load_run(run, until=steps.stop)), steps, write)
    loader = run if isinstance(run, Loader) else Loader.from_file(run, prefetch=0)
    if step is not None:
        return trace_step(loader, step, rank=rank, row=row)
    assert document is not None
    return trace_document(loader, document, store=store)


def trace_step(loader: Loader, step: int, *, rank: int | None = None, row: int | None = None) -> StepTrace:
    _refuse_unfinished(loader)
    _check_within("step", step, len(loader), "of this run")
    batch = loader.rows_of_step(step)
    stage = loader.schedule.stages[batch.stage]
    share = stage.batch_size // loader.world_size
    places = np.arange(stage.batch_size)
    if rank is not None:
        _check_within("rank", rank, loader.world_size, "of this world")
        places = places[places // share == rank]
    if row is not None:
        _check_within("row", row, stage.batch_size, "of the global batch")
        places = places[places == row]
    rows: list[RowTrace] = []
    for source, source_rows in enumerate(stage.mixture.rows):
        here = places[batch.sources[places] == source]
        numbers, epochs = batch.rows[here], batch.epochs[here].tolist()
        contents = _contents(source_rows, numbers)
        for index, number, epoch, spans in zip(
            here.tolist(), numbers.tolist(), epochs, contents, strict=True
        ):
            padding = source_rows.seq_len - sum(span.tokens for span in spans)
            name = str(source_rows.store.place)
            rows.append(
                RowTrace(index, index // share, index % share, source, name, number, epoch, padding, spans)
            )
    return StepTrace(
        step=step,
        steps=len(loader),
        stage=batch.stage,
        stages=len(loader.schedule.stages),
        batch_size=stage.batch_size,
        seq_len=stage.mixture.seq_len,
        world_size=loader.world_size,
        fingerprint=loader.fingerprint,
        rows=tuple(sorted(rows, key=lambda found: found.index)),
    )


def trace_document(
    loader: Loader, document: int, *, store: str | Path | StoreReader | None = None
) -> list[Occurrence]:
    """All uses of a document in the whole run, in order of step, one for each range of it in a batch.

    There is none if the selection left it out, its packing dropped it, or the run ends before its rows.
    """
    _refuse_unfinished(loader)
    stores = stores_of(loader, store)
    if len(stores) > 1:
        known = ", ".join(str(one.place) for one in stores)
        raise RecipeError(f"a document of which store? This run reads {known}", hint="say store=...")
    document = document_number(stores[0], document)
    uses: list[Occurrence] = []
    for stage in loader.schedule.stages:
        share = stage.batch_size // loader.world_size
        for source, rows in enumerate(stage.mixture.rows):
            if rows.store.manifest.checksum != stores[0].manifest.checksum:
                continue
            found = loader.occurrences_of(stage.number, source, rows.rows_of(document))
            spans = rows.spans(found.rows)
            own = np.flatnonzero(spans.documents == document)
            use = spans.offsets.searchsorted(own, "right") - 1
            of_uses = [values[use] for values in (found.steps, found.places, found.epochs, found.rows)]
            of_spans = [values[own] for values in (_columns(spans), spans.lengths, spans.starts)]
            for step, index, epoch, row, column, tokens, start in zip(
                *(values.tolist() for values in (*of_uses, *of_spans)), strict=True
            ):
                rank, place = divmod(index, share)
                uses.append(
                    Occurrence(
                        step, index, column, tokens, start, stage.number, source, epoch, rank, place, row
                    )
                )
    return sorted(uses)


def stores_of(loader: Loader, wanted: str | Path | StoreReader | None = None) -> list[StoreReader]:
    """Stores that a run reads, each once, in order of first use; or the wanted one alone.

    Stores are compared by content: one that was moved or copied is the same.
    """
    stores: dict[str, StoreReader] = {}
    for rows in loader.schedule.sources.values():
        stores.setdefault(rows.store.manifest.checksum, rows.store)
    if wanted is None:
        return list(stores.values())
    if isinstance(wanted, StoreReader):
        place, found = wanted.place, [stores[key] for key in stores.keys() & {wanted.manifest.checksum}]
    else:
        place, address = wanted, store_files(wanted).address
        found = [one for one in stores.values() if one.files.address == address]
    if not found:
        known = ", ".join(str(one.place) for one in stores.values())
        raise RecipeError(f"the run does not read {place}", hint=f"it reads {known}")
    return found


def store_of(loader: Loader, stage: int, source: int) -> StoreReader:
    return loader.schedule.stages[stage].mixture.rows[source].store


def _refuse_unfinished(loader: Loader) -> None:
    if loader.building:
        raise RecipeError(
            f"cannot trace a run of {', '.join(loader.building)} before the build has ended",
            hint="the same step of a loader of the finished store has the same documents",
        )


def _contents(rows: Rows, numbers: np.ndarray) -> list[tuple[SpanTrace, ...]]:
    spans = rows.spans(numbers)
    columns = (_columns(spans), spans.lengths, spans.documents, spans.starts)
    origins = provenance_of(rows.store, spans.documents)
    found = list(map(SpanTrace, *(values.tolist() for values in columns), origins))
    return [tuple(found[first:last]) for first, last in itertools.pairwise(spans.offsets.tolist())]


def _columns(spans: Spans) -> np.ndarray:
    """First column of each span in its row."""
    before = offsets_of(spans.lengths)
    return before[:-1] - np.repeat(before[spans.offsets[:-1]], np.diff(spans.offsets))


def _check_within(name: str, value: int, count: int, what: str) -> None:
    if not 0 <= value < count:
        raise RecipeError(f"{name} {value:,}: expected 0 to {count - 1:,}, the {name}s {what}")
