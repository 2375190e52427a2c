"""Import of a data set of documents: inspect it, then build a store from it, unit by unit.

    blocks ──> ids, boundaries ──> restore ──> count bytes of text ──> ShardWriter ──> Receipt
    (format)   all are checked     (boundaries) table of the tokenizer   tmp/

The result of a unit depends only on the data set's bytes, the format's options and the tokenizer. Any damage
is an error with its position, and no store appears. Files are read once, and hashed as they are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packline.encoders.special_tokens import Boundary
from packline.encoders.token_bytes import TextBytes
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, InputChanged, InputError, RecipeError
from packline.formats.boundaries import BoundaryPolicy, BoundaryProblem
from packline.formats.check import (
    document_format,
    find_record,
    open_dataset,
    read_document_blocks,
    read_headers,
)
from packline.formats.format import DatasetReader, convert_options
from packline.formats.types import DocumentBlock, ReadTask
from packline.jobs.cut_inputs import number_units
from packline.jobs.engine import plan_job, run_job
from packline.jobs.events import Note, OnEvent
from packline.jobs.folder import StoreFolder, StoreOpening
from packline.jobs.job import ReportProgress, Runner
from packline.jobs.machines import On
from packline.jobs.plan import Unit
from packline.jobs.store_job import Imported, NumberedStoreJob
from packline.jobs.text_unit import check_unchanged
from packline.ragged import Ragged
from packline.recipe import SPLITS, Recipe, Source, check_recipe
from packline.sources.files import InputFile
from packline.storage.inputs import hash_range, input_state
from packline.storage.local import disk_errors
from packline.store.ledger import Ledger, source_names
from packline.store.manifest import ImportEntry, InputPiece, Manifest, Receipt
from packline.store.report import Findings
from packline.store.writer import ShardWriter


class ImportSettings(StoreOpening, msgspec.Struct, frozen=True):
    path: str
    format: str
    options: dict[str, Any]
    tokenizer: Tokenizer
    boundary: Boundary
    dtype: str
    source: str
    """Name of the data set in provenance."""
    files: list[InputFile]
    """Files as they were when the import began."""
    checksums: list[str]
    """Checksum of each file from packline.json; empty if not listed."""
    pieces: list[tuple[tuple[int, int, int], ...]]
    """File pieces covered by each unit."""
    out: str

    def open(self) -> UnitImporter:
        return UnitImporter(self)


class ImportedUnit(msgspec.Struct, frozen=True):
    receipt: Receipt
    unfinished: int
    """Documents cut off by the beginning or end of the data."""


class UnitImporter(Runner[Unit, ImportedUnit]):
    def __init__(self, job: ImportSettings) -> None:
        self._job = job
        self._folder = StoreFolder(job.out)
        format = document_format(Path(job.path), job.format)
        findings = Findings()
        options = convert_options(format, job.options)
        self._reader: DatasetReader = read_headers(format, Path(job.path), options, findings)
        found = [(file.name, file.bytes) for file in self._reader.files]
        if findings.problems or found != [(file.name, file.size) for file in job.files]:
            raise InputChanged(
                f"{job.path} changed while it was read: expected {len(job.files)} files as of the start",
                hint="wait until it no longer changes, then import into a new folder",
            )
        self._text_bytes = TextBytes(job.tokenizer)
        end, begin = job.boundary.eod_id, job.boundary.bos_id
        self._policy = BoundaryPolicy(self._reader.edges, end, begin, job.tokenizer.vocab_size)

    def source_of(self, unit: Unit) -> str:
        return self._job.source

    def commit(self, unit: Unit, result: ImportedUnit) -> None:
        self._folder.commit(result.receipt)

    def run(self, unit: Unit, report: ReportProgress) -> Iterator[ImportedUnit]:
        number, job = unit.number, self._job
        part = self._reader.units[number]
        writer: ShardWriter | None = None
        ledger, unfinished = Ledger(), 0
        with disk_errors(self._folder.parent):
            try:
                for block, next_loss in self._blocks(number):
                    ragged, loss = self._restore(part, block, next_loss)
                    if writer is None:
                        name, dtype, masked = (
                            f"{part.split}-{unit.name}",
                            np.dtype(job.dtype),
                            loss is not None,
                        )
                        tmp = self._folder.tmp
                        writer = ShardWriter(tmp, name, part.split, job.source, None, dtype, with_loss=masked)
                    self._write(writer, part, block, ragged, loss, ledger)
                    unfinished += 0 if block.truncated is None else int(np.count_nonzero(block.truncated))
                    report(len(block.tokens))
                inputs = tuple(self._piece(*piece) for piece in job.pieces[number])
                shards = () if writer is None else (writer.close(),)
            except BaseException:
                if writer is not None:
                    writer.abandon()
                raise
        yield ImportedUnit(Receipt(unit.name, job.source, inputs, shards, (), ledger, 0), unfinished)

    def _blocks(self, number: int) -> Iterator[tuple[DocumentBlock, int | None]]:
        """Blocks of a unit, and the first byte of the loss mask after each, where it matters."""
        unit = self._reader.units[number]
        held: DocumentBlock | None = None
        for block in read_document_blocks(self._reader, unit):
            if len(block) == 0:
                continue
            if held is not None:
                yield held, _first_loss(block)
            held = block
        if held is not None:
            yield held, self._loss_behind(number) if held.loss is not None else None

    def _loss_behind(self, number: int) -> int | None:
        """First byte of the mask in the following units of the same split."""
        if not self._policy.moved:
            return None
        units = self._reader.units
        for unit in (one for one in units[number + 1 :] if one.split == units[number].split):
            for block in read_document_blocks(self._reader, unit):
                if len(block):
                    return _first_loss(block)
        return None

    def _restore(
        self, unit: ReadTask, block: DocumentBlock, next_loss: int | None
    ) -> tuple[Ragged, np.ndarray | None]:
        for wrong in self._policy.problems(block):
            raise self._refusal(unit, block, wrong)
        ragged, loss = self._policy.restore(block, next_loss)
        return Ragged(ragged.tokens.astype(self._job.dtype, copy=False), ragged.offsets), loss

    def _refusal(self, unit: ReadTask, block: DocumentBlock, wrong: BoundaryProblem) -> CorruptStore:
        position = f" at {int(block.positions[wrong.document]):,}" if block.positions is not None else ""
        if wrong.what.startswith("an id"):
            hint = "it is damaged, or its ids are those of another tokenizer"
        else:
            hint = (
                f"documents were expected to have the boundary tokens of edges={self._reader.edges}: "
                "set edges with --set edges=eod|bos|both|none, or name the token with --eod"
            )
        path = self._reader.files[unit.file].path
        return CorruptStore(f"{path}: document{position}, token {wrong.token:,}: {wrong}", hint=hint)

    def _write(
        self,
        writer: ShardWriter,
        unit: ReadTask,
        block: DocumentBlock,
        ragged: Ragged,
        loss: np.ndarray | None,
        ledger: Ledger,
    ) -> None:
        count, with_bos = len(block), self._job.boundary.bos_id is not None
        positions = block.positions
        if positions is None:
            positions = np.arange(count, dtype=np.int64) + unit.start + ledger.documents
        text_bytes = self._text_bytes.of(ragged.tokens, ragged.offsets, int(with_bos), 1)
        name = self._reader.files[unit.file].name
        writer.append(ragged, name, positions.astype(np.int64), block.ids, text_bytes, None, loss)
        ledger.documents_in += count
        ledger.add_documents(count, int(text_bytes.sum()), len(ragged.tokens), with_bos=with_bos)

    def _piece(self, number: int, start: int, stop: int) -> InputPiece:
        """Checksum of the bytes of a file that the unit covers; the file must be unchanged.

        The unit with a file's first bytes compares the whole file with the checksum listed by its export.
        """
        file, listed = self._job.files[number], self._job.checksums[number]
        checksum = hash_range(file.path, start, stop)
        check_unchanged(file)
        if listed and start == 0:
            found = checksum if stop == file.size else hash_range(file.path, 0, file.size)
            if found != listed:
                raise CorruptStore(
                    f"{file.path} is damaged: expected the checksum {listed}, found {found}",
                    hint="packline verify --from shows all problems",
                )
        return InputPiece(file.name, start, stop, checksum)


SMALL_BYTES = 64 << 20
"""Bytes of a data set below which starting processes would take longer than the work."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    path: str
    format: str | None
    tokenizer: str
    out: str
    eod: str | int | None = None
    bos: str | int | None = None
    options: dict[str, Any] | None = None
    workers: int | None = None


def run_import(request: ImportRequest, on_event: OnEvent | None = None, on: On = "local") -> Imported:
    if request.workers is not None and request.workers < 0:
        raise RecipeError(f"workers is {request.workers}: expected 0 or more")
    return run_job(_Import(request), on_event, on=on)


def plan_import(request: ImportRequest, on_event: OnEvent) -> None:
    """Report the plan of an import that has not begun; nothing is written."""
    plan_job(_Import(request), on_event)


class _Import(NumberedStoreJob[ImportedUnit, Imported]):
    result, small_bytes = ImportedUnit, SMALL_BYTES

    def __init__(self, request: ImportRequest) -> None:
        self._request = request
        self._started = time.monotonic()
        findings = Findings()
        self._data = data = open_dataset(
            Path(request.path),
            request.format,
            request.tokenizer,
            request.eod,
            request.bos,
            request.options or {},
            findings,
        )
        if findings.problems:
            count = len(findings.problems) + findings.not_listed
            more = f" (and {count - 1:,} more problems)" if count > 1 else ""
            raise CorruptStore(
                f"{request.path} is damaged: {findings.problems[0]}{more}",
                hint=f"packline verify {request.path} --from {data.format.name} shows all problems",
            )
        reader = data.reader
        if not reader.units:
            raise InputError(f"{request.path} has no documents", hint="check the path and the format")
        for unit in reader.units:
            if unit.split not in SPLITS:
                raise RecipeError(f"{request.path} has a split {unit.split!r}: expected train, val or test")
        self._parts = _account_for_all(reader)
        source = Source(inputs=(request.path,))
        recipe = check_recipe(
            Recipe(sources=(source,), tokenizer=request.tokenizer, eod=request.eod, bos=request.bos)
        )
        states = [input_state(file.path).modified for file in reader.files]
        files = [
            InputFile(number, 0, file.name, file.path, file.bytes, modified, "text", "")
            for number, (file, modified) in enumerate(zip(reader.files, states, strict=True))
        ]
        options = msgspec.to_builtins(data.options)
        super().__init__(
            out=request.out,
            recipe=recipe,
            entry=ImportEntry(data.format.name, options, tuple(source_names(recipe))),
            tokenizer=data.tokenizer,
            boundary=data.boundary,
            files=files,
            input_format=data.format.name,
            units=number_units(recipe, [0] * len(self._parts)),
        )
        self.title, self.edges, self.given_workers = data.format.name, reader.edges, request.workers
        self.documents, self.tokens = reader.documents, reader.tokens
        _ = data.policy  # raises for edges that the boundary tokens cannot make
        self._unfinished = 0

    def opening(self) -> ImportSettings:
        data, folder = self._data, self.folder
        record = find_record(Path(self._request.path))
        listed = {entry.name: entry.checksum for entry in record.files} if record is not None else {}
        assert self.entry is not None
        return ImportSettings(
            self._request.path,
            data.format.name,
            self.entry.options,
            data.tokenizer,
            data.boundary,
            self.dtype,
            source_names(self.recipe)[0],
            self.files,
            [listed.get(file.name, "") for file in self.files],
            [part.pieces for part in self._parts],
            folder.place,
        )

    def finished(self) -> Imported | None:
        """Report notes on the data set, and look for its store."""
        for note in self._data.notes:
            self.tell(Note(note))
        return super().finished()

    def receipt(self, result: ImportedUnit) -> Receipt:
        """Receipt of a unit; counts truncated documents."""
        self._unfinished += result.unfinished
        return result.receipt

    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> Imported:
        if self._unfinished:
            self.tell(
                Note(
                    f"unfinished documents: {self._unfinished}: the data begins or ends within them; "
                    "they were given the boundary tokens that they lacked"
                )
            )
        return Imported(manifest, self._unfinished, time.monotonic() - self._started, nothing_to_do)


def _first_loss(block: DocumentBlock) -> int | None:
    return int(block.loss[0]) if block.loss is not None and len(block.loss) else None


def _account_for_all(reader: DatasetReader) -> list[ReadTask]:
    """Units of the data set; files that belong to no unit, such as metadata, are added to the first."""
    named = {piece[0] for unit in reader.units for piece in unit.pieces}
    rest = [(number, 0, file.bytes) for number, file in enumerate(reader.files) if number not in named]
    first, *others = reader.units
    return [msgspec.structs.replace(first, pieces=(*first.pieces, *rest)), *others]
