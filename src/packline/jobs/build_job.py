"""The job behind `packline.build`: text to tokens.

    driver   inputs, tokenizer, boundary, units          checked before the folder is touched
    host     encoder loaded, engines tried and chosen    shared by the workers
    units    read, filter, encode, audit, split, write   (`unit`)
    finish   limits of the whole build, then the manifest

All refusals come before work, the cheapest checks first: settings, inputs, tokenizer, boundary tokens,
folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.parity import RoundTrip
from packline.errors import PacklineError, RecipeError
from packline.fingerprint import Hasher
from packline.jobs.begun import Stream, Unit, UnitCount
from packline.jobs.build_runner import (
    BuildInfo,
    BuildResult,
    Built,
    StreamRead,
    TokenizeSettings,
)
from packline.jobs.engine import run_job
from packline.jobs.events import (
    BuildPlanned,
    EnginesTried,
    Event,
    Finished,
    Note,
    Progress,
    UnitDone,
    UnitsKnown,
)
from packline.jobs.identity import BuildIdentity, digest_inputs
from packline.jobs.job import Session
from packline.jobs.limits import (
    VAL_NOTE,
    LimitWatch,
    apply_limits,
    run_scans,
    settle_share,
    share_below,
)
from packline.jobs.on import On
from packline.jobs.resources import (
    count_workers,
    free_disk,
)
from packline.jobs.reuse import Reuse
from packline.jobs.store_job import Part, StoreJob
from packline.jobs.unit import Task
from packline.jobs.units import prepare
from packline.recipe import Recipe, RunOptions
from packline.sources.files import InputFile, not_text_notes
from packline.sources.piece_checksum import piece_checksum
from packline.sources.reader import Span, read_span
from packline.sources.stream_splitter import StreamEnd, split_stream
from packline.storage.inputs import refuse_name
from packline.store.ledger import totals_by_source
from packline.store.manifest import InputPiece, Manifest, Receipt, split_warnings
from packline.store.unit_names import planned_name

UNDECODED = (
    "{} of the documents that were decoded did not give their very text back, with ids equal to the"
    " reference's: this tokenizer does not keep every character"
)
SHOWN = 5
"""Number of units of an earlier store that cannot be used which are named."""
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
    """Build a store and return the result.

    Args:
        on_event: called with every event, in this thread.
        started: start of all time measurements, on the monotonic clock; by default now.
        reuse: folder of an earlier store to take units from (`reuse`).
        on: where the units run.

    Raises:
        PacklineError: the build stopped; running it again resumes from the committed units.
    """
    refuse_name(str(out))
    began = time.monotonic() if started is None else started
    earlier = None if reuse is None else str(reuse)
    return run_job(BuildJob(recipe, str(out), options, began, earlier, here=on == "local"), on_event, on=on)


class BuildJob(StoreJob[Task, BuildResult, Finished]):
    """One build; made, it has checked settings, inputs and tokenizer.

    Args:
        started: start of all time measurements, on the monotonic clock.
        reuse: folder of an earlier store to take units from.
        here: True if the units run on this machine alone.
    """

    result = BuildResult
    hint_of_other = (
        "a finished store does not change: another --out with --reuse OLD takes over what is equal"
    )

    def __init__(
        self,
        recipe: Recipe,
        out: str,
        options: RunOptions,
        started: float,
        reuse: str | None = None,
        *,
        here: bool = False,
    ) -> None:
        self.work = work = prepare(recipe, options, here=here)
        self._reuse = None if reuse is None else Reuse(reuse, work, Path(out))
        self._reused = 0
        super().__init__(
            out=out, recipe=work.recipe, tokenizer=work.tokenizer, boundary=work.boundary, files=work.files
        )
        self._started = started
        self._info: BuildInfo | None = None
        self._limit = LimitWatch(self, self.receipts, self.streams)
        self._first_encode = self._first_progress = 0.0
        self._peak = self._run_bytes = 0
        self._engine_bytes: dict[float, dict[str, int]] = {}
        self._undecoded: dict[float, int] = {}

    @property
    def units(self) -> list[Unit | Stream]:
        """Planned units, in document order."""
        return self.work.units

    def identity(self) -> BuildIdentity:
        """Values that must be equal to resume."""
        boundary: dict[str, Any] = msgspec.to_builtins(self.boundary)
        inputs = digest_inputs(self.files)
        return BuildIdentity(self.recipe, self.tokenizer.fingerprint, boundary, inputs)

    def planned_units(self) -> list[Unit | Stream]:
        """Planned units, as they are recorded."""
        return self.units

    def begin(self) -> Sequence[Task]:
        """Start or resume, and take over what an earlier store has."""
        todo = super().begin()
        return todo if self._reuse is None else self._take_over(self._reuse, todo)

    def _take_over(self, reuse: Reuse, todo: Sequence[Task]) -> Sequence[Task]:
        units = [self.units[task.number] for task in todo]
        plan = reuse.plan(units, strict=self.work.options.strict)
        self.tell(reuse.event(plan))
        taken = reuse.take_over(plan, self.folder)
        for problem in taken.problems[:SHOWN]:
            self.tell(Note(problem))
        if (more := len(taken.problems) - SHOWN) > 0:
            self.tell(Note(f"and {more:,} more units of {reuse.old.path} that cannot be used are run again"))
        self._reused = len(taken.receipts)
        for receipt in taken.receipts:
            self.committed.add(receipt.unit, receipt)
        for name, end in taken.streams.items():
            self.committed.add(name, end)
        return self.todo()

    def parts(self, suspects: set[int]) -> Iterator[Part]:
        """Parts of files that committed units and streams have read."""
        yield from super().parts(suspects)
        for unit in self.units:
            if isinstance(unit, Stream) and unit.file in suspects and unit.name in self.streams:
                yield unit.file, partial(self._is_whole, unit, self.streams[unit.name].checksum)

    def unproven(self, suspects: set[int]) -> dict[str, int]:
        """Slices of streams that were not read to their end, and units that a limit has ended."""
        found: dict[str, int] = {}
        slices = slices_of(self.receipts)
        for unit in self.units:
            if isinstance(unit, Stream):
                if unit.file in suspects and unit.name not in self.streams:
                    found |= dict.fromkeys(slices.get(unit.name, ()), unit.file)
            elif self._limit.given and unit.name in self.receipts:
                read = len(self.receipts[unit.name].inputs)
                if read < len(unit.spans) and unit.spans[read].file in suspects:
                    found[unit.name] = unit.spans[read].file
        return found

    def checksum(self, receipt: Receipt, piece: InputPiece) -> str:
        """Checksum of the bytes of a span's records: decoded too only if bytes alone have another."""
        file = self.numbered[receipt.source, piece.file]
        hasher, span = Hasher(), Span(file.index, piece.start, piece.stop)
        source, limit = self.recipe.sources[file.source], self.recipe.max_document_bytes
        if (found := piece_checksum(file, source, span, limit)) == piece.checksum:
            return found
        for _ in read_span(file, source, span, limit, hasher):
            pass
        return str(hasher.hexdigest())

    def _is_whole(self, stream: Stream, checksum: str) -> bool:
        """Read a stream again to its end, without spilling slices; True if it has this checksum."""
        pieces = split_stream(
            self.files[stream.file],
            self.recipe.sources[stream.source],
            Path(),
            chunk_bytes=stream.slice_bytes,
            max_document_bytes=self.recipe.max_document_bytes,
            skip=range(2**62),
        )
        return checksum == next(piece.checksum for piece in pieces if isinstance(piece, StreamEnd))

    def todo(self) -> list[Task]:
        """Units and streams without a receipt, in document order."""
        self._limit = LimitWatch(self, self.receipts, self.streams)
        slices = slices_of(chain(self.receipts, self.committed.unread))
        todo = []
        for number, unit in enumerate(self.units):
            done = slices.get(unit.name, ())
            end = self.streams.get(unit.name)
            if not (self.committed.has(unit.name) or (end is not None and len(done) == end.units)):
                todo.append(self._task(number, unit, tuple(done)))
        return todo

    def _task(self, number: int, unit: Unit | Stream, done: tuple[str, ...]) -> Task:
        """Task of a unit; `done` are the slices of a stream that are committed."""
        recipe = self.recipe
        common: dict[str, Any] = {
            "name": unit.name,
            "number": number,
            "source": unit.source,
            "max_documents": recipe.limit_documents,
            "max_tokens": recipe.limit_tokens,
            "val_share": None if self.val_share is msgspec.UNSET else self.val_share,
        }
        if isinstance(unit, Unit):
            return Task(spans=unit.spans, **common)
        return Task(is_stream=True, stream=unit, skip=done, **common)

    def refuse_slices(self) -> None:
        """Refuse what concerns the documents of all slices together.

        Raises:
            RecipeError: a limit of documents or tokens, or a number of validation documents.
        """
        given = ("limit_documents", "limit_tokens", "val_documents")
        if name := next((name for name in given if isinstance(getattr(self.recipe, name), int)), None):
            raise RecipeError(
                f"{name} counts the documents of all slices together, and slices do not know of each other",
                hint="leave it out, or build on one machine or on Ray"
                + ("; val_fraction works with slices" if name == "val_documents" else ""),
            )

    def node_workers(self) -> int | None:
        """Number of workers on each node of a cluster, if given."""
        return self.work.options.workers

    def memory_of(self, workers: int) -> int:
        """Bytes of memory that this number of workers may use together."""
        return self.work.options.memory_bytes or super().memory_of(workers)

    def opening_on(self, workers: int, memory_bytes: int) -> TokenizeSettings:
        """Settings for a node of a cluster."""
        options = msgspec.structs.replace(self.work.options, workers=workers, memory_bytes=memory_bytes)
        return msgspec.structs.replace(self.opening(), options=options)

    def workers(self, units: int) -> int:
        """Number of processes; 0: this one."""
        return count_workers(self.work.options)[0]

    def announce(self, todo: Sequence[Task], workers: int) -> None:
        """Report the plan, inputs that do not look like text, and a disk that may be too small."""
        work, expected = self.work, self.work.source_bytes
        self._count = UnitCount(self.plan, self.receipts, self.streams)
        planned = BuildPlanned(
            units=self._count.total,
            is_exact=self._count.is_exact,
            units_done=len(self.receipts),
            workers=workers,
            files=len(self.files),
            tokenizer=self.tokenizer.name,
            vocab_size=self.tokenizer.vocab_size,
            eod=self.boundary.eod,
            eod_id=self.boundary.eod_id,
            dtype=self.dtype,
            sources=expected,
            sources_done=totals_by_source(
                work.names, ((receipt.source, receipt.ledger) for receipt in self.receipts.values())
            ),
            seconds=time.monotonic() - self._started,
            units_reused=self._reused,
        )
        self.tell(planned)
        for line in not_text_notes(self.files, work.names):
            self.tell(Note(line))
        itemsize = 2 if self.dtype == "uint16" else 4
        text_bytes = sum(self.units[task.number].text_bytes for task in todo)
        what = "store"
        if self.folder.is_remote:  # only the units in flight are on this disk
            what = f"scratch folder {self.folder.work}"
            largest = max((unit.text_bytes for unit in self.units), default=0)
            text_bytes = min(text_bytes, IN_FLIGHT * max(workers, 1) * largest)
        needed, free = int(text_bytes / BYTES_A_TOKEN * itemsize), free_disk(self.folder.parent)
        if needed > free and not self._limit.given:
            room = f"{needed / 1e6:,.1f} MB, and the disk has {free / 1e6:,.1f} MB free"
            self.tell(Note(f"the {what} may need {room}"))

    def opening(self) -> TokenizeSettings:
        """Settings of the units."""
        return TokenizeSettings(
            self.recipe,
            self.work.options,
            self.files,
            self.tokenizer,
            self.work.encodable,
            self.boundary,
            self.tokenizer.fingerprint,
            self.folder.place,
        )

    def settle(self, session: Session, todo: Sequence[Task]) -> Sequence[Task]:
        """Report the engines, and choose the validation documents, if their number is given."""
        self._info = info = msgspec.convert(session.info(), BuildInfo)
        self.tell(EnginesTried(info.reports, list(info.names), info.reason))
        if not (count := self.recipe.val_documents):
            return todo
        self.tell(Note(VAL_NOTE))

        def compute() -> float:
            return share_below(run_scans(session, list(self._scans())), count)

        self.val_share = settle_share(self.folder, self.files, bool(self.receipts), compute)
        return [msgspec.structs.replace(task, val_share=self.val_share) for task in todo]

    def _scans(self) -> Iterator[Task]:
        """Units that scan all documents that can be in the validation split."""
        for unit in self.units:
            if not self.recipe.sources[unit.source].split:
                spans = unit.spans if isinstance(unit, Unit) else (_whole(self.files[unit.file]),)
                yield Task(name=f"scan-{unit.name}", source=unit.source, spans=spans, is_scan=True)

    def progress(self, event: Event) -> None:
        """Add up the text of this run."""
        if isinstance(event, Progress):
            self._first_progress = self._first_progress or time.monotonic()
            self._run_bytes += event.text_bytes
        self.tell(event)

    def take(self, name: str, result: BuildResult) -> None:
        """Record a receipt and measurements."""
        if isinstance(result, StreamRead):
            if result.receipt is not None:
                self.committed.add(name, result.receipt)
                self._recount(partial(self._count.end, name, result.receipt.units))
        elif isinstance(result, Built):
            receipt = result.receipt
            self.committed.add(name, receipt)
            self._measure(result)
            self._recount(partial(self._count.add, name))
            self.tell(UnitDone(name, receipt.ledger.documents, receipt.ledger.tokens, result.rates))

    def _recount(self, change: Callable[[], None]) -> None:
        before = (self._count.total, self._count.is_exact)
        change()
        if (now := (self._count.total, self._count.is_exact)) != before:
            self.tell(UnitsKnown(*now))

    def _measure(self, result: Built) -> None:
        first = result.first_encode
        self._first_encode = min(self._first_encode or first, first)
        self._peak = max(self._peak, result.peak_rss_bytes)
        self._engine_bytes[first] = result.engine_bytes
        self._undecoded[first] = result.undecoded

    def enough(self) -> Callable[[], bool] | None:
        """True when the committed units, in order and without a gap, reach the recipe's limits."""
        return self._limit.reached if self._limit.given else None

    def round_trip(self, session: Session) -> RoundTrip:
        """Exactness with which ids of the tokenizer decode to the text."""
        assert self._info is not None
        return self._info.round_trip

    def finish(self, session: Session) -> Finished:
        """Cut the units to the limits, and publish the manifest."""
        if self._limit.given:  # units may have been committed after the limit was reached
            folder = self.folder

            def run_again(name: str, documents: int | None, tokens: int | None) -> Receipt:
                return self._run_again(session, name, documents, tokens)

            self.committed.refresh()
            while broken := folder.without_files(self.receipts.values()):
                for receipt in broken:
                    folder.withdraw(receipt)
                self.committed.refresh()
                session.run(self.todo(), self.progress, self.take, self.enough())
            apply_limits(self, folder, self.receipts, self.streams, run_again)
            self.committed = folder.read_receipts()
        return super().finish(session)

    def _run_again(self, session: Session, name: str, documents: int | None, tokens: int | None) -> Receipt:
        """Run one unit by name, with other limits."""
        of = planned_name(name)
        planned = next((unit for unit in self.units if unit.name == of), None)
        if planned is None:
            raise PacklineError(f"unit {name} is not in the plan")
        common: dict[str, Any] = {
            "source": planned.source,
            "max_documents": documents,
            "max_tokens": tokens,
            "val_share": None if self.val_share is msgspec.UNSET else self.val_share,
        }
        if isinstance(planned, Stream):
            task = Task(name=of, is_stream=True, stream=planned, only=name, **common)
        else:
            task = Task(name=name, spans=planned.spans, **common)
        found: list[Receipt] = []

        def take(_: str, result: BuildResult) -> None:
            if isinstance(result, Built):
                found.append(result.receipt)

        session.run([task], lambda event: None, take)
        return found[0]

    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> Finished:
        """Summary of the build."""
        if undecoded := sum(self._undecoded.values()):
            self.tell(Note(UNDECODED.format(undecoded)))
        engine_bytes: dict[str, int] = {}
        for counts in self._engine_bytes.values():
            for name, size in counts.items():
                engine_bytes[name] = engine_bytes.get(name, 0) + size
        # Clocks of other machines are not comparable with this one's.
        first = self._first_progress if self.is_shared else self._first_encode
        finished = Finished(
            manifest.ledger,
            manifest.sources,
            len(manifest.shards),
            manifest.unit_count,
            manifest.unit_count if nothing_to_do else 0,
            manifest.store_bytes,
            time.monotonic() - self._started,
            max(first - self._started, 0.0) if first else 0.0,
            0.0 if self._info is None else self._info.load_seconds,
            self._run_bytes,
            self._peak,
            engine_bytes,
            nothing_to_do,
            split_warnings(manifest),
            self._reused,
        )
        self.tell(finished)
        return finished


def slices_of(units: Iterable[str]) -> dict[str, list[str]]:
    """Names of slices, by the name of their stream."""
    slices: dict[str, list[str]] = {}
    for name in units:
        if (stream := planned_name(name)) != name:
            slices.setdefault(stream, []).append(name)
    return slices


def _whole(file: InputFile) -> Span:
    if file.format != "parquet":
        return Span(file.index, 0, file.size)
    from packline.sources.parquet import open_parquet

    with file.open() as raw:
        return Span(file.index, 0, open_parquet(raw, file.path).metadata.num_row_groups)
