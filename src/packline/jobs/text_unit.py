"""Run one unit of text, from its bytes to its receipt, one batch at a time.

    unit     read ──> filter ──> encode ──> audit ──> split ──> write ──> Receipt, committed
             batch    counted    ids        reference  by hash   shards

A file that cannot be cut has a receipt for each slice, and one for its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.encoders.parity import RoundTrip, audited
from packline.encoders.special_tokens import BytesCounter
from packline.errors import BadRecord, InputChanged, InputError, PacklineError
from packline.fingerprint import Hasher, splits_of
from packline.jobs.cut_inputs import is_one_document
from packline.jobs.events import EnginesTried
from packline.jobs.folder import StoreFolder, settings_checksum, unit_settings
from packline.jobs.job import NeedsFreshProcess, ReportProgress, Runner
from packline.jobs.plan import Unit
from packline.jobs.resources import (
    LARGE,
    Room,
    count_workers,
    peak_memory,
    release_freed_memory,
    resident_memory,
    run_in_child,
)
from packline.jobs.text_build import TextBuild, load_encoder, room_of, sample_texts
from packline.ragged import Ragged
from packline.recipe import SPLITS, Recipe, Source
from packline.sources.batch import Batch, Reject, Texts
from packline.sources.carried import pairs_of
from packline.sources.files import InputFile
from packline.sources.reader import FileEnd, open_ahead, read_slices, read_span
from packline.storage.inputs import input_state, is_compared
from packline.storage.local import disk_errors
from packline.store.ledger import Ledger
from packline.store.manifest import InputPiece, Receipt, StreamReceipt
from packline.store.naming import STREAM
from packline.store.writer import RejectsWriter, ShardWriter


class Built(msgspec.Struct, frozen=True):
    """A committed unit or slice, and measurements of the process that ran it since its start."""

    receipt: Receipt
    rates: dict[str, dict[str, float]]
    engine_bytes: dict[str, int]
    peak_rss_bytes: int
    first_encode: float
    """Time when the process began to encode, on the monotonic clock; also identifies it."""
    undecoded: int
    """Audited documents that do not decode to their text, although their ids are right."""


BuildResult = Built | StreamReceipt
"""A unit or slice, or the end of a file that is committed slice by slice."""
RENEWED = 256 << 20
"""Least bytes of text between two renewals of an engine within a file: its cache pays after that."""
ENOUGH = "enough"
"""File in the folder for unfinished files, once the units that follow are not needed."""


class BuildInfo(msgspec.Struct, frozen=True):
    """Facts found while the encoder was loaded."""

    load_seconds: float
    tried: EnginesTried
    round_trip: RoundTrip


def open_runner(build: TextBuild) -> TextRunner:
    """Load the encoder of a build, choose its engines, and limit documents to the memory of a worker."""
    encoder = load_encoder(build)
    base = resident_memory()
    workers, memory = count_workers(build.options)
    chosen = encoder.choose(partial(sample_texts, build), run_in_child if workers else None)
    folder = StoreFolder(build.out)
    tmp = Path(build.scratch) if build.scratch else folder.tmp
    runner = TextRunner(build, encoder, tmp, room_of(build, chosen.names, base), folder)
    if workers:
        # A unit may add to an engine's cache before the next check: leave room for that.
        runner.memory_bytes = max(memory * 3 // 4, peak_memory() + (128 << 20))
    tried = EnginesTried(chosen.reports, list(chosen.names), chosen.reason)
    runner.info = BuildInfo(encoder.load_seconds, tried, encoder.reference.round_trip)
    return runner


class TextRunner(Runner[Unit, BuildResult]):
    """Runs units of text, one after another, with the encoder of one process.

    Args:
        folder: store that receipts are committed to; None for a dry run, whose receipts are not kept.
    """

    def __init__(
        self,
        build: TextBuild,
        encoder: Encoder,
        tmp: Path,
        room: Room = Room(),  # noqa: B008  frozen
        folder: StoreFolder | None = None,
    ) -> None:
        self.build, self.encoder, self.tmp, self.room, self.folder = build, encoder, tmp, room, folder
        self.special = BytesCounter(encoder.tokenizer.special_tokens)
        self.strict = build.options.strict and folder is not None
        self._first_encode = 0.0

    def source_of(self, unit: Unit) -> str:
        return self.build.names[unit.source]

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[BuildResult]:
        self._first_encode = self._first_encode or time.monotonic()
        with disk_errors(self.tmp):
            if unit.slice_bytes:
                yield from self._run_slices(unit, report)
            else:
                pieces: list[InputPiece] = []
                run = UnitRun(self, unit, unit.name, report)
                yield self._built(run.run(self._read(unit, pieces), pieces))

    def _read(self, unit: Unit, pieces: list[InputPiece]) -> Generator[Batch, None, None]:
        """Documents of the spans of a unit; what was read whole is added to `pieces`."""
        build, source = self.build, self.build.recipe.sources[unit.source]
        for span, opened in open_ahead(build.files, source, unit.spans):
            file, hasher = build.files[span.file], Hasher()
            with refusing_changes(file):
                yield from read_span(file, source, span, self.limit(file, source), hasher, opened=opened)
            pieces.append(InputPiece(file.name, span.start, span.stop, str(hasher.hexdigest())))

    def limit(self, file: InputFile, source: Source) -> int:
        """Maximum bytes of a record: by the recipe or, if smaller, by the memory of a worker."""
        limit = self.build.recipe.max_document_bytes
        # The reject of a file that is one document has its size in the message.
        return limit if is_one_document(file, source) else min(limit, self.room.record)

    def _run_slices(self, unit: Unit, report: ReportProgress) -> Iterator[BuildResult]:
        """Slices of a file, in order: those of this lane that have no receipt."""
        build, folder = self.build, self.folder
        file, source = build.files[unit.spans[0].file], build.recipe.sources[unit.source]

        def wanted(number: int) -> bool:
            mine = number % unit.lanes == unit.lane
            return mine and (folder is None or not folder.has_receipt(unit.slice_name(number)))

        def checked(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
            # Before each commit: a file truncated meanwhile looks like one always damaged.
            with refusing_changes(file):
                yield from batches

        parts = read_slices(
            file,
            source,
            slice_bytes=unit.slice_bytes,
            max_document_bytes=self.limit(file, source),
            wanted=wanted,
        )
        with contextlib.closing(parts):
            for part in parts:
                if isinstance(part, FileEnd):
                    check_unchanged(file)
                    yield StreamReceipt(build.names[unit.source], file.name, part.slices, part.checksum)
                    return
                run = UnitRun(self, unit, unit.slice_name(part.number), report)
                yield self._built(run.run(checked(part.batches), []))
                if run.is_full or (build.scratch and (self.tmp / ENOUGH).exists()):
                    return
                if self.memory_bytes is not None and resident_memory() > self.memory_bytes:
                    self.encoder.renew(RENEWED)
                    release_freed_memory()
                self.replaceable = self.memory_bytes is not None

    def _built(self, receipt: Receipt) -> Built:
        encoder = self.encoder
        return Built(
            receipt,
            encoder.rates(),
            dict(encoder.encoded_bytes),
            peak_memory(),
            self._first_encode,
            encoder.undecoded,
        )

    def commit(self, unit: Unit, result: BuildResult) -> None:
        assert self.folder is not None
        if self.build.scratch:
            return
        if isinstance(result, Built):
            self.folder.commit(result.receipt)
        else:
            self.folder.commit_record(f"{unit.name}{STREAM}", result)


class UnitRun:
    """State of one unit or slice, of a name: batches in, shards and a receipt out."""

    def __init__(self, runner: TextRunner, unit: Unit, name: str, report: ReportProgress) -> None:
        self._runner, self._unit, self._name, self._report = runner, unit, name, report
        self._build, self._recipe = runner.build, runner.build.recipe
        self._source = self._recipe.sources[unit.source]
        self._split = self._source.split
        self.ledger = Ledger(filtered=0) if self._source.where else Ledger()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects = RejectsWriter(runner.tmp, name)
        self._audited: list[int] = []
        self._carried = pairs_of(self._build.carried[unit.source])
        self.is_full = False
        """True once a limit has ended the unit."""
        self._large: tuple[str, int] | None = None

    def run(self, batches: Generator[Batch, None, None], pieces: list[InputPiece]) -> Receipt:
        """Encode and write all batches; `pieces` has the ranges that were read, once all are taken."""
        try:
            with contextlib.closing(batches):
                for batch in batches:
                    self.take(batch)
                    if self.is_full:
                        break
            return self.finish(pieces)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        for writer in self._writers.values():
            writer.abandon()
        self._rejects.abandon()

    def finish(self, pieces: list[InputPiece]) -> Receipt:
        """Complete the files; `pieces` are the ranges that were read."""
        self._refuse_large()
        writers = [self._writers[split] for split in sorted(self._writers)]
        ledger = self.ledger
        ledger.rejected = dict(sorted(ledger.rejected.items()))
        return Receipt(
            self._name,
            self._build.names[self._unit.source],
            tuple(pieces),
            tuple(writer.close() for writer in writers),
            self._rejects.close(),
            ledger,
            sum(ordinal < ledger.documents for ordinal in self._audited),  # without those after a limit
            not self.is_full,
            dict(self._carried) or msgspec.UNSET,
            "" if self._runner.folder is None else self.settings(),
        )

    def settings(self) -> str:
        """Checksum of what decides the unit's files, by which it is reused; "" if it cannot be."""
        unit, build = self._unit, self._build
        deciding = unit_settings(build.recipe, unit.source, build.fingerprint, build.boundary)
        files = (build.files[span.file] for span in unit.spans)
        return settings_checksum(deciding, files, unit.slice_bytes)

    def _watch_large(self, reject: Reject, place: str) -> None:
        """Add up the pieces of a record that is too large to be read."""
        if not reject.continued:
            self._refuse_large()
            self._large = (place, len(reject.raw)) if reject.reason == "too_large" else None
        elif self._large is not None:
            self._large = (self._large[0], self._large[1] + len(reject.raw))

    def _refuse_large(self) -> None:
        """Stop if a record was too large for memory but within the recipe's limit."""
        if self._large is not None and self._large[1] <= self._recipe.max_document_bytes:
            self._runner.room.refuse(*self._large)
        self._large = None

    def take(self, batch: Batch) -> None:
        verdicts, specials = judge(batch.texts, self._source, self._recipe, self._runner.special)
        wanted = np.flatnonzero(verdicts == KEEP)
        room = self._unit.max_documents
        chosen = wanted if room is None else wanted[: room - self.ledger.documents]
        if len(chosen):
            kept = batch if len(chosen) == len(batch) else batch.keep(chosen)
            self._check_room(kept)
            ragged = self._encode(kept)
            left = None if self._unit.max_tokens is None else self._unit.max_tokens - self.ledger.tokens
            if left is not None and left < len(ragged.tokens):
                fitting = int(np.searchsorted(ragged.offsets[1:], left, side="right"))
                chosen, kept = chosen[:fitting], kept.keep(np.arange(fitting))
                ragged = Ragged(ragged.tokens[: ragged.offsets[fitting]], ragged.offsets[: fitting + 1])
            self._write(kept, ragged)
            self.ledger.special_token_strings += int(specials[chosen].sum())
        end = len(batch)
        if len(chosen) < len(wanted):
            # A limit ends the unit at the first document left out, however documents were batched.
            self.is_full = True
            end = int(wanted[len(chosen)])
            first = int(batch.positions[end])
            batch.rejects = [reject for reject in batch.rejects if reject.position < first]
            batch.filtered = [position for position in batch.filtered if position < first]
        self._count(batch, verdicts[:end])

    def _check_room(self, batch: Batch) -> None:
        sizes, room = batch.texts.sizes, self._runner.room
        largest = int(sizes.argmax())
        size = int(sizes[largest])
        if size <= LARGE:
            return
        if size > room.document:
            room.refuse(self._place(batch, largest), size)
        if self._runner.replaceable and resident_memory() + room.factor * size > room.memory:
            raise NeedsFreshProcess

    def _encode(self, batch: Batch) -> Ragged:
        first = self.ledger.documents
        ordinals = audited(first, first + len(batch))
        ragged = self._runner.encoder.encode(
            batch.texts,
            audit=[ordinal - first for ordinal in ordinals],
            place=lambda index: self._place(batch, index),
        )
        self._audited += ordinals
        return ragged

    def _write(self, batch: Batch, ragged: Ragged) -> None:
        name = self._build.files[batch.file].name
        count, text_bytes = len(batch), int(batch.text_bytes.sum())
        with_bos = self._build.boundary.bos_id is not None
        self.ledger.add_documents(count, text_bytes, len(ragged.tokens), with_bos=with_bos)
        if batch.lost_ids:
            self.ledger.add_lost_ids(int(np.isin(batch.positions, batch.lost_ids).sum()))
        self._report(len(ragged.tokens), count, text_bytes)
        recipe, given = self._recipe, self._split
        shares = recipe.val_fraction, recipe.test_fraction or 0.0
        hashes = batch.texts.hashes()
        if given or not any(shares):
            if count:
                self._writer(given or "train").write(ragged, batch, name, hashes)
            return
        seeded = batch.texts.hashes(recipe.seed) if recipe.seed else hashes
        splits = splits_of(seeded, *shares)
        for split in SPLITS:
            members = np.flatnonzero(splits == split)
            if len(members):
                part = ragged if len(members) == count else ragged.take(members)
                self._writer(split).write(part, batch.keep(members), name, hashes[members])

    def _writer(self, split: str) -> ShardWriter:
        if split not in self._writers:
            self._writers[split] = ShardWriter(
                self._runner.tmp,
                f"{split}-{self._name}",
                split,
                self._build.names[self._unit.source],
                self._source.label,
                self._runner.encoder.dtype,
                with_loss=bool(self.ledger.mask),
                carried=self._carried,
            )
        return self._writers[split]

    def _count(self, batch: Batch, verdicts: np.ndarray) -> None:
        ledger, name = self.ledger, self._build.files[batch.file].name
        counts = np.bincount(verdicts, minlength=VERDICTS)
        ledger.documents_in += len(verdicts) - int(counts[SPECIAL])
        ledger.empty += int(counts[EMPTY])
        ledger.too_short += int(counts[TOO_SHORT])
        ledger.too_long += int(counts[TOO_LONG])
        if batch.filtered:
            ledger.documents_in += len(batch.filtered)
            ledger.filtered = (ledger.filtered or 0) + len(batch.filtered)
        for index in np.flatnonzero(verdicts == SPECIAL).tolist():
            position, text = int(batch.positions[index]), batch.texts[index].encode("utf-8")
            detail = "a special token stands as a string in the text"
            batch.rejects.append(Reject(batch.file, position, "special_token", detail, text))
        # In the order of the file, independent of batching.
        for reject in sorted(batch.rejects, key=lambda one: one.position):
            if self._runner.room.record < self._recipe.max_document_bytes:
                self._watch_large(reject, f"{name} at {reject.position}")
            if self._runner.strict:
                raise BadRecord(
                    f"{name} at {reject.position}: {reject.reason}: {reject.detail}",
                    hint="correct the record, or run without --strict to keep it in rejects/ and continue",
                )
            self._rejects.write(reject, name)
            if not reject.continued:
                ledger.add_rejected(reject.reason, reject.records)

    def _place(self, batch: Batch, index: int) -> str:
        return f"{self._build.files[batch.file].path} at {int(batch.positions[index])}"


VERDICTS = 5
KEEP, EMPTY, TOO_SHORT, TOO_LONG, SPECIAL = range(VERDICTS)


def judge_text(texts: Texts, source: Source) -> np.ndarray:
    """Verdicts of a source's filters on texts, int64 `[D]`: `KEEP`, or the reason for leaving one out."""
    verdicts = np.full(len(texts), KEEP, np.int64)
    if source.min_chars or source.max_chars is not None:
        characters = texts.characters()
        if source.max_chars is not None:
            verdicts[characters > source.max_chars] = TOO_LONG
        verdicts[characters < source.min_chars] = TOO_SHORT
    verdicts[texts.sizes == 0] = EMPTY
    return verdicts


def judge(
    texts: Texts, source: Source, recipe: Recipe, special: BytesCounter
) -> tuple[np.ndarray, np.ndarray]:
    """Verdicts on documents, and special-token strings in them, each int64 `[D]`."""
    verdicts, specials = judge_text(texts, source), special.count(texts)
    if recipe.special_tokens == "reject":
        verdicts[(verdicts == KEEP) & (specials > 0)] = SPECIAL
    return verdicts, specials


@contextlib.contextmanager
def refusing_changes(file: InputFile) -> Iterator[None]:
    """Refuse a file that has changed while it was read: it may then be broken in any way."""
    try:
        yield
    except (PacklineError, OSError, EOFError) as error:
        check_unchanged(file)
        if isinstance(error, PacklineError):
            raise
        raise InputError(
            f"cannot read {file.path} any more: {error}",
            hint="what is committed is kept: run the same command again once it can be read",
        ) from error
    check_unchanged(file)


def check_unchanged(file: InputFile) -> None:
    if is_compared(file.path):
        return
    found = input_state(file.path)
    if found != file.state:
        raise InputChanged(
            f"{file.path} changed while it was read: expected {file.size:,} bytes as of the start, "
            f"found {found.size:,} bytes, modified since",
            hint="let it come to rest, then build into a new folder",
        )
