"""One import from its request to its store: look, run the units that have no receipt, publish.

    .packline/build.json   what makes this import this import: files, tokenizer, boundary, format, options
    receipts/UNIT.json     the commit record of a unit, as of a build's
    manifest.json          written last; until then there is no store

Lock, receipts, going on and publishing are a build's (`BuildFolder`); what the units do is `import_unit`'s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.parity import Reference, RoundTrip
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore, InputError, OutOfSpace, RecipeError, ResumeMismatch, TokenizerError
from packline.filesystem import file_facts
from packline.formats.format import Foreign, ForeignUnit
from packline.formats.import_unit import ImportedUnit, ImportJob, hash_piece, join_checksums
from packline.formats.opening import open_foreign
from packline.formats.processes import run_tasks
from packline.recipe import Recipe, Source, check_recipe, recipe_difference
from packline.runtime.events import Note, Progress, UnitDone
from packline.runtime.folder import BuildFolder, BuildIdentity, input_differences, refuse_differences
from packline.runtime.resources import free_disk, usable_cores
from packline.sources.files import InputFile
from packline.store.index import dtype_for
from packline.store.ledger import source_names, total
from packline.store.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    RECEIPTS,
    TOKENIZER,
    ImportEntry,
    InputEntry,
    Manifest,
    Receipt,
    TokenizerEntry,
)
from packline.store.report import Findings
from packline.version import __version__

SMALL_BYTES = 64 << 20
"""Of a data set for which starting processes would take longer than the work."""


MOST_WAITING = 4
"""Units that wait for the disk; with more, nobody would gain."""


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
            if unit.split not in ("train", "val"):
                raise RecipeError(f"{request.path} has a split {unit.split!r}: expected train or val")
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
            self._refuse_other_store(folder, manifest)
            return Imported(manifest, 0, time.monotonic() - self._started, nothing_to_do=True)
        earlier = folder.begin(self._identity, self._data.tokenizer.json)
        receipts = folder.committed()
        if earlier is not None:
            self._refuse_changed_files(folder, earlier, receipts)
        todo = [number for number in range(len(self._units)) if f"{number:06d}" not in receipts]
        workers = self._count_workers(len(todo))
        self._announce(len(self._units) - len(todo), workers)
        self._check_disk(folder, receipts)
        round_trip = _round_trip(self._data.tokenizer)
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

    def _check_disk(self, folder: BuildFolder, receipts: dict[str, Receipt]) -> None:
        """Refuse before writing what cannot fit."""
        done = sum(receipt.ledger.tokens for receipt in receipts.values())
        left = max((self._data.foreign.tokens or 0) - done, 0)
        needed, free = left * dtype_for(self._data.tokenizer.vocab_size).itemsize, free_disk(folder.path)
        if needed > free:
            raise OutOfSpace(
                f"the disk of {folder.path} is too small: expected {needed / 1e9:.1f} GB free, "
                f"found {free / 1e9:.1f} GB",
                hint="make room, or choose another --out; finished units are kept",
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

        # A commit waits for the disk; meanwhile the workers go on.
        commits: deque[tuple[Future[None], Receipt]] = deque()

        def settle(most: int) -> None:
            """Tell of what is committed; wait until no more than so many are not."""
            while commits and (len(commits) > most or commits[0][0].done()):
                commit, receipt = commits.popleft()
                commit.result()
                self._tell(UnitDone(receipt.unit, receipt.ledger.documents, receipt.ledger.tokens, {}))

        with ThreadPoolExecutor(2 if workers else 1) as threads:
            tasks = [(f"{number:06d}", number) for number in todo]
            for _, result in run_tasks("import", job, tasks, workers=workers, on_tokens=advanced):
                unit = msgspec.json.decode(result, type=ImportedUnit)
                self._unfinished += unit.unfinished
                commits.append((threads.submit(folder.commit, unit.receipt), unit.receipt))
                settle(MOST_WAITING)
            settle(0)

    def _make_manifest(self, folder: BuildFolder, round_trip: RoundTrip) -> Manifest:
        data, receipts = self._data, folder.committed()
        ordered = [receipts[f"{number:06d}"] for number in range(len(self._units))]
        ledger = total(receipt.ledger for receipt in ordered)
        checksums: dict[int, list[str]] = {file.index: [] for file in self._files}
        for receipt in ordered:
            for piece in receipt.inputs:
                checksums[piece.file].append(piece.checksum)
        tokenizer, boundary = data.tokenizer, data.boundary
        return Manifest(
            format_version=FORMAT_VERSION,
            packline=__version__,
            recipe=self._recipe,
            tokenizer=TokenizerEntry(
                name=tokenizer.name,
                kind=tokenizer.kind,
                fingerprint=tokenizer.fingerprint,
                vocab_size=tokenizer.vocab_size,
                eod_id=boundary.eod_id,
                eod=boundary.eod,
                bos_id=boundary.bos_id,
                bos=boundary.bos,
                round_trip=round_trip,
            ),
            dtype=self._dtype,
            inputs=tuple(
                InputEntry(
                    file.name, 0, file.size, data.format.name, "", "", join_checksums(checksums[file.index])
                )
                for file in self._files
            ),
            shards=tuple(shard for receipt in ordered for shard in receipt.shards),
            rejects=(),
            receipts=tuple(folder.entry(f"{RECEIPTS}/{number:06d}.json") for number in range(len(ordered))),
            tokenizer_files=(folder.entry(f"{TOKENIZER}/tokenizer.json"),),
            ledger=ledger,
            sources={self._source: ledger},
            imported=self._entry,
        )

    def _refuse_other_store(self, folder: BuildFolder, manifest: Manifest) -> None:
        """Refuse to import into a finished store, unless it is just what would be imported."""
        builtins = msgspec.to_builtins
        differences = recipe_difference(builtins(manifest.recipe), builtins(self._recipe))
        said = {} if not isinstance(manifest.imported, ImportEntry) else builtins(manifest.imported)
        differences += recipe_difference(said, builtins(self._entry))
        if manifest.tokenizer.fingerprint != self._data.tokenizer.fingerprint:
            differences.append("the tokenizer's content")
        differences += input_differences(
            [(entry.name, entry.bytes) for entry in manifest.inputs],
            [(file.name, file.size) for file in self._files],
        )
        published = (folder.path / MANIFEST).stat().st_mtime_ns
        differences += [
            f"{file.path} was modified after the store was made"
            for file in self._files
            if int(file.modified) > published
        ]
        refuse_differences(folder.path, differences)

    def _refuse_changed_files(
        self, folder: BuildFolder, earlier: BuildIdentity, receipts: dict[str, Receipt]
    ) -> None:
        """Refuse to go on if what finished units have read is not what it was."""
        before = {file.index: file.modified for file in earlier.files}
        suspects = {file.index for file in self._files if before.get(file.index) != file.modified}
        changed = {
            piece.file
            for receipt in receipts.values()
            for piece in receipt.inputs
            if piece.file in suspects
            and hash_piece(self._files[piece.file].path, piece.start, piece.stop) != piece.checksum
        }
        if changed:
            paths = ", ".join(self._files[file].path for file in sorted(changed)[:5])
            raise ResumeMismatch(
                f"{folder.path} was begun with another state of {paths}: expected the content that it has "
                "read, found other content",
                hint="put the earlier files back to go on, or choose another --out",
            )


def _account_for_all(foreign: Foreign) -> list[ForeignUnit]:
    """The units, where files that no unit has pieces of, such as metadata, go with the first."""
    named = {piece[0] for unit in foreign.units for piece in unit.pieces}
    rest = [(number, 0, file.bytes) for number, file in enumerate(foreign.files) if number not in named]
    first, *others = foreign.units
    return [msgspec.structs.replace(first, pieces=(*first.pieces, *rest)), *others]


def _round_trip(tokenizer: Tokenizer) -> RoundTrip:
    """Whether ids of this tokenizer decode to the text.

    Raises:
        TokenizerError: the reference library cannot read it, so nobody could ever decode the store.
    """
    try:
        return Reference(without_special_tokens(tokenizer)).round_trip
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{tokenizer.name} is not a tokenizer that HF tokenizers reads: {error}"
        ) from error
