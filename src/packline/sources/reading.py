"""Reading of documents of any source, with and without templates and filters.

    from packline.sources.reading import find_files, read_span, read_slice

These extend the functions of `sources`, which do not support templates; all callers read documents through
this module. A source without template and filters has no extra cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import InputError, RecipeError
from packline.recipe import Recipe, Source
from packline.sources import files as plain_files
from packline.sources import reader
from packline.sources.batch import Batch
from packline.sources.fields import look_at, named_fields, refuse_strange
from packline.sources.files import InputFile
from packline.sources.filters import field_value, head_fields, make_filter
from packline.sources.reader import Span
from packline.sources.records import RecordProblem
from packline.sources.slices import Slice
from packline.storage.inputs import open_input

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.sources.template import Template


FIRST_ROWS = 64
"""Number of rows of a Parquet file on which a template is tried."""


class RecordText:
    """Transform that makes the text of a source's records: filters, then the template or the text field.

    Args:
        source: source with a template, or filters, or both.
        field: text field, if there is no template.
        max_bytes: maximum size of a text; a longer one is a bad record.

    Raises:
        RecipeError: the template is refused.

    >>> from packline.recipe import Where
    >>> where = (Where(field="n", op=">", value=1),)
    >>> made = RecordText(Source(inputs=("x",), template="{{ a }}!", where=where), "", 1000)
    >>> made.fields, made.text({"a": "hey", "n": 2}), made.text({"a": "hey", "n": 1})
    (('a', 'n'), 'hey!', None)
    """

    def __init__(self, source: Source, field: str, max_bytes: int) -> None:
        where = source.where or ()
        self._passes: Callable[[dict[str, Any]], bool] = make_filter(where)
        self._field, self._path, self._max_bytes = field, field.split("."), max_bytes
        self._template: Template | None = None
        wanted: list[str] | None = [self._path[0]]
        if source.template is not msgspec.UNSET:
            from packline.sources.template import Template

            self._template = Template(source.template, max_bytes)
            wanted = None if self._template.fields is None else list(self._template.fields)
        self.fields = None if wanted is None else tuple(dict.fromkeys([*wanted, *head_fields(where)]))

    def text(self, record: dict[str, Any]) -> str | None:
        """Make the text of a record; None if a filter removes it.

        Raises:
            RecordProblem: a filter or the template fails on it, or it has no text.
        """
        if not self._passes(record):
            return None
        text = self._text_field(record) if self._template is None else self._template.render(record)
        try:
            size = len(text) if text.isascii() else len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise RecordProblem("lone_surrogate", str(error)) from error
        if size > self._max_bytes:
            raise RecordProblem("too_large", f"its text has {size:,} bytes, more than {self._max_bytes:,}")
        return text

    def renders(self, record: dict[str, Any]) -> bool:
        """True if the template produces a text for a record."""
        try:
            return self._template is not None and bool(self._template.render(record))
        except RecordProblem:
            return False

    def _text_field(self, record: dict[str, Any]) -> str:
        value = field_value(record, self._path)
        if isinstance(value, str):
            return value
        holder = field_value(record, self._path[:-1])
        if value is None and not (isinstance(holder, dict) and self._path[-1] in holder):
            raise RecordProblem("missing_field", f"no field {self._field!r}")
        found = "null" if value is None else f"a {type(value).__name__}"
        raise RecordProblem("not_a_string", f"field {self._field!r}: expected a string, found {found}")


def needs_records(source: Source) -> bool:
    """True if the texts of a source are made from whole records."""
    return source.template is not msgspec.UNSET or bool(source.where)


@cache
def transform_of(source: Source, field: str, max_bytes: int) -> RecordText:
    """Transform of a source, cached per process since templates are compiled."""
    return RecordText(source, field, max_bytes)


def check_transforms(recipe: Recipe) -> None:
    """Refuse templates that cannot run, before any input is read.

    Raises:
        RecipeError: a template is invalid; the message names the source.
    """
    for number, source in enumerate(recipe.sources):
        try:
            if needs_records(source):
                transform_of(source, source.text or "", recipe.max_document_bytes)
        except RecipeError as error:
            where = source.name or f"sources[{number}]"
            raise RecipeError(f"{where}: {error.message}", hint=error.hint) from error


def find_files(recipe: Recipe) -> list[InputFile]:
    """Find all files of a recipe, in the order of their documents; see `packline.sources.files.find_files`.

    Raises:
        RecipeError: a template is refused.
        InputError: nothing found, unreadable files, or files without a required column.
    """
    check_transforms(recipe)
    files = plain_files.find_files(recipe)
    _check_fields(recipe, files)
    return [
        _with_columns(file, recipe) if needs_records(recipe.sources[file.source]) else file for file in files
    ]


def _check_fields(recipe: Recipe, files: list[InputFile]) -> None:
    """Refuse fields that no record has; for a template only if it then produces no text."""
    of_source: dict[int, list[InputFile]] = {}
    for file in files:
        of_source.setdefault(file.source, []).append(file)
    for number, source in enumerate(recipe.sources):
        named = named_fields(source)
        if not named and source.template is msgspec.UNSET:
            continue
        looked, rare = look_at(of_source[number]), source.rare_fields or ()
        where = source.name or f"sources[{number}]"
        refuse_strange(rare, where, looked, named)
        if source.template is not msgspec.UNSET:
            transform = transform_of(source, "", recipe.max_document_bytes)
            if strange := [name for name in transform.fields or () if not looked.has(name)]:
                rows = next((file for file in of_source[number] if file.format == "parquet"), None)
                records = looked.records if rows is None else _first_rows(rows)
                if not any(map(transform.renders, records)):
                    refuse_strange(rare, where, looked, [("the template", name) for name in strange])


def _first_rows(file: InputFile) -> list[dict[str, Any]]:
    from packline.sources.odd_values import row_values
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        for rows in open_parquet(raw, file.path).iter_batches(FIRST_ROWS, use_threads=False):
            return row_values(rows)[0]
    return []


def read_span(
    file: InputFile, source: Source, span: Span, max_document_bytes: int, hasher: Any
) -> Iterator[Batch]:
    """Read the documents that begin in a span, in order; see `packline.sources.reader.read_span`."""
    transform = transform_of(source, file.text, max_document_bytes) if needs_records(source) else None
    return reader.read_span(file, source, span, max_document_bytes, hasher, transform)


def read_slice(file: InputFile, source: Source, piece: Slice, max_document_bytes: int) -> Iterator[Batch]:
    """Read the documents of a slice, in order."""
    transform = transform_of(source, file.text, max_document_bytes) if needs_records(source) else None
    return reader.read_slice(file, source, piece, max_document_bytes, transform)


def _with_columns(file: InputFile, recipe: Recipe) -> InputFile:
    source = recipe.sources[file.source]
    if file.format == "text":
        raise InputError(
            f"{file.path} is plain text: expected records with fields, for a template or filters",
            hint="give JSON lines or Parquet, or take the template and the filters away",
        )
    if file.format != "parquet":
        return file
    from packline.sources.parquet import open_parquet

    with open_input(file.path) as raw:
        schema = open_parquet(raw, file.path).schema_arrow
    fields = transform_of(source, file.text, recipe.max_document_bytes).fields
    wanted = tuple(schema.names) if fields is None else (fields or tuple(schema.names[:1]))
    if file.id is not None:
        wanted = tuple(dict.fromkeys([*wanted, file.id.partition(".")[0]]))
    there = tuple(name for name in wanted if name in schema.names)
    if not there:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise InputError(f"{file.path} has no column {' or '.join(wanted)}: found {found}")
    plain_files.refuse_twice(file.path, schema, there)
    for name in there:
        _refuse_nanoseconds(file.path, name, schema.field(name).type)
    return msgspec.structs.replace(file, columns=there)


def _refuse_nanoseconds(path: str, name: str, kind: pa.DataType) -> None:
    """Refuse nanoseconds: Python's times have microseconds, and conversions depend on installed packages."""
    import pyarrow as pa

    parts = [kind.field(number).type for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    for part in parts:
        _refuse_nanoseconds(path, name, part)
    if getattr(kind, "unit", None) == "ns":
        raise InputError(
            f"{path}: column {name} has times in nanoseconds ({kind}), which a template cannot print",
            hint="leave the column out of template and filters, or write it as microseconds",
        )
