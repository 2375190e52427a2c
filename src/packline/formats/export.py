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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from packline.encoders.tokenizer import CONFIG, config_bytes, read_added_tokens
from packline.errors import RecipeError
from packline.formats.choice import ExportChoice, is_run
from packline.formats.document_view import DocumentView
from packline.formats.export_record import TOKENIZER_FILE, ExportIdentity, ExportRecord
from packline.formats.format import Format, Options, convert_options, get_format
from packline.formats.remote_export import RemoteExport
from packline.formats.row_splits import RowSplits
from packline.formats.row_view import RowView
from packline.formats.staging import PartReceipt, Staging, clear_leftovers, finished_export
from packline.formats.target import Target
from packline.formats.types import ExportPart, NotPreserved, WrittenPart, without_folders
from packline.jobs.engine import run_job
from packline.jobs.events import OnEvent, Planned, UnitDone
from packline.jobs.job import Job, ReportProgress, Runner, Session, WorkUnit
from packline.jobs.on import On
from packline.jobs.resources import require_disk, usable_cores
from packline.storage.local import disk_errors
from packline.storage.places import is_remote
from packline.storage.sharing import Link, sync_files
from packline.store.files import read_file
from packline.store.manifest import MANIFEST

if TYPE_CHECKING:
    from packline.formats.format import Format

View = DocumentView | RowSplits


class PartUnit(WorkUnit, frozen=True, kw_only=True):
    """A part to be written; its name is that of the part."""

    number: int
    part: ExportPart


class PartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings common to all parts of an export."""

    format: str
    options: dict[str, Any]
    source: str
    """Path of the store or run file; empty if a view is open already."""
    choice: ExportChoice
    out: str
    link: Link

    def open(self) -> ExportRunner:
        """Open a view of the source."""
        return ExportRunner(self)


class ExportRunner(Runner[PartUnit, PartReceipt]):
    """Writes parts of an export.

    Args:
        view: a view that is open already.
    """

    unit = PartUnit

    def __init__(self, settings: PartSettings, view: View | None = None) -> None:
        self._format = format = get_format(settings.format)
        self._options = options = convert_options(format, settings.options)
        self._view = view or format.view(settings.source, settings.choice, options)
        self._staging, self._link = Staging(Path(settings.out)), settings.link

    def run(self, unit: PartUnit, report: ReportProgress) -> PartReceipt:
        """Write the files of a part: where other processes may write the same, in a folder of its own."""
        folder = self._staging.tmp if self.is_shared else self._staging.files
        target = Target(folder, link=self._link, on_progress=report)
        format, view = self._format, self._view
        if isinstance(view, RowSplits):
            facts = view.write(format, unit.part, target, self._options)
        else:
            facts = format.write(view, unit.part, target, self._options)
        return PartReceipt(unit.part, facts or {}, tuple(target.files), dict(target.shared))

    def found(self, unit: PartUnit) -> PartReceipt | None:
        """Receipt that another process has written meanwhile."""
        return self._staging.find_receipt(unit.number, unit.part)

    def commit(self, unit: PartUnit, result: PartReceipt) -> None:
        """Wait until the files are on the disk, and record that they are; quick parts only for others."""
        if self.is_shared or not result.is_quick:
            if self.is_shared:
                self._staging.admit([entry.name for entry in result.files])
            sync_files(self._staging.files, [entry.name for entry in result.files])
            self._staging.commit(unit.number, result)


SMALL = 64 << 20
"""Bytes of output below which no process is started."""


class ExportPlanned(Planned, frozen=True, kw_only=True):
    """Plan of an export; its units are the parts. For rows, `tokens` include padding."""

    format: str
    out: str
    bytes: int
    shared_bytes: int
    """Bytes of files shared with the store."""
    sharing: str
    """Way of sharing: `linked`, `reflinked` or `copied`; empty if there are none."""
    documents: int | None
    rows: int | None
    lost: tuple[NotPreserved, ...]
    warnings: tuple[str, ...] = ()
    """Reasons why the trainer may stop, such as a file that it opens and that will be missing."""


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
    folders: tuple[str, ...] = ()
    """Folders of splits in the export; empty if splits have none."""
    nothing_to_do: bool = False


def run_export(
    source: str | Path | RowView,
    *,
    to: str,
    out: str | Path,
    options: Mapping[str, Any] | None = None,
    choice: ExportChoice = ExportChoice(),  # noqa: B008  frozen
    link: Link = "auto",
    workers: int | None = None,
    with_tokenizer: bool = True,
    on: On = "local",
    on_event: OnEvent | None = None,
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
        on: where the parts are written.
        on_event: called with every event, in this thread.

    Raises:
        RecipeError: invalid settings, or ids that do not fit into the format.
        StoreError: a missing or damaged store; a folder that holds something else.
        OutOfSpace: not enough room; raised before anything is written, as far as sizes are known.
    """
    if workers is not None and workers < 0:
        raise RecipeError(f"workers is {workers}: expected 0 or more")
    if on != "local" and isinstance(source, RowView):
        raise RecipeError(
            "rows that are open in this process cannot be written by another one",
            hint="export the store or run file that they are of, or leave out on",
        )
    began = time.monotonic()
    format = get_format(to)
    chosen = convert_options(format, dict(options or {}))
    view: View = (
        RowSplits({"train": source})
        if isinstance(source, RowView)
        else format.view(str(source), choice, chosen)
    )
    if isinstance(view, RowSplits) != (format.kind == "rows"):
        raise RecipeError(f"{to} holds {format.kind}, and was given rows")
    remote = RemoteExport(str(out)) if is_remote(out) else None
    if remote is not None and on != "local":
        raise RecipeError(
            f"{out}: an export to a URI is made in a scratch folder of one machine: expected on local",
            hint="leave out --on, --slice and --join, or export into a folder that all machines share",
        )
    place = Path(os.path.abspath(out)) if remote is None else remote.folder
    identity = ExportIdentity(
        format=to,
        options=msgspec.to_builtins(chosen),
        source=_source_of(source, view),
        settings=_without_folders(choice),
        link=link,
    )
    if remote is not None and (record := remote.finished(identity)) is not None:
        return _exported(remote.place, record, (), 0, 0, began, nothing_to_do=True)
    if (record := finished_export(place, identity)) is not None:
        clear_leftovers(place, identity)
        lines = format.trainer_lines(str(place), record, chosen)
        if remote is not None:  # interrupted while its files were put
            return _publish(remote, _exported(str(place), record, lines, 0, 0, began))
        return _exported(str(place), record, lines, 0, 0, began, nothing_to_do=True)
    settings = PartSettings(
        format=to,
        options=identity.options,
        source="" if isinstance(source, RowView) else str(source),
        choice=choice,
        out=str(place),
        link=link,
    )
    exported = run_job(
        ExportJob(settings, identity, format, chosen, view, workers, with_tokenizer, began), on_event, on=on
    )
    return exported if remote is None else _publish(remote, exported)


class ExportJob(Job[PartUnit, PartReceipt, Exported]):
    """One export with valid settings; its source is open."""

    result = PartReceipt
    if_died = "what is finished is kept: run the same command again, with fewer --workers if memory ran out"
    folder: Staging

    def __init__(
        self,
        settings: PartSettings,
        identity: ExportIdentity,
        format: Format,
        options: Options,
        view: View,
        processes: int | None,
        with_tokenizer: bool,
        began: float,
    ) -> None:
        self._settings, self._identity = settings, identity
        self._format, self._options, self._view = format, options, view
        self._processes, self._with_tokenizer, self._began = processes, with_tokenizer, began
        if isinstance(view, RowSplits):
            self._plan = plan = view.plan(format, options)
            self._warnings = plan.warnings
        else:
            self._plan = plan = format.plan(view, options)
            self._warnings = format.missing(view.splits) + plan.warnings
        self._lost = plan.lost
        self.folder = Staging(Path(settings.out))
        self._receipts: dict[str, PartReceipt] = {}
        self._kept = 0
        self._sharing = ""

    def begin(self) -> list[PartUnit]:
        """Start or resume; the parts without a receipt."""
        plan = self._plan
        self._receipts = self.folder.begin(self._identity, plan.parts)
        self._kept = len(self._receipts)
        return self._todo()

    def _todo(self) -> list[PartUnit]:
        return [
            PartUnit(name=part.unit, number=number, part=part)
            for number, part in enumerate(self._plan.parts)
            if part.unit not in self._receipts
        ]

    def refuse_slices(self) -> None:
        """Refuse slices: the folder of an export is renamed once, by the process that has made it.

        Raises:
            RecipeError: always.
        """
        raise RecipeError(
            "an export is published by renaming one folder, so slices cannot share it",
            hint="export on one machine, or with --on ray",
        )

    def node_workers(self) -> int | None:
        """Number of workers on each node of a cluster, if given."""
        return self._processes

    def workers(self, units: int) -> int:
        """Number of processes; small exports, and those of open rows, are written in this one."""
        count = usable_cores() if self._processes is None else self._processes
        small = self._processes is None and self._plan.bytes < SMALL
        return 0 if not self._settings.source or small or units < 2 else min(count, units)

    def opening(self) -> PartSettings:
        """Settings of the parts."""
        return self._settings

    def open_here(self) -> ExportRunner:
        """Runner with the view that is open already."""
        return ExportRunner(self._settings, self._view)

    def take(self, name: str, result: PartReceipt) -> None:
        """Record a receipt."""
        self._receipts[name] = result
        self.tell(UnitDone(name))

    def finish(self, session: Session) -> Exported:
        """Write what summarises the parts, and publish all at once."""
        parts = self._plan.parts
        record = self._sum_up([self._receipts[part.unit] for part in parts])
        self.folder.publish(record)
        lines = self._format.trainer_lines(str(self.folder.out), record, self._options)
        return _exported(str(self.folder.out), record, lines, len(parts), self._kept, self._began)

    def _how_shared(self) -> str:
        """Share something small to find out which way works."""
        target = Target(self.folder.folder, link=self._settings.link)
        target.share(self._view.store.place / MANIFEST, "probe")
        (self.folder.folder / "probe").unlink()
        return next(iter(target.shared))

    def announce(self, todo: Sequence[PartUnit], workers: int) -> None:
        """Report the plan."""
        view, plan = self._view, self._plan
        of_rows = isinstance(view, RowSplits)
        self._sharing = self._how_shared() if plan.shared_bytes else ""
        self.tell(
            ExportPlanned(
                format=self._format.name,
                out=str(self.folder.out),
                units=len(plan.parts),
                units_done=self._kept,
                workers=workers,
                bytes=plan.bytes,
                shared_bytes=plan.shared_bytes,
                sharing=self._sharing,
                documents=None if of_rows else view.documents,
                rows=view.rows if isinstance(view, RowSplits) else None,
                tokens=view.rows * view.seq_len if isinstance(view, RowSplits) else view.tokens,
                lost=self._lost,
                warnings=self._warnings,
            )
        )

    def check(self) -> None:
        """Refuse to begin an export that cannot finish.

        Raises:
            OutOfSpace: more bytes are to be written than are free.
        """
        needed = self._plan.bytes + (self._plan.shared_bytes if self._sharing == "copied" else 0)
        for receipt in self._receipts.values():  # files written, not linked, by an earlier run exist
            needed -= receipt.own_bytes
        require_disk(self.folder.out.parent, needed, self._format.name)

    def _sum_up(self, receipts: list[PartReceipt]) -> ExportRecord:
        target = Target(self.folder.files, link=self._settings.link)
        written = [WrittenPart(receipt.part, receipt.facts) for receipt in receipts]
        if isinstance(self._view, RowSplits):
            self._view.finish(self._format, written, target, self._options)
        else:
            self._format.finish(self._view, written, target, self._options)
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
            **msgspec.structs.asdict(self._identity),
            tokenizer=msgspec.structs.replace(view.tokenizer, name=view.tokenizer_name),
            documents=view.documents,
            tokens=view.tokens,
            rows=view.rows if isinstance(view, RowSplits) else None,
            seq_len=view.seq_len if isinstance(view, RowSplits) else None,
            lost=self._lost,
            warnings=self._warnings,
            shared=shared,
            files=tuple(sorted(files, key=lambda entry: entry.name)),
        )

    def _write_tokenizer(self, target: Target) -> None:
        """Write the store's tokenizer next to the files, with its end of document for the trainer."""
        entry = self._view.tokenizer
        text = read_file(self._view.store.place, self._view.store.tokenizer_file)
        special = [token.content for token in read_added_tokens(text) if token.special]
        with disk_errors(target.folder):
            with target.create(TOKENIZER_FILE) as file:
                file.write(text)
            with target.create(CONFIG) as file:
                file.write(config_bytes(special, entry.eod, entry.bos))


def _without_folders(choice: ExportChoice) -> dict[str, Any]:
    """Settings of the record: lists and stores by name, as their checksums are in `source`."""
    settings: dict[str, Any] = msgspec.to_builtins(choice)
    for name in ("exclude", "unique"):
        if isinstance(paths := settings.get(name), tuple | list):
            settings[name] = [without_folders(path) for path in paths]
    return settings


def _source_of(source: str | Path | RowView, view: View) -> dict[str, str]:
    if not isinstance(view, RowSplits):
        return {"store": view.store.manifest.checksum, **view.contents}
    if isinstance(source, RowView) or is_run(source):
        return {"run": view.fingerprint}
    return {"store": view.store.manifest.checksum, "rows": view.fingerprint}


def _publish(remote: RemoteExport, exported: Exported) -> Exported:
    """Put a finished local export where it belongs."""
    remote.publish()
    lines = tuple(line.replace(str(remote.folder), remote.place) for line in exported.trainer_lines)
    return msgspec.structs.replace(exported, out=remote.place, trainer_lines=lines)


def _exported(
    out: str,
    record: ExportRecord,
    trainer_lines: tuple[str, ...],
    parts: int,
    kept: int,
    began: float,
    nothing_to_do: bool = False,
) -> Exported:
    return Exported(
        out=out,
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
        folders=tuple(record.folders.values()),
        nothing_to_do=nothing_to_do,
    )
