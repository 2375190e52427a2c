"""Export: a store, or the rows of a run, in the layout of another project.

    view ── plan ──> what is lost, and whether the disk has room, before anything is written
      parts ──> written by separate processes, each with a receipt         .OUT.packline/
      finish ──> files that summarise the parts
      packline.json, tokenizer.json, tokenizer_config.json ──> renamed to OUT

Run again after an interruption, the same export resumes: finished parts are kept, and the bytes are the
same. Formats need not know about this (see `format`).

Cost: what the format writes, at the speed of the disk; files whose bytes equal the store's are linked. A
process takes a third of a second to start, so small exports are written in this one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.encoders.tokenizer import CONFIG, config_bytes
from packline.errors import OutOfSpace, RecipeError
from packline.formats.choice import ExportChoice, is_run
from packline.formats.export_record import TOKENIZER_FILE, ExportIdentity, ExportRecord
from packline.formats.exporting.parts import (
    ExportJob,
    PartReceipt,
    View,
    make_runner,
    open_job,
    open_view,
    writing,
)
from packline.formats.exporting.staging import Staging, clear_leftovers, finished_export
from packline.formats.format import get_format
from packline.formats.options import Options, convert_options
from packline.formats.row_view import RowView
from packline.formats.target import Link, Target, sync_files
from packline.formats.types import ExportPart, ExportPlan, NotPreserved, WrittenPart
from packline.jobs.resources import free_disk, usable_cores
from packline.jobs.task_pool import run_here, run_tasks
from packline.storage.local import disk_errors
from packline.store.files import read_file
from packline.store.manifest import MANIFEST

if TYPE_CHECKING:
    from packline.formats.format import Format

SMALL = 64 << 20
"""Bytes of output below which no process is started."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of an export, before anything is written."""

    format: str
    out: str
    parts: int
    parts_kept: int
    """Number of parts kept from an earlier run."""
    bytes: int
    shared_bytes: int
    """Bytes of files shared with the store."""
    sharing: str
    """Way of sharing: `linked`, `reflinked` or `copied`; empty if there are none."""
    documents: int | None
    rows: int | None
    tokens: int
    """Tokens of all parts, the total for `Advanced`; for rows, padding included."""
    lost: tuple[NotPreserved, ...]
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer may stop, such as a file that it opens and that will be missing."""


class Advanced(msgspec.Struct, frozen=True):
    """Number of tokens written since the last event."""

    tokens: int


class PartDone(msgspec.Struct, frozen=True):
    """A part is finished and will be kept."""

    name: str


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an export."""

    out: str
    format: str
    documents: int
    tokens: int
    rows: int | None
    files: int
    bytes: int
    """Bytes of all files, shared ones included."""
    shared: dict[str, int]
    """Bytes shared with the store: `linked`, `reflinked` or `copied`."""
    lost: tuple[NotPreserved, ...]
    parts: int
    parts_kept: int
    seconds: float
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer may stop."""
    trainer_lines: tuple[str, ...] = ()
    """Settings for the trainer (`Format.trainer_lines`)."""
    nothing_to_do: bool = False


ExportEvent = Planned | Advanced | PartDone


def export(
    source: str | Path | RowView,
    *,
    to: str,
    out: str | Path,
    options: Mapping[str, Any] | None = None,
    choice: ExportChoice = ExportChoice(),  # noqa: B008  frozen
    link: Link = "auto",
    workers: int | None = None,
    with_tokenizer: bool = True,
    on_event: Callable[[ExportEvent], None] | None = None,
) -> Exported:
    """Write a store, or rows of a store or run, in another layout.

    Args:
        source: the folder of a store, a run file (.toml), or rows that are already open.
        to: name of the format.
        out: a new or empty folder, or one that holds the same export, in which case there is nothing to do.
        options: options of the format, by name.
        choice: documents or rows to export.
        link: how bytes of the store are shared where the layout keeps them unchanged.
        workers: number of processes; None: one per core, 0: this process only.
        with_tokenizer: write the tokenizer next to the files.
        on_event: called with every event, in this thread.

    Raises:
        RecipeError: invalid settings, or ids that do not fit into the format.
        StoreError: a missing or damaged store; a folder that holds something else.
        OutOfSpace: not enough room; raised before anything is written, as far as sizes are known.
    """
    if workers is not None and workers < 0:
        raise RecipeError(f"workers is {workers}: expected 0 or more")
    began, tell = time.monotonic(), on_event or (lambda event: None)
    format = get_format(to)
    chosen = convert_options(format, dict(options or {}))
    view = source if isinstance(source, RowView) else open_view(format, chosen, str(source), choice)
    if isinstance(view, RowView) != (format.kind == "rows"):
        raise RecipeError(f"{to} holds {format.kind}, and was given rows")
    place = Path(os.path.abspath(out))
    identity = ExportIdentity(
        format=to,
        options=msgspec.to_builtins(chosen),
        source=_source_of(source, view),
        settings=msgspec.to_builtins(choice),
        link=link,
    )
    if (record := finished_export(place, identity)) is not None:
        clear_leftovers(place, identity)
        lines = format.trainer_lines(str(place), record, chosen)
        return _exported(place, record, lines, 0, 0, began, nothing_to_do=True)
    job = ExportJob(
        format=to,
        options=identity.options,
        source="" if isinstance(source, RowView) else str(source),
        choice=choice,
        folder="",
        link=link,
    )
    plan = writing(format).plan(view, chosen)
    staging = Staging(place)
    try:
        return _Export(format, chosen, view, plan, staging, tell, with_tokenizer).run(
            job, identity, workers, began
        )
    finally:
        staging.close()


class _Export:
    """One export with valid settings."""

    def __init__(
        self,
        format: Format,
        options: Options,
        view: View,
        plan: ExportPlan,
        staging: Staging,
        tell: Callable[[ExportEvent], None],
        with_tokenizer: bool,
    ) -> None:
        self._format, self._options, self._view, self._plan = format, options, view, plan
        self._staging, self._tell, self._with_tokenizer = staging, tell, with_tokenizer
        self._lost = plan.lost
        if isinstance(view, RowView):
            self._lost += tuple(lost for lost in view.lost if lost not in plan.lost)
            self._warnings = plan.warnings
        else:
            self._warnings = format.missing(view.splits) + plan.warnings

    def run(self, job: ExportJob, identity: ExportIdentity, workers: int | None, began: float) -> Exported:
        plan, staging = self._plan, self._staging
        receipts = staging.begin(identity, plan.parts)
        kept = len(receipts)
        job = msgspec.structs.replace(job, folder=str(staging.files))
        sharing = self._how_shared(job.link) if plan.shared_bytes else ""
        self._announce(sharing, kept)
        self._preflight(sharing, receipts)
        numbers = {part.name: number for number, part in enumerate(plan.parts)}
        tasks = [(part.name, part) for part in plan.parts if part.name not in receipts]
        for name, result in self._written(job, tasks, workers):
            receipt = msgspec.json.decode(result, type=PartReceipt)
            if not receipt.is_quick:
                staging.commit(numbers[name], receipt)
            receipts[name] = receipt
            self._tell(PartDone(name))
        record = self._sum_up(identity, [receipts[part.name] for part in plan.parts], job.link)
        staging.publish(record)
        lines = self._format.trainer_lines(str(staging.out), record, self._options)
        return _exported(staging.out, record, lines, len(plan.parts), kept, began)

    def _written(self, job: ExportJob, tasks: list[tuple[str, ExportPart]], workers: int | None) -> Any:
        def advance(tokens: int) -> None:
            self._tell(Advanced(tokens))

        count = usable_cores() if workers is None else workers
        if not job.source or count == 0 or len(tasks) < 2 or (workers is None and self._plan.bytes < SMALL):
            return run_here(make_runner(job, self._view), tasks, advance)
        return run_tasks(open_job, job, tasks, workers=count, on_tokens=advance)

    def _how_shared(self, link: Link) -> str:
        """Share something small to find out which way works."""
        target = Target(self._staging.folder, link=link)
        target.share(self._view.store.path / MANIFEST, "probe")
        (self._staging.folder / "probe").unlink()
        return next(iter(target.shared))

    def _announce(self, sharing: str, kept: int) -> None:
        view, plan = self._view, self._plan
        of_rows = isinstance(view, RowView)
        self._tell(
            Planned(
                format=self._format.name,
                out=str(self._staging.out),
                parts=len(plan.parts),
                parts_kept=kept,
                bytes=plan.bytes,
                shared_bytes=plan.shared_bytes,
                sharing=sharing,
                documents=None if of_rows else view.documents,
                rows=view.rows if isinstance(view, RowView) else None,
                tokens=view.rows * view.seq_len if isinstance(view, RowView) else view.tokens,
                lost=self._lost,
                warnings=self._warnings,
            )
        )

    def _preflight(self, sharing: str, receipts: dict[str, PartReceipt]) -> None:
        """Refuse to begin an export that cannot finish.

        Raises:
            OutOfSpace: more bytes are to be written than are free.
        """
        needed = self._plan.bytes + (self._plan.shared_bytes if sharing == "copied" else 0)
        for receipt in receipts.values():  # files written, not linked, by an earlier run exist
            needed -= receipt.own_bytes
        free = free_disk(self._staging.folder)
        if needed > free:
            raise OutOfSpace(
                f"the disk of {self._staging.out.parent} has {free:,} bytes free: expected {needed:,} "
                f"for {self._format.name}",
                hint="make room, or choose an --out on another disk",
            )

    def _sum_up(self, identity: ExportIdentity, receipts: list[PartReceipt], link: Link) -> ExportRecord:
        target = Target(self._staging.files, link=link)
        written = [WrittenPart(receipt.part, receipt.facts) for receipt in receipts]
        writing(self._format).finish(self._view, written, target, self._options)
        if self._with_tokenizer:
            self._write_tokenizer(target)
        waiting = [entry.name for receipt in receipts if receipt.is_quick for entry in receipt.files]
        sync_files(target.folder, waiting + [entry.name for entry in target.files])
        shared = dict(target.shared)
        for receipt in receipts:
            for how, size in receipt.shared.items():
                shared[how] = shared.get(how, 0) + size
        files = [entry for receipt in receipts for entry in receipt.files] + target.files
        view = self._view
        return ExportRecord(
            **msgspec.structs.asdict(identity),
            tokenizer=view.tokenizer,
            documents=view.documents,
            tokens=view.tokens,
            rows=view.rows if isinstance(view, RowView) else None,
            seq_len=view.seq_len if isinstance(view, RowView) else None,
            lost=self._lost,
            warnings=self._warnings,
            shared=shared,
            files=tuple(sorted(files, key=lambda entry: entry.name)),
        )

    def _write_tokenizer(self, target: Target) -> None:
        """Write the store's tokenizer next to the files, with its end of document for the trainer."""
        entry = self._view.tokenizer
        text = read_file(self._view.store.path, self._view.store.tokenizer_file)
        added = msgspec.json.decode(text).get("added_tokens") or []
        special = [token["content"] for token in added if token.get("special")]
        with disk_errors(target.folder):
            with target.create(TOKENIZER_FILE) as file:
                file.write(text)
            with target.create(CONFIG) as file:
                file.write(config_bytes(special, entry.eod, entry.bos))


def _source_of(source: str | Path | RowView, view: View) -> dict[str, str]:
    if not isinstance(view, RowView):
        return {"store": view.store.manifest.checksum}
    if isinstance(source, RowView) or is_run(source):
        return {"run": view.fingerprint}
    return {"store": view.store.manifest.checksum, "rows": view.fingerprint}


def _exported(
    out: Path,
    record: ExportRecord,
    trainer_lines: tuple[str, ...],
    parts: int,
    kept: int,
    began: float,
    nothing_to_do: bool = False,
) -> Exported:
    return Exported(
        out=str(out),
        format=record.format,
        documents=record.documents,
        tokens=record.tokens,
        rows=record.rows,
        files=len(record.files),
        bytes=sum(entry.bytes for entry in record.files),
        shared=record.shared,
        lost=record.lost,
        parts=parts,
        parts_kept=kept,
        seconds=time.monotonic() - began,
        warnings=record.warnings,
        trainer_lines=trainer_lines,
        nothing_to_do=nothing_to_do,
    )
