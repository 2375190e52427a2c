"""Runner of a build: units of text in the processes that run them.

open     encoder loaded, engines tried and chosen       once per host, shared by the workers
run      read, filter, encode, audit, split, write      (`unit`)
cut      a stream into slices                           in the feeder
scan     smallest shares of the texts, for `val_documents`
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from packline.encoders import EngineName, EngineReport
from packline.encoders.encoder import Encoder
from packline.encoders.features import Encodable
from packline.encoders.parity import RoundTrip
from packline.encoders.special_tokens import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.fingerprint import Hasher, shares_of
from packline.jobs.begun import Stream
from packline.jobs.folder import StoreFolder
from packline.jobs.job import ReportProgress, Runner
from packline.jobs.limits import (
    Shares,
    Smallest,
)
from packline.jobs.resources import (
    count_workers,
    peak_memory,
    resident_memory,
    run_in_child,
)
from packline.jobs.unit import KEEP, Task, UnitRunner, check_unchanged, judge
from packline.jobs.units import SampleTexts, Work, load_encoder, set_room
from packline.recipe import Recipe, RunOptions
from packline.sources.files import InputFile
from packline.sources.reader import read_span
from packline.sources.stream_splitter import StreamEnd, split_stream
from packline.store.manifest import Receipt, StreamReceipt


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
    encodable: Encodable
    boundary: Boundary
    fingerprint: str
    """Round trip of the tokenizer."""
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
        work.encodable = settings.encodable  # made once, by the driver
        self._folder = StoreFolder(settings.out)
        self._encoder: Encoder = load_encoder(work)
        base = resident_memory()
        workers, memory = count_workers(work.options)
        chosen = self._encoder.choose(
            SampleTexts(work), partial(run_in_child, list[EngineReport]) if workers else None
        )
        set_room(work, chosen.names, base)
        if workers:
            # A unit may add to an engine's cache before the next check: leave room for that.
            self.memory_bytes = max(memory * 3 // 4, peak_memory() + (128 << 20))
        unit_settings = msgspec.structs.replace(work.settings, tokenizer=settings.fingerprint)
        self._units = UnitRunner(unit_settings, self._encoder, self._folder.tmp)
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

    def found(self, unit: Task) -> BuildResult | None:
        """Receipt that another process has written meanwhile."""
        if unit.is_scan or (receipt := self._folder.find_receipt(unit.name)) is None:
            return None
        return Built(receipt, {}, {}, peak_memory(), self._first_encode, 0)

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
                    unit,
                    name=name,
                    is_stream=False,
                    stream=None,
                    skip=(),
                    only=None,
                    piece=piece,
                    slice_bytes=stream.slice_bytes,
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
