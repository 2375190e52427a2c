"""The job behind `packline.build`: text to tokens. All refusals come before work, the cheapest first."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.parity import RoundTrip
from packline.errors import RecipeError, refuse_name
from packline.fingerprint import Hasher
from packline.jobs.cut_inputs import with_lanes
from packline.jobs.engine import run_job
from packline.jobs.events import BuildPlanned, Event, Finished, Note, Progress, UnitDone, UnitsKnown
from packline.jobs.job import Session
from packline.jobs.machines import On
from packline.jobs.plan import Unit, count_units
from packline.jobs.resources import count_workers, free_disk
from packline.jobs.store_job import StoreJob
from packline.jobs.text_build import TextBuild, prepare
from packline.jobs.text_unit import BuildInfo, BuildResult, Built
from packline.jobs.totals import LimitedRun, TextScan, settle_share
from packline.recipe import Recipe, RunOptions, is_limited
from packline.sources.files import InputFile, not_text_notes
from packline.sources.reader import Span, piece_checksum, read_span, stream_checksum
from packline.store.ledger import totals_by_source
from packline.store.manifest import WHOLE_STREAM, InputPiece, Manifest, split_warnings
from packline.store.naming import planned_name

IN_FLIGHT = 2
"""Units of a worker whose files are on its disk: one is uploaded while the next is made."""
BYTES_A_TOKEN = 3.5
"""Estimated bytes per token for the disk check, on the low side for English."""


def run_build(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_event: Callable[[Event], None] | None = None,
    started: float | None = None,
    reuse: str | Path | None = None,
    on: On = "local",
) -> Finished:
    """Build a store and return the result; run again after an error, it resumes from the committed units.

    Args:
        on_event: called with every event, in this thread.
        started: start of all time measurements, on the monotonic clock; by default now.
        reuse: folder of an earlier store to take units from.
    """
    return run_job(make_build(recipe, out, options, started, reuse, on), on_event, on=on)


def make_build(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    started: float | None = None,
    reuse: str | Path | None = None,
    on: On = "local",
) -> BuildJob:
    refuse_name(str(out))
    began = time.monotonic() if started is None else started
    if reuse is None:
        return BuildJob(recipe, str(out), options, began, on)
    from packline.jobs.reuse import ReusingBuild

    job = ReusingBuild(recipe, str(out), options, began, on)
    job.take_from(str(reuse))
    return job


class BuildJob(StoreJob[BuildResult, Finished]):
    hint_of_other = (
        "a finished store does not change: another --out with --reuse OLD takes over what is equal"
    )

    def __init__(self, recipe: Recipe, out: str, options: RunOptions, started: float, on: On) -> None:
        if on != "local":
            refuse_limits(recipe)
        self.work = work = prepare(recipe, options, here=on == "local")
        super().__init__(
            out=out,
            recipe=work.recipe,
            tokenizer=work.tokenizer,
            boundary=work.boundary,
            files=work.files,
            units=work.units,
        )
        self.given_workers, self.given_memory = work.options.workers, work.options.memory_bytes
        self._started = started
        self._info: BuildInfo | None = None
        self._first_progress, self._run_bytes = 0.0, 0
        self._last: dict[float, Built] = {}
        """Last result of each process, by the time when it began to encode."""

    def begin(self) -> Finished | None:
        if (summary := super().begin()) is not None:
            return summary
        if isinstance(count := self.recipe.val_documents, int):
            sources = self.recipe.sources
            units = [unit for unit in self.units if not sources[unit.source].split]
            scan = TextScan(msgspec.structs.replace(self.work, units=[]), count)
            self.val_share = share = settle_share(self, scan, units, count)
            # For the manifest, the number that was given; for workers, the fraction that it amounts to.
            fraction: dict[str, Any] = {"val_fraction": share, "val_documents": msgspec.UNSET}
            self.work.recipe = msgspec.structs.replace(self.work.recipe, **fraction)
        return None

    def unproven(self) -> set[int]:
        """Files that were not read to their end: slice by slice, or by units that a limit has ended."""
        found, planned = set(), {unit.name: unit for unit in self.units}
        for name, receipt in self.receipts.items():
            unit, pieces = planned[planned_name(name)], len(receipt.inputs)
            if unit.name not in self.streams if unit.slice_bytes else pieces < len(unit.spans):
                found.add(unit.spans[pieces].file)
        return found

    def checksum(self, file: InputFile, piece: InputPiece) -> str:
        """Checksum of a piece as it is now; decoded too only if bytes alone have another."""
        found = input_checksum(file, piece, self.recipe)
        if found == piece.checksum or piece.stop == WHOLE_STREAM:
            return found
        hasher, span = Hasher(), Span(file.index, piece.start, piece.stop)
        source, limit = self.recipe.sources[file.source], self.recipe.max_document_bytes
        for _ in read_span(file, source, span, limit, hasher):
            pass
        return str(hasher.hexdigest())

    def workers(self, units: int) -> int:
        return count_workers(self.work.options)[0]

    def announce(self, todo: Sequence[Unit], workers: int) -> None:
        work = self.work
        done = ((receipt.source, receipt.ledger) for receipt in self.receipts.values())
        self._total, is_exact = count_units(self.plan, self.streams)
        sliced = (unit for unit in self.plan.units if unit.slice_bytes and unit.name not in self.streams)
        self._expected = {unit.name: unit.receipts for unit in sliced}
        planned = BuildPlanned(
            units=self._total,
            is_exact=is_exact,
            units_done=len(self.receipts),
            workers=workers,
            sources=work.source_bytes,
            sources_done=totals_by_source(work.names, done),
            seconds=time.monotonic() - self._started,
            **self.facts(),
        )
        self.tell(planned)
        for line in not_text_notes(self.files, work.names):
            self.tell(Note(line))
        itemsize = 2 if self.dtype == "uint16" else 4
        text_bytes = sum(unit.text_bytes for unit in todo)
        what = "store"
        if self.folder.local is None:  # only the units in flight are on this disk
            what = f"scratch folder {self.folder.work}"
            largest = max((unit.text_bytes for unit in self.units), default=0)
            text_bytes = min(text_bytes, IN_FLIGHT * max(workers, 1) * largest)
        needed, free = int(text_bytes / BYTES_A_TOKEN * itemsize), free_disk(self.folder.parent)
        if needed > free and not is_limited(self.recipe):
            room = f"{needed / 1e6:,.1f} MB, and the disk has {free / 1e6:,.1f} MB free"
            self.tell(Note(f"the {what} may need {room}"))

    def opening(self) -> TextBuild:
        given: dict[str, Any] = {"workers": self.given_workers, "memory_bytes": self.given_memory}
        scratch = str(self.folder.tmp) if is_limited(self.recipe) else ""
        return msgspec.structs.replace(
            self.work,
            options=msgspec.structs.replace(self.work.options, **given),
            units=[],
            loaded=self.work.encodable,
            fingerprint=self.tokenizer.fingerprint,
            out=self.folder.place,
            scratch=scratch,
        )

    def run(self, session: Session, units: Sequence[Unit]) -> None:
        """Run units: files that cannot be cut in lanes, and up to the limits if there are any."""
        if self._info is None:
            self._info = session.info()
            self.tell(self._info.tried)
        if is_limited(self.recipe):
            LimitedRun(self, session).run()
            return
        if any(unit.slice_bytes for unit in units):
            units = with_lanes(units, self.files, session.width)
        session.run(units, self.on_progress, self.take)

    def on_progress(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._first_progress = self._first_progress or time.monotonic()
            self._run_bytes += event.text_bytes
        self.tell(event)

    def take(self, name: str, result: BuildResult) -> None:
        if isinstance(result, Built):
            receipt = result.receipt
            self.committed.add(receipt.unit, receipt)
            self._last[result.first_encode] = result
            self.tell(UnitDone(receipt.unit, receipt.ledger.documents, receipt.ledger.tokens, result.rates))
        elif name not in self.streams:  # else another lane has recorded it
            self.committed.add(name, result)
            self._total += result.units - self._expected.pop(name)
            self.tell(UnitsKnown(self._total, not self._expected and not is_limited(self.recipe)))
        self.publisher.publish_when_due()

    def round_trip(self) -> RoundTrip:
        assert self._info is not None
        return self._info.round_trip

    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> Finished:
        last, engine_bytes = self._last.values(), Counter[str]()
        if undecoded := sum(one.undecoded for one in last):
            what = f"{undecoded} of the documents that were decoded did not give their very text back"
            why = "with ids equal to the reference's: this tokenizer does not keep every character"
            self.tell(Note(f"{what}, {why}"))
        for one in last:
            engine_bytes.update(one.engine_bytes)
        # Clocks of other machines are not comparable with this one's.
        first = self._first_progress if self.is_shared else min(self._last, default=0.0)
        finished = Finished(
            manifest.ledger,
            manifest.sources,
            len(manifest.shards),
            manifest.unit_count,
            manifest.store_bytes,
            time.monotonic() - self._started,
            max(first - self._started, 0.0) if first else 0.0,
            0.0 if self._info is None else self._info.load_seconds,
            self._run_bytes,
            max((one.peak_rss_bytes for one in last), default=0),
            dict(engine_bytes),
            nothing_to_do,
            split_warnings(manifest),
        )
        self.tell(finished)
        return finished


def refuse_limits(recipe: Recipe) -> None:
    """Refuse a limit of the whole build where several processes share it, and do not know of each other."""
    given = ("limit_documents", "limit_tokens")
    if name := next((name for name in given if isinstance(getattr(recipe, name), int)), None):
        raise RecipeError(
            f"{name} counts the documents of the whole build, and slices do not know of each other",
            hint="leave it out, or build on one machine",
        )


def input_checksum(file: InputFile, piece: InputPiece, recipe: Recipe) -> str:
    """Checksum of a piece of an input of text as it is now, without decoding documents where that may be."""
    source, limit = recipe.sources[file.source], recipe.max_document_bytes
    if piece.stop == WHOLE_STREAM:
        return stream_checksum(file, source, limit)
    return piece_checksum(file, source, Span(file.index, piece.start, piece.stop), limit)
