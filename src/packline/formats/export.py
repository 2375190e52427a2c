"""Export: a store, or the rows of a run, in the layout of another project.

view ── plan ──> what is lost, and whether the disk has room, before anything is written
  parts ──> written by threads or processes, each with a receipt
  finish ──> files that summarise the parts, tokenizer.json, tokenizer_config.json
  packline.json ──> the export is complete
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from packline.conversion import is_toml
from packline.encoders.tokenizer import CONFIG, config_bytes, read_added_tokens
from packline.errors import RecipeError, StoreError
from packline.fingerprint import seal
from packline.formats.choice import document_view, order_in_words, row_view, with_order
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import (
    RECORD,
    TOKENIZER_FILE,
    ExportIdentity,
    ExportRecord,
    PartReceipt,
    Staging,
    Target,
)
from packline.formats.format import (
    DocumentFormat,
    Format,
    Options,
    RowFormat,
    convert_options,
    get_format,
)
from packline.formats.row_view import RowSplits, RowView
from packline.formats.types import ExportPart, NotPreserved, without_folders
from packline.jobs.engine import run_job
from packline.jobs.events import Note, OnEvent, Planned, UnitDone
from packline.jobs.job import Job, Opening, ReportProgress, Runner
from packline.jobs.machines import On
from packline.jobs.plan import Unit
from packline.jobs.resources import require_disk, usable_cores
from packline.packing.options import ExportChoice
from packline.storage.local import Link, disk_errors, share_file
from packline.storage.places import is_remote
from packline.store.manifest import MANIFEST

View = DocumentView | RowSplits


class PartUnit(Unit, frozen=True, kw_only=True):
    part: ExportPart


class PartSettings(Opening, msgspec.Struct, kw_only=True, dict=True):
    format: str
    options: dict[str, Any]
    source: str
    """Path of the store or run file; empty if a view is open already."""
    choice: ExportChoice
    out: str
    link: Link
    shared: bool = False

    def open(self) -> ExportRunner:
        """Open a view of the source; the first runner in the driver has the one that is open."""
        return ExportRunner(self, self.__dict__.pop("view", None))

    def left(self, units: Sequence[Unit]) -> Sequence[Unit]:
        there = Staging(self.out).receipt_names()
        return [unit for unit in units if f"{unit.number:06d}" not in there]


class ExportRunner(Runner[PartUnit, PartReceipt]):
    """Writes parts of an export."""

    def __init__(self, settings: PartSettings, view: View | None = None) -> None:
        self._format = get_format(settings.format)
        self._options = convert_options(self._format, settings.options)
        self._view = view or _open_view(self._format, settings.source, settings.choice, self._options)
        self._staging, self._settings = Staging(settings.out), settings

    def run(self, unit: PartUnit, report: ReportProgress) -> Iterator[PartReceipt]:
        target = Target(self._staging.tmp, link=self._settings.link, on_progress=report)
        format, view = self._format, self._view
        if isinstance(view, RowSplits):
            facts = view.write(format, unit.part, target, self._options)
        else:
            facts = format.write(view, unit.part, target, self._options)
        yield PartReceipt(unit.part, facts or {}, tuple(target.files), dict(target.shared))

    def commit(self, unit: PartUnit, result: PartReceipt) -> None:
        self._staging.commit(unit.number, result, shared=self._settings.shared)


SMALL = 64 << 20
"""Bytes of output below which no process is started."""


class ExportPlanned(Planned, frozen=True, kw_only=True):
    """Plan of an export; its units are the parts. For rows, `tokens` include padding."""

    format: str
    out: str
    order: str
    """Order of the rows or documents, in words."""
    bytes: int
    shared_bytes: int
    sharing: str
    """Way of sharing: `linked`, `reflinked` or `copied`; empty if there are none."""
    documents: int | None
    rows: int | None
    lost: tuple[NotPreserved, ...]
    warnings: tuple[str, ...] = ()


class Exported(msgspec.Struct, frozen=True, kw_only=True):
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
    trainer_lines: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Folders of splits in the export; empty if splits have none."""
    nothing_to_do: bool = False

    @classmethod
    def of(
        cls, record: ExportRecord, format: Format, options: Any, out: str, began: float, **more: Any
    ) -> Self:
        """Result of the export that has this record."""
        same = ("format", "documents", "tokens", "rows", "shared", "lost", "warnings")
        return cls(
            out=out,
            **{name: getattr(record, name) for name in same},
            files=len(record.files),
            bytes=sum(entry.bytes for entry in record.files),
            seconds=time.monotonic() - began,
            trainer_lines=format.trainer_lines(out, record, options),
            folders=tuple(record.folders.values()),
            **more,
        )


def run_export(source: str | Path | RowView, *, on_event: OnEvent | None = None, **given: Any) -> Exported:
    """Write a store, or rows of a store or run, in another layout."""
    job = make_export(source, **given)
    return job if isinstance(job, Exported) else run_job(job, on_event, on=given.get("on", "local"))


def make_export(
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
) -> ExportJob | Exported:
    """Job that writes a store, or rows of a store or run, in another layout; or the export, if it is there.

    Args:
        source: the folder of a store, a run file (.toml), or rows that are already open.
        out: a new or empty folder, or one that holds the same export, in which case there is nothing to do.
        workers: number of threads (processes of a cluster); None: one per core, 0: this thread only.
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
    if isinstance(format, RowFormat) and not isinstance(source, RowView) and not is_toml(source):
        choice = with_order(choice, shuffled=format.shuffled)
    view = _open_view(format, source, choice, chosen)
    place = str(out).rstrip("/") if is_remote(out) else os.path.abspath(out)
    identity = ExportIdentity(
        format=format.name,
        options=msgspec.to_builtins(chosen),
        source=_source_of(source, view),
        settings=_without_folders(choice),
        link=link,
    )
    folder = Staging(place)
    if (record := folder.finished(identity)) is not None:
        if folder.work.is_dir() or folder.local is None:  # of a killed process
            with suppress(StoreError), folder:
                folder.clean()
        done: dict[str, Any] = {"parts": 0, "parts_kept": 0, "nothing_to_do": True}
        return Exported.of(record, format, chosen, place, began, **done)
    settings = PartSettings(
        format=format.name,
        options=identity.options,
        source="" if isinstance(source, RowView) else str(source),
        choice=choice,
        out=place,
        link=link,
    )
    return ExportJob(folder, settings, identity, format, chosen, view, workers, with_tokenizer, began)


class ExportJob(Job[PartUnit, PartReceipt, Exported]):
    in_threads = True
    folder: Staging

    def __init__(
        self,
        folder: Staging,
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
        settings.__dict__["view"] = view  # for this process; others open their own
        self._format, self._options, self._view = format, options, view
        self.given_workers, self._with_tokenizer, self._began = processes, with_tokenizer, began
        if isinstance(view, RowSplits):
            self._plan = view.plan(format, options)
            self._warnings = self._plan.warnings
        else:
            self._plan = format.plan(view, options)
            self._warnings = format.missing(view.splits) + self._plan.warnings
        self.folder, self.planned = folder, len(self._plan.parts)
        self._receipts: dict[str, PartReceipt] = {}
        self._published: ExportRecord | None = None
        """Record of the export, if another process has published it."""
        self._kept = self._workers = 0
        self._sharing = ""

    def begin(self) -> None:
        self._receipts = self.folder.begin(self._identity, self._plan.parts)
        self._kept = len(self._receipts)

    def todo(self) -> list[PartUnit]:
        """Parts that no process has finished by now; none if the export is published."""
        if self.is_shared:
            self._published = self.folder.finished(self._identity)
            if self._published is None:
                self._receipts = self.folder.kept(self._plan.parts)
        parts = () if self._published is not None else self._plan.parts
        return [
            PartUnit(name=part.unit, number=number, part=part)
            for number, part in enumerate(parts)
            if part.unit not in self._receipts
        ]

    def workers(self, units: int) -> int:
        """Number of workers; small exports, and those of open rows, are written in this thread."""
        count = usable_cores() if self.given_workers is None else self.given_workers
        small = self.given_workers is None and self._plan.bytes < SMALL
        return 0 if not self._settings.source or small or units < 2 else min(count, units)

    def opening(self) -> PartSettings:
        self._settings.shared = self.is_shared
        return self._settings

    def take(self, name: str, result: PartReceipt) -> None:
        self._receipts[name] = result
        self.tell(UnitDone(name))

    def finish(self) -> Exported:
        parts, out = self._plan.parts, self.folder.out
        if (record := self._published) is None:
            record = self._publish([self._receipts[part.unit] for part in parts])
        if left := self.folder.clean():
            self.tell(Note(left))
        counts: dict[str, Any] = {"parts": len(parts), "parts_kept": self._kept}
        return Exported.of(record, self._format, self._options, out, self._began, **counts)

    def _how_shared(self) -> str:
        """Share something small to find out which way works; nothing is shared with an object store."""
        files = self._view.store.files
        if self.folder.local is None or not files.is_local:
            return "copied"
        if self.folder.descriptor < 0:  # a dry run, which writes nothing
            return "copied" if self._settings.link == "copy" else "linked"
        probe = self.folder.tmp / "probe"
        with disk_errors(self.folder.tmp):
            how = share_file(files.folder / MANIFEST, probe, self._settings.link)
        probe.unlink()
        return how

    def announce(self, todo: Sequence[PartUnit], workers: int) -> None:
        view, plan, self._workers = self._view, self._plan, max(workers, 1)
        rows = view if isinstance(view, RowSplits) else None
        if plan.shared_bytes and not self._sharing:
            self._sharing = self._how_shared()
        self.tell(
            ExportPlanned(
                format=self._format.name,
                out=self.folder.out,
                order=order_in_words(self._settings.source, self._settings.choice, rows=rows is not None),
                units=len(plan.parts),
                units_done=self._kept,
                workers=workers,
                bytes=plan.bytes,
                shared_bytes=plan.shared_bytes,
                sharing=self._sharing,
                documents=view.documents if rows is None else None,
                rows=rows.rows if rows is not None else None,
                tokens=rows.rows * rows.seq_len if rows is not None else view.tokens,
                lost=plan.lost,
                warnings=self._warnings,
            )
        )
        needed = self._plan.bytes + (self._plan.shared_bytes if self._sharing == "copied" else 0)
        for receipt in self._receipts.values():  # files written, not linked, by an earlier run exist
            needed -= receipt.own_bytes
        if self.folder.local is None:  # parts in progress, and those that are being put
            needed = min(needed, 2 * self._workers * needed // max(len(self._plan.parts), 1))
        require_disk(self.folder.parent, needed, self._format.name)

    def _publish(self, receipts: list[PartReceipt]) -> ExportRecord:
        target = Target(self.folder.tmp, link=self._settings.link)
        if isinstance(self._view, RowSplits):
            self._view.finish(self._format, receipts, target, self._options)
        else:
            self._format.finish(self._view, [*receipts], target, self._options)
        if self._with_tokenizer:
            self._write_tokenizer(target)
        shared = target.shared
        for receipt in receipts:
            shared.update(receipt.shared)
        if self.folder.local is None and shared:
            shared = Counter(copied=shared.total())
        files = [entry for receipt in receipts for entry in receipt.files] + target.files
        view = self._view
        record = ExportRecord(
            **msgspec.structs.asdict(self._identity),
            tokenizer=msgspec.structs.replace(view.tokenizer, name=view.tokenizer_name),
            documents=view.documents,
            tokens=view.tokens,
            rows=view.rows if isinstance(view, RowSplits) else None,
            seq_len=view.seq_len if isinstance(view, RowSplits) else None,
            lost=self._plan.lost,
            warnings=self._warnings,
            shared=dict(shared),
            files=tuple(sorted(files, key=lambda entry: entry.name)),
        )
        names = [entry.name for entry in files]
        self.folder.put(names)
        self.folder.publish({RECORD: seal(record)}, [*names, RECORD])
        return record

    def _write_tokenizer(self, target: Target) -> None:
        """Write the store's tokenizer next to the files, with its end of document for the trainer."""
        entry = self._view.tokenizer
        text = self._view.store.files.read(self._view.store.tokenizer_file)
        special = [token.content for token in read_added_tokens(text) if token.special]
        with disk_errors(target.folder):
            with target.create(TOKENIZER_FILE) as file:
                file.write(text)
            with target.create(CONFIG) as file:
                file.write(config_bytes(special, entry.eod, entry.bos))


def _open_view(format: Format, source: str | Path | RowView, choice: ExportChoice, options: Any) -> View:
    """Documents or rows to write: without untrained rows, unless they are wanted."""
    if isinstance(source, RowView):
        if not isinstance(format, RowFormat):
            raise RecipeError(f"{format.name} holds {format.kind}, and was given rows")
        view: View = RowSplits({"train": source})
    elif isinstance(format, DocumentFormat):
        view = document_view(str(source), format.edges_of(options), choice)
    else:
        view = row_view(str(source), choice)
    if isinstance(view, RowSplits) and isinstance(format, RowFormat) and format.has_mask(options):
        view.find_untrained(last_targets=format.last_targets, leave_out=not choice.keep_untrained)
    return view


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
    if isinstance(source, RowView) or is_toml(source):
        return {"run": view.fingerprint}
    return {"store": view.store.manifest.checksum, "rows": view.fingerprint}
