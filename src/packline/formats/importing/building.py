"""A build whose units are known in advance, from its lock to its manifest: an import, or conversations.

    .packline/build.json   identity of the build: files, tokenizer, boundary, format, options
    receipts/UNIT.json     commit record of a unit, as in a build of text
    manifest.json          written last; until then there is no store

Lock, receipts, resuming and publishing are those of a build of text (`BuildFolder`). What a unit does is up
to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from packline.encoders.boundary import Boundary
from packline.encoders.tokenizer import Tokenizer
from packline.errors import PacklineError
from packline.formats.importing.committing import (
    check_room,
    commit_units,
    refuse_changed_files,
    refuse_other_store,
    round_trip_of,
    sum_up,
)
from packline.jobs.events import Note, Progress, UnitDone
from packline.jobs.folder import BuildFolder, BuildIdentity
from packline.jobs.publish import discard_empty
from packline.jobs.resources import usable_cores
from packline.jobs.task_worker import OpenJob
from packline.ragged import dtype_for
from packline.recipe import Recipe
from packline.sources.files import InputFile
from packline.store.manifest import ImportEntry, InputEntry, Manifest, Receipt, refuse_empty


class ImportPlan(msgspec.Struct, frozen=True):
    """Plan of an import, before it starts."""

    format: str
    files: int
    bytes: int
    documents: int | None
    tokens: int | None
    """Numbers of documents and tokens, as far as headers declare them."""
    units: int
    units_done: int
    """Number of units committed by an earlier run of the same import."""
    workers: int
    tokenizer: str
    vocab_size: int
    eod: str
    eod_id: int
    edges: str
    dtype: str


class Imported(msgspec.Struct, frozen=True):
    """Result of an import."""

    manifest: Manifest
    unfinished: int
    """Documents of this run cut off by the beginning or end of the data; their boundary tokens were added."""
    seconds: float
    nothing_to_do: bool = False


ImportEvent = ImportPlan | Progress | UnitDone | Note
OnEvent = Callable[[ImportEvent], None]
ValShare = Callable[[], float | msgspec.UnsetType]
"""Function that returns the val_fraction equivalent to a recipe's val_documents, if it has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBuild:
    """Description of a build, apart from the work of a unit."""

    open_job: OpenJob
    """Opens the job in a process, before its units."""
    title: str
    """Name of the build in the plan."""
    out: str
    recipe: Recipe
    entry: ImportEntry
    tokenizer: Tokenizer
    boundary: Boundary
    edges: str
    """Boundary tokens, as shown in the plan."""
    files: Sequence[InputFile]
    inputs: Sequence[InputEntry]
    """Input files for the manifest; checksums are filled in."""
    units: int
    small_bytes: int
    """Bytes of files below which starting processes would take longer than the work."""
    workers: int | None
    documents: int | None = None
    tokens: int | None = None
    """Number of tokens, as far as headers declare it."""

    @property
    def dtype(self) -> str:
        """Dtype of the tokens."""
        return dtype_for(self.tokenizer.vocab_size).name

    def identity(self) -> BuildIdentity:
        """Identity that must be equal for a build to resume."""
        imported = {**msgspec.to_builtins(self.entry), "units": self.units}
        boundary = {**msgspec.to_builtins(self.boundary), "import": imported}
        return BuildIdentity(self.recipe, self.tokenizer.fingerprint, boundary, list(self.files))

    def processes(self, units: int) -> int:
        """Number of processes for this number of units; 0: this one."""
        if self.workers is not None:
            return self.workers
        small = sum(file.size for file in self.files) < self.small_bytes
        return 0 if small or units < 2 else min(usable_cores(), units)


def run_build(
    build: UnitBuild,
    *,
    job_of: Callable[[BuildFolder], Any],
    receipt_of: Callable[[msgspec.Raw], Receipt],
    source: str,
    tell: OnEvent,
    accept: Callable[[Manifest], None] = lambda manifest: None,
    val_share: ValShare = lambda: msgspec.UNSET,
) -> tuple[Manifest, bool]:
    """Run the units that have no receipt, and publish the store.

    Args:
        build: build to run.
        job_of: description shared by all units, as JSON-compatible values; called once there is a folder.
        receipt_of: reads the result of a unit.
        source: source name in progress events.
        tell: called with `ImportPlan`, `Progress` and `UnitDone`.
        accept: called before the store is published. If it raises, there is no store, and the folder is
            free for another build.
        val_share: validation share for the manifest, called when all units are done.

    Returns:
        The manifest, and whether it existed already.

    Raises:
        ResumeMismatch: the folder holds another build, or files have changed.
        OutOfSpace: the known size does not fit on the disk, or the disk is full.
        TokenizerError: the store could not be decoded by anyone.
        PacklineError: error of the first unit that failed; committed units stay.
    """
    folder = BuildFolder(Path(build.out))
    try:
        return _run(build, folder, job_of, receipt_of, source, tell, accept, val_share)
    finally:
        folder.close()


def _run(
    build: UnitBuild,
    folder: BuildFolder,
    job_of: Callable[[BuildFolder], Any],
    receipt_of: Callable[[msgspec.Raw], Receipt],
    source: str,
    tell: OnEvent,
    accept: Callable[[Manifest], None],
    val_share: ValShare,
) -> tuple[Manifest, bool]:
    tokenizer = build.tokenizer
    if (manifest := folder.finished()) is not None:
        refuse_other = partial(
            refuse_other_store, folder, manifest, build.recipe, build.entry, tokenizer, build.files
        )
        discarded = False
        try:
            discarded = discard_empty(folder, manifest, refuse_other)
        finally:
            if not discarded:
                _clean(folder, tell)
        if not discarded:
            refuse_empty(folder.path, manifest)
            return manifest, True
    earlier = folder.begin(build.identity(), tokenizer.json)
    receipts = folder.committed()
    if earlier is not None:
        refuse_changed_files(folder, earlier, build.files, receipts.values())
    todo = [number for number in range(build.units) if f"{number:06d}" not in receipts]
    workers = build.processes(len(todo))
    tell(_plan(build, build.units - len(todo), workers))
    done = sum(receipt.ledger.tokens for receipt in receipts.values())
    check_room(folder, (build.tokens or 0) - done, tokenizer.vocab_size)
    round_trip = round_trip_of(tokenizer)
    commit_units(
        build.open_job,
        job_of(folder),
        todo,
        folder,
        workers=workers,
        receipt_of=receipt_of,
        on_tokens=lambda tokens: tell(Progress(source, 0, 0, tokens)),
        on_done=tell,
    )
    manifest = sum_up(
        folder,
        build.units,
        recipe=build.recipe,
        entry=build.entry,
        tokenizer=tokenizer,
        boundary=build.boundary,
        round_trip=round_trip,
        inputs=build.inputs,
        val_share=val_share(),
    )
    try:
        accept(manifest)
    except PacklineError:
        folder.release()
        raise
    folder.publish(manifest)
    _clean(folder, tell)
    refuse_empty(folder.path, manifest)
    return manifest, False


def _clean(folder: BuildFolder, tell: OnEvent) -> None:
    if left := folder.clean():
        tell(Note(left))


def _plan(build: UnitBuild, done: int, workers: int) -> ImportPlan:
    return ImportPlan(
        build.title,
        len(build.files),
        sum(file.size for file in build.files),
        build.documents,
        build.tokens,
        build.units,
        done,
        workers,
        build.tokenizer.name,
        build.tokenizer.vocab_size,
        build.boundary.eod,
        build.boundary.eod_id,
        build.edges,
        build.dtype,
    )
