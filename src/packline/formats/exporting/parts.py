"""Write one part of an export: what a worker process does, or this one where the work is small."""

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
from packline.formats.format import DocumentFormat, Format, Options, Part, RowFormat
from packline.formats.registry import get_format
from packline.runtime.task_worker import Runner
from packline.store.manifest import FileEntry

View = DocumentView | RowView

QUICK = 1 << 20
"""Bytes beside links that are not worth waiting for the disk."""


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """An export, as a worker process is told of it."""

    format: str
    options: dict[str, Any]
    source: str
    choice: Choice
    folder: str
    """Where files go."""
    link: Link


class PartReceipt(msgspec.Struct, frozen=True):
    """The commit record of a part: its files are on the disk."""

    part: Part
    facts: dict[str, Any]
    files: tuple[FileEntry, ...]
    shared: dict[str, int]

    @property
    def linked_bytes(self) -> int:
        """Of files that take no room of their own."""
        return self.shared.get("linked", 0) + self.shared.get("reflinked", 0)

    @property
    def own_bytes(self) -> int:
        """Of the others."""
        return sum(entry.bytes for entry in self.files) - self.linked_bytes

    @property
    def is_quick(self) -> bool:
        """Whether it is links and little beside them: made again sooner than the disk has a receipt of it."""
        return self.linked_bytes > 0 and self.own_bytes <= QUICK


def open_job(job: msgspec.Raw) -> Runner:
    """What writes the parts of a job."""
    return make_runner(msgspec.json.decode(job, type=ExportJob))


def make_runner(job: ExportJob, view: View | None = None) -> Runner:
    """The same, with a view that is open already."""
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
    """What a format wants to see of a source."""
    if format.kind == "documents":
        return document_view(source, cast("DocumentFormat", format).edges_of(options), choice)
    return row_view(source, choice)


def writing(format: Format) -> Any:
    """A format as something that can write: both kinds do, each its own view."""
    assert isinstance(format, DocumentFormat | RowFormat)
    return format


def convert_options(format: Format, given: dict[str, Any]) -> Options:
    """Options of a format from names and values, which may be text.

    `none` leaves an option unset, unless it has a value of that name. A list is text with commas, or JSON.

    Raises:
        RecipeError: no such option, or not a value for it.

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
    """A value as it was given, but for text that stands for nothing or for a list.

    Raises:
        msgspec.DecodeError: text that begins as a list in JSON and is none.
    """
    if value == "none" and _only_absent(kind):
        return None
    if isinstance(value, str) and is_list(kind):
        if value.lstrip().startswith("["):
            return msgspec.json.decode(value)
        return [word for part in value.split(",") if (word := part.strip())]
    return value


def is_list(kind: Any) -> bool:
    """Whether an option of this type takes several values.

    >>> is_list(tuple[str, ...]), is_list(list[int] | None), is_list(str)
    (True, True, False)
    """
    return any(get_origin(one) in (list, tuple) for one in (kind, *get_args(kind)))


def _only_absent(kind: Any) -> bool:
    """Whether an option may be left unset, and has no value that is called none."""
    return type(None) in get_args(kind) and not {str, "none"} & set(get_args(kind))
