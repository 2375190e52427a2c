"""Common steps of builds with units known in advance: run, commit, detect changed inputs, summarise.

    run_tasks ──> Receipt ──> BuildFolder.commit, in a thread ──> UnitDone        all units ──> Manifest

An import and a build of conversations differ in the work of a unit. In both, a receipt is the commit point,
workers continue while a commit waits for the disk, and input files must not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from packline.encoders.boundary import Boundary
from packline.encoders.parity import Reference, RoundTrip
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import OutOfSpace, ResumeMismatch, TokenizerError
from packline.jobs.events import UnitDone
from packline.jobs.folder import BuildFolder, BuildIdentity, input_differences, refuse_differences
from packline.jobs.resources import free_disk
from packline.jobs.task_pool import run_tasks
from packline.jobs.task_worker import OpenJob
from packline.ragged import dtype_for
from packline.recipe import Recipe, recipe_difference
from packline.sources.files import InputFile
from packline.storage.inputs import hash_range
from packline.store.manifest import (
    MANIFEST,
    RECEIPTS,
    TOKENIZER,
    ImportEntry,
    InputEntry,
    Manifest,
    Receipt,
    from_receipts,
    join_checksums,
)

MOST_WAITING = 4
"""Most units that wait for the disk at once; more would bring no gain."""


def commit_units(
    open_job: OpenJob,
    job: Any,
    todo: Sequence[int],
    folder: BuildFolder,
    *,
    workers: int,
    receipt_of: Callable[[msgspec.Raw], Receipt],
    on_tokens: Callable[[int], None],
    on_done: Callable[[UnitDone], None],
) -> None:
    """Run the units with these numbers and commit each.

    Args:
            open_job: opens the job, once per process, before its units.
            job: description shared by all units.
            folder: folder of the store.
            workers: maximum number of processes; 0: this one.
            receipt_of: reads the result of a unit.
            on_tokens: called with the number of tokens done since the last call.
            on_done: called when a unit is committed.

        Raises:
            PacklineError: error of the first unit that failed; committed units stay.
    """
    commits: deque[tuple[Future[None], Receipt]] = deque()

    def settle(most: int) -> None:
        """Report committed units; wait until at most `most` are pending."""
        while commits and (len(commits) > most or commits[0][0].done()):
            commit, receipt = commits.popleft()
            commit.result()
            on_done(UnitDone(receipt.unit, receipt.ledger.documents, receipt.ledger.tokens, {}))

    with ThreadPoolExecutor(2 if workers else 1) as threads:
        tasks = [(f"{number:06d}", number) for number in todo]
        for _, result in run_tasks(open_job, job, tasks, workers=workers, on_tokens=on_tokens):
            receipt = receipt_of(result)
            commits.append((threads.submit(folder.commit, receipt), receipt))
            settle(MOST_WAITING)
        settle(0)


def check_room(folder: BuildFolder, tokens: int, vocab_size: int) -> None:
    """Refuse, before writing, a store that does not fit on the disk.

    Args:
        tokens: number of tokens still to be written.
    """
    needed, free = max(tokens, 0) * dtype_for(vocab_size).itemsize, free_disk(folder.path)
    if needed > free:
        raise OutOfSpace(
            f"the disk of {folder.path} is too small: expected {needed / 1e9:.1f} GB free, "
            f"found {free / 1e9:.1f} GB",
            hint="make room, or choose another --out; finished units are kept",
        )


def refuse_other_store(
    folder: BuildFolder,
    manifest: Manifest,
    recipe: Recipe,
    entry: ImportEntry,
    tokenizer: Tokenizer,
    files: Sequence[InputFile],
) -> None:
    """Refuse to write into a finished store, unless it is the one that would be written."""
    builtins = msgspec.to_builtins
    differences = recipe_difference(builtins(manifest.recipe), builtins(recipe))
    said = {} if not isinstance(manifest.imported, ImportEntry) else builtins(manifest.imported)
    differences += recipe_difference(said, builtins(entry))
    if manifest.tokenizer.fingerprint != tokenizer.fingerprint:
        differences.append("the tokenizer's content")
    differences += input_differences(
        [(one.name, one.bytes) for one in manifest.inputs], [(file.name, file.size) for file in files]
    )
    published = (folder.path / MANIFEST).stat().st_mtime_ns
    differences += [
        f"{file.path} was modified after the store was made"
        for file in files
        if file.modified.isdigit() and int(file.modified) > published
    ]
    refuse_differences(folder.path, differences)


def refuse_changed_files(
    folder: BuildFolder, earlier: BuildIdentity, files: Sequence[InputFile], receipts: Iterable[Receipt]
) -> None:
    """Refuse to resume if inputs of finished units have changed."""
    before = {file.index: file.modified for file in earlier.files}
    suspects = {file.index for file in files if before.get(file.index) != file.modified}
    changed = {
        piece.file
        for receipt in receipts
        for piece in receipt.inputs
        if piece.file in suspects
        and hash_range(files[piece.file].path, piece.start, piece.stop) != piece.checksum
    }
    if changed:
        paths = ", ".join(files[file].path for file in sorted(changed)[:5])
        raise ResumeMismatch(
            f"{folder.path} was begun with another state of {paths}: expected the content that it has "
            "read, found other content",
            hint="put the earlier files back to go on, or choose another --out",
        )


def sum_up(
    folder: BuildFolder,
    units: int,
    *,
    recipe: Recipe,
    entry: ImportEntry,
    tokenizer: Tokenizer,
    boundary: Boundary,
    round_trip: RoundTrip,
    inputs: Sequence[InputEntry],
    val_share: float | msgspec.UnsetType = msgspec.UNSET,
) -> Manifest:
    """Manifest of a store whose units are all committed; checksums of inputs are filled in."""
    receipts = folder.committed()
    ordered = [receipts[f"{number:06d}"] for number in range(units)]
    checksums: list[list[str]] = [[] for _ in inputs]
    for receipt in ordered:
        for piece in receipt.inputs:
            checksums[piece.file].append(piece.checksum)
    return from_receipts(
        ordered,
        recipe=recipe,
        tokenizer=tokenizer,
        boundary=boundary,
        round_trip=round_trip,
        inputs=[
            msgspec.structs.replace(one, checksum=join_checksums(parts))
            for one, parts in zip(inputs, checksums, strict=True)
        ],
        receipt_files=[folder.entry(f"{RECEIPTS}/{number:06d}.json") for number in range(units)],
        tokenizer_files=[folder.entry(f"{TOKENIZER}/tokenizer.json")],
        imported=entry,
        val_share=val_share,
    )


def round_trip_of(tokenizer: Tokenizer) -> RoundTrip:
    """Check whether ids of this tokenizer decode to the text.

    Raises:
        TokenizerError: the reference library cannot read it, so the store could not be decoded.
    """
    try:
        return Reference(without_special_tokens(tokenizer)).round_trip
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{tokenizer.name} is not a tokenizer that HF tokenizers reads: {error}"
        ) from error
