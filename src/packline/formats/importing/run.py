"""One import from its request to its store: inspect the data, then build it unit by unit.

Inspection finds all damage visible in headers and indexes, the tokenizer, and the document boundaries;
nothing is written yet. The build is `building.run_build`, its units are run by `UnitImporter`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.format import Foreign
from packline.formats.importing.building import (
    Imported,
    ImportEvent,
    ImportPlan,
    OnEvent,
    UnitBuild,
    run_build,
)
from packline.formats.importing.facts import find_record
from packline.formats.importing.opening import open_foreign
from packline.formats.importing.unit import ImportedUnit, ImportJob, open_job
from packline.formats.types import ForeignUnit
from packline.jobs.events import Note
from packline.jobs.folder import BuildFolder
from packline.recipe import SPLITS, Recipe, Source, check_recipe
from packline.sources.files import InputFile
from packline.storage.inputs import file_facts
from packline.store.ledger import source_names
from packline.store.manifest import TOKENIZER, ImportEntry, InputEntry, Receipt
from packline.store.report import Findings

__all__ = ["ImportEvent", "ImportPlan", "ImportRequest", "Imported", "OnEvent", "run_import"]

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
    return _Import(request, on_event or (lambda event: None)).run()


class _Import:
    """State of one import."""

    def __init__(self, request: ImportRequest, tell: OnEvent) -> None:
        self._request, self._tell = request, tell
        self._started = time.monotonic()
        findings = Findings()
        self._data = open_foreign(
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
                hint=f"packline verify {request.path} --from {self._data.format.name} shows all problems",
            )
        foreign, boundary = self._data.foreign, self._data.boundary
        if not foreign.units:
            raise InputError(f"{request.path} has no documents", hint="check the path and the format")
        for unit in foreign.units:
            if unit.split not in SPLITS:
                raise RecipeError(f"{request.path} has a split {unit.split!r}: expected train, val or test")
        self._units = _account_for_all(foreign)
        source = Source(inputs=(request.path,))
        recipe = check_recipe(
            Recipe(sources=(source,), tokenizer=request.tokenizer, eod=request.eod, bos=request.bos)
        )
        self._source = source_names(recipe)[0]
        name, tokenizer = self._data.format.name, self._data.tokenizer
        self._files = [
            InputFile(number, 0, file.name, file.path, file.bytes, file_facts(file.path).modified, "text", "")
            for number, file in enumerate(foreign.files)
        ]
        record = find_record(Path(request.path))
        listed = {entry.name: entry.checksum for entry in record.files} if record is not None else {}
        self._checksums = [listed.get(file.name, "") for file in foreign.files]
        self._build = UnitBuild(
            open_job=open_job,
            title=name,
            out=request.out,
            recipe=recipe,
            entry=ImportEntry(name, msgspec.to_builtins(self._data.options)),
            tokenizer=tokenizer,
            boundary=boundary,
            edges=foreign.edges,
            files=self._files,
            inputs=[InputEntry(file.name, 0, file.size, name, "", "", "") for file in self._files],
            units=len(self._units),
            small_bytes=SMALL_BYTES,
            workers=request.workers,
            documents=foreign.documents,
            tokens=foreign.tokens,
        )
        _ = self._data.restoring  # raises for edges that the boundary tokens cannot make
        self._unfinished = 0

    def run(self) -> Imported:
        for note in self._data.notes:
            self._tell(Note(note))
        manifest, nothing_to_do = run_build(
            self._build,
            job_of=self._job,
            receipt_of=self._receipt_of,
            source=self._source,
            tell=self._tell,
        )
        if self._unfinished:
            self._tell(
                Note(
                    f"unfinished documents: {self._unfinished}: the data begins or ends within them; "
                    "they were given the boundary tokens that they lacked"
                )
            )
        return Imported(manifest, self._unfinished, time.monotonic() - self._started, nothing_to_do)

    def _job(self, folder: BuildFolder) -> ImportJob:
        data = self._data
        return ImportJob(
            self._request.path,
            data.format.name,
            self._build.entry.options,
            str(folder.path / TOKENIZER / "tokenizer.json"),
            data.tokenizer.kind,
            data.boundary,
            data.tokenizer.vocab_size,
            self._build.dtype,
            self._source,
            self._files,
            self._checksums,
            [unit.pieces for unit in self._units],
            str(folder.tmp),
        )

    def _receipt_of(self, result: msgspec.Raw) -> Receipt:
        unit = msgspec.json.decode(result, type=ImportedUnit)
        self._unfinished += unit.unfinished
        return unit.receipt


def _account_for_all(foreign: Foreign) -> list[ForeignUnit]:
    """Units of the data set; files that belong to no unit, such as metadata, are added to the first."""
    named = {piece[0] for unit in foreign.units for piece in unit.pieces}
    rest = [(number, 0, file.bytes) for number, file in enumerate(foreign.files) if number not in named]
    first, *others = foreign.units
    return [msgspec.structs.replace(first, pieces=(*first.pieces, *rest)), *others]
