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
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders import EngineName, EngineReport
from packline.encoders.encoder import Encoder
from packline.encoders.parity import RoundTrip
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import PacklineError
from packline.fingerprint import Hasher, shares_of
from packline.jobs.events import BuildPlanned, EnginesTried, Event, Finished, Note, Progress, UnitDone
from packline.jobs.folder import BuildIdentity, StoreFolder
from packline.jobs.job import ReportProgress, Runner, Session
from packline.jobs.limits import (
    VAL_NOTE,
    InOrder,
    LimitWatch,
    Shares,
    Smallest,
    apply_limits,
    run_scans,
    settle_share,
    share_below,
)
from packline.jobs.resources import (
    count_workers,
    free_disk,
    peak_memory,
    resident_memory,
    run_in_child,
)
from packline.jobs.store_job import StoreJob
from packline.jobs.unit import KEEP, Task, UnitRunner, check_unchanged, judge
from packline.jobs.units import SampleTexts, Stream, Unit, Work, load_encoder, prepare, set_room
from packline.recipe import Recipe, RunOptions
from packline.sources.files import InputFile, not_text_notes
from packline.sources.reader import Span, read_span
from packline.sources.stream_splitter import StreamEnd, split_stream
from packline.storage.inputs import open_input
from packline.store.ledger import totals_by_source
from packline.store.manifest import InputPiece, Manifest, Receipt, StreamReceipt, split_warnings
from packline.store.unit_names import planned_name

UNDECODED = (
    "{} of the documents that were decoded did not give their very text back, with ids equal to the"
    " reference's: this tokenizer does not keep every character"
)
BYTES_A_TOKEN = 3.5
"""Estimated bytes per token for the disk check, on the low side for English."""


class Built(msgspec.Struct, frozen=True, tag=True):
    """Result of a unit, and measurements of the process that ran it since its start."""

    receipt: Receipt
    rates: dict[str, dict[str, float]]
    engine_bytes: dict[str, int]
    peak_rss_bytes: int
    first_encode: float
    """Time when the process began to encode, on the monotonic clock; also identifies it."""
    undecoded: int
    """Audited documents that do not decode to their text, although their ids are right."""


class StreamRead(msgspec.Struct, frozen=True, tag=True):
    """Result of a stream; without a receipt if it was not read to its end."""

    receipt: StreamReceipt | None


BuildResult = Built | StreamRead | Shares


class BuildInfo(msgspec.Struct, frozen=True):
    """Facts found while the encoder was loaded."""

    load_seconds: float
    reports: list[EngineReport]
    names: list[EngineName]
    reason: str
    round_trip: RoundTrip


class TokenizeSettings(msgspec.Struct, frozen=True):
    """Settings common to all units of a build."""

    recipe: Recipe
    options: RunOptions
    files: list[InputFile]
    tokenizer: Tokenizer
    boundary: Boundary
    out: str

    def open(self) -> BuildRunner:
        """Load the encoder, and choose its engines."""
        return BuildRunner(self)


class BuildRunner(Runner[Task, BuildResult]):
    """Runs units of a build."""

    unit = Task

    def __init__(self, settings: TokenizeSettings) -> None:
        self._work = work = Work(
            settings.recipe,
            settings.options,
            settings.files,
            settings.tokenizer,
            settings.boundary,
        )
        self._folder = StoreFolder(Path(settings.out))
        self._encoder: Encoder = load_encoder(work)
        base = resident_memory()
        workers, memory = count_workers(work.options)
        chosen = self._encoder.choose(
            SampleTexts(work), partial(run_in_child, list[EngineReport]) if workers else None
        )
        set_room(work, chosen.names, base)
        if workers:  # a unit may add to an engine's cache before the next check: leave room for that
            self.memory_bytes = max(memory * 3 // 4, peak_memory() + (128 << 20))
        self._units = UnitRunner(work.settings, self._encoder, self._folder.tmp)
        self._first_encode = 0.0
        self._info = BuildInfo(
            self._encoder.load_seconds,
            chosen.reports,
            chosen.names,
            chosen.reason,
            self._encoder.reference.round_trip,
        )

    def info(self) -> BuildInfo:
        """Facts found while opening."""
        return self._info

    def source_of(self, unit: Task) -> str:
        """Name of the source."""
        return self._work.names[unit.source]

    def run(self, unit: Task, report: ReportProgress) -> BuildResult:
        """Write a unit's files into the work folder, or scan its texts."""
        if unit.is_scan:
            return Shares(self._scan(unit))
        self._first_encode = self._first_encode or time.monotonic()
        self._units.replaceable = self.replaceable
        receipt = self._units.run(unit, report)
        if unit.piece is not None and unit.piece.path:
            Path(unit.piece.path).unlink()
        encoder = self._encoder
        return Built(
            receipt,
            encoder.rates(),
            dict(encoder.encoded_bytes),
            peak_memory(),
            self._first_encode,
            encoder.undecoded,
        )

    def commit(self, unit: Task, result: BuildResult) -> None:
        """Move the unit's files into the store, or record the end of a stream."""
        if isinstance(result, Built):
            self._folder.commit(result.receipt)
        elif isinstance(result, StreamRead) and result.receipt is not None:
            self._folder.commit_stream(unit.name, result.receipt)

    def cut(self, unit: Task) -> Iterator[Task | BuildResult]:
        """Cut a stream into slices, those of committed units left out."""
        stream, work = unit.stream, self._work
        assert stream is not None
        file = work.files[stream.file]
        pieces = split_stream(
            file,
            work.recipe.sources[stream.source],
            self._folder.spool,
            chunk_bytes=stream.slice_bytes,
            max_document_bytes=work.recipe.max_document_bytes,
            skip=_Unwanted(stream, unit),
        )
        for piece in pieces:
            # Before each slice is passed on: a file truncated meanwhile looks like one always damaged.
            check_unchanged(file)
            if isinstance(piece, StreamEnd):
                source = work.names[stream.source]
                yield StreamRead(StreamReceipt(source, file.name, piece.chunks, piece.checksum))
            elif piece.path:
                name = stream.unit_name(piece.number)
                yield msgspec.structs.replace(
                    unit, name=name, is_stream=False, stream=None, skip=(), only=None, piece=piece
                )
                if unit.only is not None:
                    yield StreamRead(None)
                    return

    def _scan(self, unit: Task) -> list[float]:
        """Smallest shares among the documents of some spans that the build keeps."""
        work, recipe = self._work, self._work.recipe
        source, limit = recipe.sources[unit.source], min(recipe.max_document_bytes, work.room.record)
        assert isinstance(recipe.val_documents, int)
        smallest = Smallest(recipe.val_documents)
        for span in unit.spans:
            file = work.files[span.file]
            for batch in read_span(file, source, span, limit, Hasher()):
                verdicts = judge(batch.texts, source, recipe, self._units.special).verdicts
                kept = (verdicts == KEEP).nonzero()[0]
                if len(kept):
                    smallest.add(shares_of(batch.texts.take(kept).hashes(recipe.seed)).tolist())
            check_unchanged(file)
        return smallest.shares


class _Unwanted:
    """Collection of the numbers of a stream's slices that need no file."""

    def __init__(self, stream: Stream, unit: Task) -> None:
        self._stream, self._only, self._skip = stream, unit.only, frozenset(unit.skip)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        name = self._stream.unit_name(number)
        return name != self._only if self._only is not None else name in self._skip


class BuildJob(StoreJob[Task, BuildResult, Finished]):
    """One build; made, it has checked settings, inputs and tokenizer.

    Args:
        started: start of all time measurements, on the monotonic clock.
    """

    result = BuildResult

    def __init__(self, recipe: Recipe, out: str, options: RunOptions, started: float) -> None:
        self.work = work = prepare(recipe, options)
        super().__init__(
            out=out, recipe=recipe, tokenizer=work.tokenizer, boundary=work.boundary, files=work.files
        )
        self._started = started
        self._info: BuildInfo | None = None
        self._limit = LimitWatch(self, self.receipts, self.streams)
        self._first_encode = 0.0
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
        return BuildIdentity(self.recipe, self.tokenizer.fingerprint, boundary, self.files)

    def changed(self, suspects: set[int]) -> set[int]:
        """Files whose content has changed; streams without an end have no checksum to compare with."""
        changed = super().changed(suspects)
        begun = {planned_name(name) for name in self.receipts}
        for stream in self.units:
            if isinstance(stream, Stream) and stream.file in suspects and stream.name in begun:
                whole = self.streams.get(stream.name)
                if whole is None or self._stream_checksum(stream) != whole.checksum:
                    changed.add(stream.file)
        return changed

    def checksum(self, receipt: Receipt, piece: InputPiece) -> str:
        """Checksum of the bytes of a span's records."""
        file = self.numbered[receipt.source, piece.file]
        hasher, span = Hasher(), Span(file.index, piece.start, piece.stop)
        source, limit = self.recipe.sources[file.source], self.recipe.max_document_bytes
        for _ in read_span(file, source, span, limit, hasher):
            pass
        return str(hasher.hexdigest())

    def _stream_checksum(self, stream: Stream) -> str:
        """Read a stream again to its end, without spilling slices."""
        pieces = split_stream(
            self.files[stream.file],
            self.recipe.sources[stream.source],
            Path(),
            chunk_bytes=stream.slice_bytes,
            max_document_bytes=self.recipe.max_document_bytes,
            skip=range(2**62),
        )
        return next(piece.checksum for piece in pieces if isinstance(piece, StreamEnd))

    def todo(self) -> list[Task]:
        """Units and streams without a receipt, in document order."""
        self._limit = LimitWatch(self, self.receipts, self.streams)
        slices: dict[str, list[str]] = {}
        for name in self.receipts:
            slices.setdefault(planned_name(name), []).append(name)
        tasks = (self._task(unit, tuple(slices.get(unit.name, ()))) for unit in self.units)
        return [task for task in tasks if task is not None]

    def _task(self, unit: Unit | Stream, done: tuple[str, ...]) -> Task | None:
        """Task of a unit; `done` are the units of it that are committed."""
        recipe = self.recipe
        limits: dict[str, Any] = {
            "max_documents": recipe.limit_documents,
            "max_tokens": recipe.limit_tokens,
        }
        if isinstance(unit, Unit):
            if done:
                return None
            return Task(name=unit.name, source=unit.source, spans=unit.spans, **limits)
        if unit.name in self.streams and len(done) == self.streams[unit.name].units:
            return None
        return Task(name=unit.name, source=unit.source, is_stream=True, stream=unit, skip=done, **limits)

    def workers(self, units: int) -> int:
        """Number of processes; 0: this one."""
        return count_workers(self.work.options)[0]

    def announce(self, todo: Sequence[Task], workers: int) -> None:
        """Report the plan, inputs that do not look like text, and a disk that may be too small."""
        work, expected = self.work, self.work.source_bytes
        planned = BuildPlanned(
            units=len(self.units),
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
        )
        self.tell(planned)
        for line in not_text_notes(self.files, work.names):
            self.tell(Note(line))
        itemsize = 2 if self.dtype == "uint16" else 4
        needed, free = int(sum(expected.values()) / BYTES_A_TOKEN * itemsize), free_disk(self.folder.path)
        if needed > free and not self._limit.given:
            self.tell(
                Note(f"the store may need {needed / 1e9:.1f} GB, and the disk has {free / 1e9:.1f} GB free")
            )

    def opening(self) -> TokenizeSettings:
        """Settings of the units."""
        return TokenizeSettings(
            self.recipe,
            self.work.options,
            self.files,
            self.tokenizer,
            self.boundary,
            str(self.folder.path),
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

        share = self.val_share = settle_share(self.folder, self.files, bool(self.receipts), compute)
        return [msgspec.structs.replace(task, val_share=share) for task in todo]

    def _scans(self) -> Iterator[Task]:
        """Units that scan all documents that can be in the validation split."""
        for unit in self.units:
            if not self.recipe.sources[unit.source].split:
                spans = unit.spans if isinstance(unit, Unit) else (_whole(self.files[unit.file]),)
                yield Task(name=f"scan-{unit.name}", source=unit.source, spans=spans, is_scan=True)

    def progress(self, event: Event) -> None:
        """Add up the text of this run."""
        if isinstance(event, Progress):
            self._run_bytes += event.text_bytes
        self.tell(event)

    def take(self, name: str, result: BuildResult) -> None:
        """Record a receipt and measurements."""
        if isinstance(result, StreamRead):
            if result.receipt is not None:
                self.streams[name] = result.receipt
        elif isinstance(result, Built):
            receipt = self.receipts[name] = result.receipt
            self._measure(result)
            self.tell(UnitDone(name, receipt.ledger.documents, receipt.ledger.tokens, result.rates))

    def _measure(self, result: Built) -> None:
        first = result.first_encode
        self._first_encode = min(self._first_encode or first, first)
        self._peak = max(self._peak, result.peak_rss_bytes)
        self._engine_bytes[first] = result.engine_bytes
        self._undecoded[first] = result.undecoded

    def enough(self) -> Callable[[], bool] | None:
        """True when the committed units, in order and without a gap, reach the recipe's limits."""
        return self._limit.reached if self._limit.given else None

    def ordered(self) -> Iterable[str]:
        """Names of the committed units, in document order."""
        return InOrder(self, self.receipts, self.streams).advance()

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

            self.receipts = apply_limits(self, folder, folder.committed(), folder.streams(), run_again)
            self.streams = folder.streams()
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
        finished = Finished(
            manifest.ledger,
            manifest.sources,
            len(manifest.shards),
            len(manifest.units),
            len(manifest.units) if nothing_to_do else 0,
            manifest.store_bytes,
            time.monotonic() - self._started,
            max(self._first_encode - self._started, 0.0) if self._first_encode else 0.0,
            0.0 if self._info is None else self._info.load_seconds,
            self._run_bytes,
            self._peak,
            engine_bytes,
            nothing_to_do,
            split_warnings(manifest),
        )
        self.tell(finished)
        return finished


def _whole(file: InputFile) -> Span:
    if file.format != "parquet":
        return Span(file.index, 0, file.size)
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        return Span(file.index, 0, open_parquet(raw, file.path).metadata.num_row_groups)
