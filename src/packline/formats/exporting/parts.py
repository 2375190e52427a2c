"""Writing of one part of an export, in a worker process or, for small exports, in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from packline.formats.choice import ExportChoice, document_view, row_view
from packline.formats.document_view import DocumentView
from packline.formats.exporting.staging import PartReceipt, Staging
from packline.formats.format import DocumentFormat, Format, RowFormat, get_format
from packline.formats.options import Options, convert_options
from packline.formats.row_view import RowView
from packline.formats.target import Link, Target, sync_files
from packline.formats.types import ExportPart
from packline.jobs.job import Report, Runner, WorkUnit

View = DocumentView | RowView


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
        self._view = view or open_view(format, options, settings.source, settings.choice)
        self._staging, self._link = Staging(Path(settings.out)), settings.link

    def run(self, unit: PartUnit, report: Report) -> PartReceipt:
        """Write the files of a part."""
        target = Target(self._staging.files, link=self._link, on_progress=report)
        facts = writing(self._format).write(self._view, unit.part, target, self._options)
        return PartReceipt(unit.part, facts or {}, tuple(target.files), dict(target.shared))

    def commit(self, unit: PartUnit, result: PartReceipt) -> None:
        """Wait until the files are on the disk, and record that they are; not for quick parts."""
        if not result.is_quick:
            sync_files(self._staging.files, [entry.name for entry in result.files])
            self._staging.commit(unit.number, result)


def open_view(format: Format, options: Options, source: str, choice: ExportChoice) -> View:
    """View of a source that a format needs."""
    if format.kind == "documents":
        return document_view(source, cast("DocumentFormat", format).edges_of(options), choice)
    return row_view(source, choice)


def writing(format: Format) -> Any:
    """A format as an object that can write; both kinds can, each with its own view."""
    assert isinstance(format, DocumentFormat | RowFormat)
    return format
