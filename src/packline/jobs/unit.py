"""Run one unit, from its bytes to its receipt.

    read ──> filter ──> encode ──> audit ──> split ──> write ──> Receipt
    batch    counted    ids        reference  by hash   shards

Everything happens in one process, one batch at a time, so memory is a few batches. The result depends
only on the unit's bytes and the recipe. The caller publishes it (`BuildFolder.commit`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.encoder import Encoder
from packline.encoders.parity import audited
from packline.encoders.special_tokens import SpecialTokenCounter
from packline.errors import BadRecord, InputChanged, InputError, PacklineError
from packline.fingerprint import Hasher, splits_of
from packline.jobs.begun import Stream
from packline.jobs.identity import UnitSettingsKey
from packline.jobs.job import NeedsFreshProcess, ReportProgress, WorkUnit
from packline.jobs.resources import LARGE, resident_memory
from packline.jobs.units import UnitSettings
from packline.ragged import Ragged
from packline.recipe import SPLITS, Recipe, Source
from packline.sources.batch import Batch, Reject, Texts
from packline.sources.carried import pairs_of
from packline.sources.files import InputFile
from packline.sources.reader import Span, open_ahead, read_chunk, read_span
from packline.sources.stream_splitter import StreamChunk
from packline.storage.inputs import input_state, is_compared
from packline.storage.local import disk_errors
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import InputPiece, Receipt
from packline.store.writer import RejectsWriter, ShardWriter


class Task(WorkUnit, frozen=True, kw_only=True):
    """A unit to be run: spans of files, a slice of a stream, or a stream that is still to be cut."""

    source: int
    spans: tuple[Span, ...] = ()
    piece: StreamChunk | None = None
    stream: Stream | None = None
    skip: tuple[str, ...] = ()
    """Names of units of the stream that are committed."""
    only: str | None = None
    """Name of the only unit of the stream that is wanted."""
    is_scan: bool = False
    """Only find the smallest shares of its texts (`limits.Smallest`); nothing is written."""
    val_share: float | None = None
    """Value of val_fraction that `val_documents` amounts to."""
    slice_bytes: int = 0
    """Size of the slices of the stream that it is one of."""
    max_documents: int | None = None
    """Stop after this many documents."""
    max_tokens: int | None = None
    """Stop before the document that would bring the tokens above this."""


class UnitRunner:
    """Runs units, one after another, with the encoder of one process."""

    def __init__(self, job: UnitSettings, encoder: Encoder, folder: Path) -> None:
        self._job = job
        self._encoder = encoder
        self._folder = folder
        self._names = source_names(job.recipe)
        self.special = SpecialTokenCounter(encoder.tokenizer.special_tokens)
        self.settings_key = cache(partial(UnitSettingsKey, job.recipe, job.tokenizer, encoder.boundary))
        self.replaceable = False
        """True if a fresh process would have more free memory than this one."""

    def run(self, task: Task, report: ReportProgress) -> Receipt:
        """Write a unit's files into the work folder.

        Raises:
            EncoderMismatch: an engine and the reference disagree.
            InputChanged: a file has changed since the build began.
            BadRecord: the first bad record, under `strict`.
            OutOfSpace: the disk is full.
            OutOfMemory: a document that does not fit into the memory of a worker.
            NeedsFreshProcess: a document that would fit into a fresh worker.
        """
        with disk_errors(self._folder):
            return UnitRun(self, task, report).run()


class UnitRun:
    """State of one unit: batches in, shards and a receipt out."""

    def __init__(self, runner: UnitRunner, task: Task, report: ReportProgress) -> None:
        self._runner, self._task, self._report = runner, task, report
        self._recipe = runner._job.recipe
        self._source = self._recipe.sources[task.source]
        self.ledger = Ledger(filtered=0) if self._source.where else Ledger()
        self._writers: dict[str, ShardWriter] = {}
        self._rejects = RejectsWriter(runner._folder, task.name)
        self._audited: list[int] = []
        self._carried = pairs_of(runner._job.carried(task.source))
        self._full = False
        self._large: tuple[str, int] | None = None

    def run(self) -> Receipt:
        """Read, encode and write the whole unit."""
        try:
            pieces: list[InputPiece] = []
            with contextlib.closing(self._read(pieces)) as batches:
                for batch in batches:
                    self.take(batch)
                    if self._full:
                        break
            return self.finish(pieces)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close the files of a unit that will not be committed."""
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
            self._task.name,
            self._runner._names[self._task.source],
            tuple(pieces),
            tuple(writer.close() for writer in writers),
            self._rejects.close(),
            ledger,
            sum(ordinal < ledger.documents for ordinal in self._audited),  # not those after a limit
            not self._full,
            dict(self._carried) or msgspec.UNSET,
            self._settings(),
        )

    def _settings(self) -> str:
        task, runner = self._task, self._runner
        if not runner._job.tokenizer:
            return ""
        used = [span.file for span in task.spans] if task.piece is None else [task.piece.file]
        files = (runner._job.files[file] for file in used)
        return runner.settings_key(task.val_share).checksum(task.source, files, task.slice_bytes)

    def _read(self, pieces: list[InputPiece]) -> Generator[Batch, None, None]:
        files = self._runner._job.files
        if self._task.piece is not None:
            piece = self._task.piece
            yield from read_chunk(files[piece.file], self._source, piece, self._limit(files[piece.file]))
            return
        for span, opened in open_ahead(files, self._source, self._task.spans):
            file, hasher = files[span.file], Hasher()
            limit = self._limit(file)
            try:
                yield from read_span(file, self._source, span, limit, hasher, opened=opened)
            except PacklineError:
                check_unchanged(file)  # a file written to while it is read may be broken in any way
                raise
            except (OSError, EOFError) as error:
                check_unchanged(file)
                raise InputError(
                    f"cannot read {file.path} any more: {error}",
                    hint="what is committed is kept: run the same command again once it can be read",
                ) from error
            check_unchanged(file)
            pieces.append(InputPiece(file.name, span.start, span.stop, str(hasher.hexdigest())))

    def _limit(self, file: InputFile) -> int:
        """Maximum bytes of a record: by the recipe or, if smaller, by the memory of a worker."""
        limit, room = self._recipe.max_document_bytes, self._runner._job.room
        if self._source.documents == "file" and file.format == "text":
            if not file.compression and room.document < file.size <= limit:
                room.refuse(file.path, file.size)
            return limit  # the reject's message contains its size
        return min(limit, room.record)

    def _watch_large(self, reject: Reject, place: str) -> None:
        """Add up the pieces of a record that is too large to be read."""
        if not reject.continued:
            self._refuse_large()
        elif self._large is not None:
            place, size = self._large
            self._large = (place, size + len(reject.raw))
            return
        self._large = (place, len(reject.raw)) if reject.reason == "too_large" else None

    def _refuse_large(self) -> None:
        """Stop if a record was too large for memory but within the recipe's limit."""
        if self._large is not None and self._large[1] <= self._recipe.max_document_bytes:
            self._runner._job.room.refuse(*self._large)
        self._large = None

    def take(self, batch: Batch) -> None:
        """Encode, write and count one batch."""
        facts = judge(batch.texts, self._source, self._recipe, self._runner.special)
        wanted = np.flatnonzero(facts.verdicts == KEEP)
        room = self._task.max_documents
        chosen = wanted if room is None else wanted[: room - self.ledger.documents]
        if len(chosen):
            kept = batch if len(chosen) == len(batch) else batch.keep(chosen)
            self._check_room(kept)
            ragged = self._encode(kept)
            fitting = self._fitting(ragged)
            if fitting < len(kept):
                chosen = chosen[:fitting]
                kept = kept.keep(np.arange(fitting))
                ragged = Ragged(ragged.tokens[: ragged.offsets[fitting]], ragged.offsets[: fitting + 1])
            self._write(kept, ragged)
            self.ledger.special_token_strings += int(facts.specials[chosen].sum())
            if kept.lost_ids:
                self.ledger.add_lost_ids(int(np.isin(kept.positions, kept.lost_ids).sum()))
        end = len(batch)
        if len(chosen) < len(wanted):
            # A limit ends the unit at the first document left out, however documents were batched.
            self._full = True
            end = int(wanted[len(chosen)])
            first = int(batch.positions[end])
            batch.rejects = [reject for reject in batch.rejects if reject.position < first]
            batch.filtered = [position for position in batch.filtered if position < first]
        self._count(batch, facts.verdicts[:end])

    def _check_room(self, batch: Batch) -> None:
        """Check that the largest document, if large, fits into memory."""
        sizes, room = batch.texts.sizes, self._runner._job.room
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
        ragged = self._runner._encoder.encode(
            batch.texts,
            audit=[ordinal - first for ordinal in ordinals],
            place=lambda index: self._place(batch, index),
        )
        self._audited += ordinals
        return ragged

    def _fitting(self, ragged: Ragged) -> int:
        """Number of documents that stay within the limit of tokens."""
        limit = self._task.max_tokens
        if limit is None:
            return len(ragged)
        return int(np.searchsorted(ragged.offsets[1:], limit - self.ledger.tokens, side="right"))

    def _write(self, batch: Batch, ragged: Ragged) -> None:
        name = self._runner._job.files[batch.file].name
        count, text_bytes = len(batch), len(batch.texts.data)
        boundary = self._runner._encoder.boundary
        with_bos = boundary is not None and boundary.bos_id is not None
        self.ledger.add_documents(count, text_bytes, len(ragged.tokens), with_bos=with_bos)
        self._report(len(ragged.tokens), count, text_bytes)
        recipe, given = self._recipe, self._source.split
        val_share = recipe.val_fraction if self._task.val_share is None else self._task.val_share
        test_share = recipe.test_fraction or 0.0
        hashes = batch.texts.hashes()
        if given or not (val_share or test_share):
            if count:
                self._writer(given or "train").write(ragged, batch, name, hashes)
            return
        seeded = batch.texts.hashes(recipe.seed) if recipe.seed else hashes
        splits = splits_of(seeded, val_share, test_share)
        for split in SPLITS:
            members = np.flatnonzero(splits == split)
            if len(members):
                part = ragged if len(members) == count else ragged.take(members)
                self._writer(split).write(part, batch.keep(members), name, hashes[members])

    def _writer(self, split: str) -> ShardWriter:
        if split not in self._writers:
            runner, source = self._runner, self._task.source
            self._writers[split] = ShardWriter(
                runner._folder,
                f"{split}-{self._task.name}",
                split,
                runner._names[source],
                self._source.label,
                runner._encoder.dtype,
                carried=self._carried,
            )
        return self._writers[split]

    def _count(self, batch: Batch, verdicts: np.ndarray) -> None:
        """Count the outcome of every record of a batch, and keep the bad ones."""
        ledger, name = self.ledger, self._runner._job.files[batch.file].name
        counts = np.bincount(verdicts, minlength=5)
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
            if self._runner._job.room.record < self._recipe.max_document_bytes:
                self._watch_large(reject, f"{name} at {reject.position}")
            if self._runner._job.strict:
                raise BadRecord(
                    f"{name} at {reject.position}: {reject.reason}: {reject.detail}",
                    hint="correct the record, or run without --strict to keep it in rejects/ and continue",
                )
            self._rejects.write(reject, name)
            if not reject.continued:
                ledger.add_rejected(reject.reason, reject.records)

    def _place(self, batch: Batch, index: int) -> str:
        return f"{self._runner._job.files[batch.file].path} at {int(batch.positions[index])}"


KEEP, EMPTY, TOO_SHORT, TOO_LONG, SPECIAL = range(5)


@dataclass(slots=True)
class Facts:
    """Verdicts on the documents of a batch, each int64 `[D]`."""

    verdicts: np.ndarray
    specials: np.ndarray


def judge(texts: Texts, source: Source, recipe: Recipe, special: SpecialTokenCounter) -> Facts:
    """Decide which documents to keep, with reasons for leaving out the others."""
    verdicts, specials = np.full(len(texts), KEEP, np.int64), special.count(texts)
    if recipe.special_tokens == "reject":
        verdicts[specials > 0] = SPECIAL
    if source.min_chars or source.max_chars is not None:
        characters = texts.characters()
        if source.max_chars is not None:
            verdicts[characters > source.max_chars] = TOO_LONG
        verdicts[characters < source.min_chars] = TOO_SHORT
    verdicts[texts.sizes == 0] = EMPTY
    return Facts(verdicts, specials)


def check_unchanged(file: InputFile) -> None:
    """Refuse a file that has changed since the build began.

    Raises:
        InputChanged: its size or modification time differs.
    """
    if is_compared(file.path):
        return
    found = input_state(file.path)
    if found != file.state:
        raise InputChanged(
            f"{file.path} changed while it was read: expected {file.size:,} bytes as of the start, "
            f"found {found.size:,} bytes, modified since",
            hint="let it come to rest, then build into a new folder",
        )
