"""Writing of one part of an export, in a worker process or, for small exports, in this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from packline.formats.choice import ExportChoice, document_view, row_view
from packline.formats.document_view import DocumentView
from packline.formats.format import DocumentFormat, Format, RowFormat, get_format
from packline.formats.options import Options, convert_options
from packline.formats.row_view import RowView
from packline.formats.target import Link, Target
from packline.formats.types import ExportPart
from packline.jobs.task_worker import Runner
from packline.store.files import FileEntry

View = DocumentView | RowView

QUICK = 1 << 20
"""Bytes, apart from links, below which a part is not synced to disk."""


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """Description of an export for a worker process."""

    format: str
    options: dict[str, Any]
    source: str
    choice: ExportChoice
    folder: str
    """Folder to write files to."""
    link: Link


class PartReceipt(msgspec.Struct, frozen=True):
    """Commit record of a part whose files are on the disk."""

    part: ExportPart
    facts: dict[str, Any]
    files: tuple[FileEntry, ...]
    shared: dict[str, int]

    @property
    def linked_bytes(self) -> int:
        """Bytes of files that take no extra disk space."""
        return self.shared.get("linked", 0) + self.shared.get("reflinked", 0)

    @property
    def own_bytes(self) -> int:
        """Bytes of the other files."""
        return sum(entry.bytes for entry in self.files) - self.linked_bytes

    @property
    def is_quick(self) -> bool:
        """True if the part is little more than links: writing it again is faster than syncing its receipt."""
        return self.linked_bytes > 0 and self.own_bytes <= QUICK


def open_job(job: msgspec.Raw) -> Runner:
    """Runner that writes the parts of a job."""
    return make_runner(msgspec.json.decode(job, type=ExportJob))


def make_runner(job: ExportJob, view: View | None = None) -> Runner:
    """Runner that writes the parts of a job, with an optional view that is already open."""
    format = get_format(job.format)
    options = convert_options(format, job.options)
    opened = view if view is not None else open_view(format, options, job.source, job.choice)

    def run(task: msgspec.Raw, report: Callable[[int], None]) -> PartReceipt:
        part = msgspec.json.decode(task, type=ExportPart)
        target = Target(Path(job.folder), link=job.link, on_progress=report)
        facts = writing(format).write(opened, part, target, options)
        receipt = PartReceipt(part, facts or {}, tuple(target.files), dict(target.shared))
        if not receipt.is_quick:
            target.sync()
        return receipt

    return run


def open_view(format: Format, options: Options, source: str, choice: ExportChoice) -> View:
    """View of a source that a format needs."""
    if format.kind == "documents":
        return document_view(source, cast("DocumentFormat", format).edges_of(options), choice)
    return row_view(source, choice)


def writing(format: Format) -> Any:
    """A format as an object that can write; both kinds can, each with its own view."""
    assert isinstance(format, DocumentFormat | RowFormat)
    return format
