"""Writing of one part of an export, in a worker process or, for small exports, in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args, get_origin

import msgspec

from packline.errors import RecipeError
from packline.formats.exporting.documents import DocumentView
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.source import Choice, document_view, row_view
from packline.formats.exporting.staging import PartReceipt, Staging
from packline.formats.exporting.target import Link, Target, sync_files
from packline.formats.format import DocumentFormat, Format, RowFormat
from packline.formats.registry import get_format
from packline.formats.types import Options, Part
from packline.jobs.job import Report, Runner, WorkUnit

View = DocumentView | RowView


class PartUnit(WorkUnit, frozen=True, kw_only=True):
    """A part to be written; its name is that of the part."""

    number: int
    part: Part


class ExportSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings common to all parts of an export."""

    format: str
    options: dict[str, Any]
    source: str
    """Path of the store or run file; empty if a view is open already."""
    choice: Choice
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

    def __init__(self, settings: ExportSettings, view: View | None = None) -> None:
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
