"""One import from its request to its store: look, run the units that have no receipt, publish.

    .packline/build.json   what makes this import this import: files, tokenizer, boundary, format, options
    receipts/UNIT.json     the commit record of a unit, as of a build's
    manifest.json          written last; until then there is no store

Lock, receipts, going on and publishing are a build's (`BuildFolder`); what the units do is `import_unit`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.parity import RoundTrip
from packline.errors import CorruptStore, InputError, RecipeError
from packline.filesystem import file_facts
from packline.formats.format import Foreign, ForeignUnit
from packline.formats.importing.committing import (
    check_room,
    commit_units,
    refuse_changed_files,
    refuse_other_store,
    round_trip_of,
    sum_up,
)
from packline.formats.importing.opening import open_foreign
from packline.formats.importing.unit import ImportedUnit, ImportJob
from packline.recipe import SPLITS, Recipe, Source, check_recipe
from packline.runtime.events import Note, Progress, UnitDone
from packline.runtime.folder import BuildFolder, BuildIdentity
from packline.runtime.resources import usable_cores
from packline.sources.files import InputFile
from packline.store.index import dtype_for
from packline.store.ledger import source_names
from packline.store.manifest import TOKENIZER, ImportEntry, InputEntry, Manifest, Receipt
from packline.store.report import Findings

SMALL_BYTES = 64 << 20
"""Of a data set for which starting processes would take longer than the work."""


class ImportPlan(msgspec.Struct, frozen=True):
    """What an import is about to do."""

    format: str
    files: int
    bytes: int
    documents: int | None
    tokens: int | None
    """Documents and tokens as far as headers tell."""
    units: int
    units_done: int
    """Committed by an earlier run of the same import."""
    workers: int
    tokenizer: str
    vocab_size: int
    eod: str
    eod_id: int
    edges: str
    dtype: str


class Imported(msgspec.Struct, frozen=True):
    """What came of an import."""

    manifest: Manifest
    unfinished: int
    """Documents of this run that the data's beginning or end cuts off; their ends were put on."""
    seconds: float
    nothing_to_do: bool = False


ImportEvent = ImportPlan | Progress | UnitDone | Note
OnEvent = Callable[[ImportEvent], None]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """The arguments of an import."""

    path: str
    format: str | None
    tokenizer: str
    out: str
    eod: str | int | None = None
    bos: str | int | None = None
    options: dict[str, Any] | None = None
    workers: int | None = None


def run_import(request: ImportRequest, on_event: OnEvent | None = None) -> Imported:
    """Import; say what came of it."""
    if request.workers is not None and request.workers < 0:
        raise RecipeError(f"workers is {request.workers}: expected 0 or more")
    return _Import(request, on_event or (lambda event: None)).run()


class _Import:
    """The state of one import."""

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
        self._recipe = check_recipe(
            Recipe(sources=(source,), tokenizer=request.tokenizer, eod=request.eod, bos=request.bos)
        )
        self._source = source_names(self._recipe)[0]
        self._files = [
            InputFile(number, 0, file.name, file.path, file.bytes, file_facts(file.path).modified, "text", "")
            for number, file in enumerate(foreign.files)
        ]
        self._entry = ImportEntry(self._data.format.name, msgspec.to_builtins(self._data.options))
        imported = {**msgspec.to_builtins(self._entry), "units": len(self._units)}
        self._identity = BuildIdentity(
            self._recipe,
            self._data.tokenizer.fingerprint,
            {**msgspec.to_builtins(boundary), "import": imported},
            self._files,
        )
        self._dtype = dtype_for(self._data.tokenizer.vocab_size).name
        self._restoring = self._data.restoring  # refuses edges that the boundary tokens cannot make
        self._unfinished = 0

    def run(self) -> Imported:
        for note in self._data.notes:
            self._tell(Note(note))
        folder = BuildFolder(Path(self._request.out))
        try:
            return self._run(folder)
        finally:
            folder.close()

    def _run(self, folder: BuildFolder) -> Imported:
        if (manifest := folder.finished()) is not None:
            folder.clean()
            refuse_other_store(folder, manifest, self._recipe, self._entry, self._data.tokenizer, self._files)
            return Imported(manifest, 0, time.monotonic() - self._started, nothing_to_do=True)
        earlier = folder.begin(self._identity, self._data.tokenizer.json)
        receipts = folder.committed()
        if earlier is not None:
            refuse_changed_files(folder, earlier, self._files, receipts.values())
        todo = [number for number in range(len(self._units)) if f"{number:06d}" not in receipts]
        workers = self._count_workers(len(todo))
        self._announce(len(self._units) - len(todo), workers)
        done = sum(receipt.ledger.tokens for receipt in receipts.values())
        check_room(folder, (self._data.foreign.tokens or 0) - done, self._data.tokenizer.vocab_size)
        round_trip = round_trip_of(self._data.tokenizer)
        self._run_units(folder, todo, workers)
        folder.publish(manifest := self._make_manifest(folder, round_trip))
        folder.clean()
        if self._unfinished:
            self._tell(
                Note(
                    f"unfinished documents: {self._unfinished}: the data begins or ends within them; "
                    "they were given the boundary tokens that they lacked"
                )
            )
        return Imported(manifest, self._unfinished, time.monotonic() - self._started)

    def _count_workers(self, units: int) -> int:
        if self._request.workers is not None:
            return self._request.workers
        small = sum(file.size for file in self._files) < SMALL_BYTES
        return 0 if small or units < 2 else min(usable_cores(), units)

    def _announce(self, done: int, workers: int) -> None:
        data, foreign = self._data, self._data.foreign
        self._tell(
            ImportPlan(
                data.format.name,
                len(self._files),
                sum(file.size for file in self._files),
                foreign.documents,
                foreign.tokens,
                len(self._units),
                done,
                workers,
                data.tokenizer.name,
                data.tokenizer.vocab_size,
                data.boundary.eod,
                data.boundary.eod_id,
                foreign.edges,
                self._dtype,
            )
        )

    def _run_units(self, folder: BuildFolder, todo: list[int], workers: int) -> None:
        data = self._data
        job = ImportJob(
            self._request.path,
            data.format.name,
            self._entry.options,
            str(folder.path / TOKENIZER / "tokenizer.json"),
            data.tokenizer.kind,
            data.boundary,
            data.tokenizer.vocab_size,
            self._dtype,
            self._source,
            self._files,
            [unit.pieces for unit in self._units],
            str(folder.tmp),
        )

        def advanced(tokens: int) -> None:
            self._tell(Progress(self._source, 0, 0, tokens))

        def receipt_of(result: msgspec.Raw) -> Receipt:
            unit = msgspec.json.decode(result, type=ImportedUnit)
            self._unfinished += unit.unfinished
            return unit.receipt

        commit_units(
            "import",
            job,
            todo,
            folder,
            workers=workers,
            receipt_of=receipt_of,
            on_tokens=advanced,
            on_done=self._tell,
        )

    def _make_manifest(self, folder: BuildFolder, round_trip: RoundTrip) -> Manifest:
        data = self._data
        inputs = [InputEntry(file.name, 0, file.size, data.format.name, "", "", "") for file in self._files]
        return sum_up(
            folder,
            len(self._units),
            recipe=self._recipe,
            entry=self._entry,
            tokenizer=data.tokenizer,
            boundary=data.boundary,
            round_trip=round_trip,
            inputs=inputs,
        )


def _account_for_all(foreign: Foreign) -> list[ForeignUnit]:
    """The units, where files that no unit has pieces of, such as metadata, go with the first."""
    named = {piece[0] for unit in foreign.units for piece in unit.pieces}
    rest = [(number, 0, file.bytes) for number, file in enumerate(foreign.files) if number not in named]
    first, *others = foreign.units
    return [msgspec.structs.replace(first, pieces=(*first.pieces, *rest)), *others]
