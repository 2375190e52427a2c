"""One import from its request to its store: inspect the data, then build it unit by unit.

Inspection finds all damage visible in headers and indexes, the tokenizer, and the document boundaries;
nothing is written yet. Units are run by `UnitImporter`; the rest is that of every store (`jobs.store_job`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.format import DatasetReader
from packline.formats.importing.unit import ImportedUnit, ImportSettings
from packline.formats.opening import find_record, open_dataset
from packline.formats.types import ReadTask
from packline.jobs.engine import run_job
from packline.jobs.events import Note, OnEvent
from packline.jobs.store_job import Imported, NumberedStoreJob
from packline.recipe import SPLITS, Recipe, Source, check_recipe
from packline.sources.files import InputFile
from packline.storage.inputs import file_facts
from packline.store.ledger import source_names
from packline.store.manifest import TOKENIZER, ImportEntry, InputEntry, Manifest, Receipt
from packline.store.report import Findings

SMALL_BYTES = 64 << 20
"""Bytes of a data set below which starting processes would take longer than the work."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """Arguments of an import."""

    path: str
    format: str | None
    tokenizer: str
    out: str
    eod: str | int | None = None
    bos: str | int | None = None
    options: dict[str, Any] | None = None
    workers: int | None = None


def run_import(request: ImportRequest, on_event: OnEvent | None = None) -> Imported:
    """Run an import and return its result."""
    if request.workers is not None and request.workers < 0:
        raise RecipeError(f"workers is {request.workers}: expected 0 or more")
    return run_job(_Import(request), on_event)


class _Import(NumberedStoreJob[ImportedUnit, Imported]):
    """One import; made, it has inspected the data set."""

    result = ImportedUnit

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
        files = [
            InputFile(number, 0, file.name, file.path, file.bytes, file_facts(file.path).modified, "text", "")
            for number, file in enumerate(reader.files)
        ]
        super().__init__(
            out=request.out,
            recipe=recipe,
            entry=ImportEntry(data.format.name, msgspec.to_builtins(data.options)),
            tokenizer=data.tokenizer,
            boundary=data.boundary,
            files=files,
            title=data.format.name,
            edges=reader.edges,
            units=len(self._parts),
            small_bytes=SMALL_BYTES,
            processes=request.workers,
            documents=reader.documents,
            tokens=reader.tokens,
        )
        _ = data.restoring  # raises for edges that the boundary tokens cannot make
        self._unfinished = 0

    def opening(self) -> ImportSettings:
        """Settings of the units."""
        data, folder = self._data, self.folder
        record = find_record(Path(self._request.path))
        listed = {entry.name: entry.checksum for entry in record.files} if record is not None else {}
        assert self.entry is not None
        return ImportSettings(
            self._request.path,
            data.format.name,
            self.entry.options,
            str(folder.path / TOKENIZER / "tokenizer.json"),
            data.tokenizer.kind,
            data.boundary,
            data.tokenizer.vocab_size,
            self.dtype,
            source_names(self.recipe)[0],
            self.files,
            [listed.get(file.name, "") for file in self.files],
            [part.pieces for part in self._parts],
            str(folder.path),
        )

    def finished(self) -> Imported | None:
        """Report notes on the data set, and look for its store."""
        for note in self._data.notes:
            self.tell(Note(note))
        return super().finished()

    def inputs(self) -> Iterable[InputEntry]:
        """Files of the data set, for the manifest."""
        return (
            InputEntry(file.name, 0, file.size, self._data.format.name, "", "", "") for file in self.files
        )

    def receipt(self, result: ImportedUnit) -> Receipt:
        """Receipt of a unit; counts truncated documents."""
        self._unfinished += result.unfinished
        return result.receipt

    def done(self, manifest: Manifest, *, nothing_to_do: bool = False) -> Imported:
        """Summary of the import."""
        if self._unfinished:
            self.tell(
                Note(
                    f"unfinished documents: {self._unfinished}: the data begins or ends within them; "
                    "they were given the boundary tokens that they lacked"
                )
            )
        return Imported(manifest, self._unfinished, time.monotonic() - self._started, nothing_to_do)


def _account_for_all(reader: DatasetReader) -> list[ReadTask]:
    """Units of the data set; files that belong to no unit, such as metadata, are added to the first."""
    named = {piece[0] for unit in reader.units for piece in unit.pieces}
    rest = [(number, 0, file.bytes) for number, file in enumerate(reader.files) if number not in named]
    first, *others = reader.units
    return [msgspec.structs.replace(first, pieces=(*first.pieces, *rest)), *others]
