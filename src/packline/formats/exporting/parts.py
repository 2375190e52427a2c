"""Writing of one part of an export, in a worker process or, for small exports, in this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import msgspec

from packline.errors import RecipeError
from packline.formats.exporting.documents import DocumentView
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.source import Choice, document_view, row_view
from packline.formats.exporting.target import Link, Target
from packline.formats.format import DocumentFormat, Format, RowFormat
from packline.formats.registry import get_format
from packline.formats.types import Options, Part
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
    choice: Choice
    folder: str
    """Folder to write files to."""
    link: Link


class PartReceipt(msgspec.Struct, frozen=True):
    """Commit record of a part whose files are on the disk."""

    part: Part
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
        part = msgspec.json.decode(task, type=Part)
        target = Target(Path(job.folder), link=job.link, on_progress=report)
        facts = writing(format).write(opened, part, target, options)
        receipt = PartReceipt(part, facts or {}, tuple(target.files), dict(target.shared))
        if not receipt.is_quick:
            target.sync()
        return receipt

    return run


def open_view(format: Format, options: Options, source: str, choice: Choice) -> View:
    """View of a source that a format needs."""
    if format.kind == "documents":
        return document_view(source, cast("DocumentFormat", format).edges_of(options), choice)
    return row_view(source, choice)


def writing(format: Format) -> Any:
    """A format as an object that can write; both kinds can, each with its own view."""
    assert isinstance(format, DocumentFormat | RowFormat)
    return format


def convert_options(format: Format, given: dict[str, Any]) -> Options:
    """Options of a format from names and values, which may be text.

    `none` leaves an option unset, unless the option has a value of that name. A list is comma-separated text
    or JSON.

    Raises:
        RecipeError: unknown option, or invalid value.

    >>> from packline.formats.registry import get_format
    >>> convert_options(get_format("mds"), {"fields": "tokens,targets,loss_mask"}).fields
    ('tokens', 'targets', 'loss_mask')
    """
    types = {field.name: field.type for field in msgspec.structs.fields(format.options)}
    try:
        values = {name: _value(types.get(name), value) for name, value in given.items()}
        return msgspec.convert(values, format.options, strict=False)
    except msgspec.MsgspecError as error:
        known = ", ".join(format.options.__struct_fields__) or "none"
        raise RecipeError(
            f"{format.name}: {str(error).replace('Object contains', 'there is').replace('$.', '')}",
            hint=f"its options: {known}; packline formats {format.name} explains them",
        ) from error


def _value(kind: Any, value: Any) -> Any:
    """The given value, with text that means None or a list converted.

    Raises:
        msgspec.DecodeError: text that begins like a JSON list but is not one.
    """
    if value == "none" and _only_absent(kind):
        return None
    if isinstance(value, str) and is_list(kind):
        if value.lstrip().startswith("["):
            return msgspec.json.decode(value)
        return [word for part in value.split(",") if (word := part.strip())]
    return value


def is_list(kind: Any) -> bool:
    """True if an option of this type takes several values.

    >>> is_list(tuple[str, ...]), is_list(list[int] | None), is_list(str)
    (True, True, False)
    """
    return any(get_origin(one) in (list, tuple) for one in (kind, *get_args(kind)))


def _only_absent(kind: Any) -> bool:
    """True if an option may be left unset and has no value called none."""
    return type(None) in get_args(kind) and not {str, "none"} & set(get_args(kind))
