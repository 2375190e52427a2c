"""Fields that a recipe names: whether records have them, and the types of carried columns, before any work.

Some files of a source are sampled by their beginnings. A type must not depend on other sources, and files
added at the end must not change it; so files are looked at in order, and the first one with a value decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from packline.errors import InputError, RecipeError, did_you_mean
from packline.recipe import ColumnType, Recipe, Source, parse_columns
from packline.sources.carried import Column, converts, parquet_type
from packline.sources.compression import DecompressedStream
from packline.sources.files import HEAD_BYTES, InputFile, first_records, list_files, refuse_twice
from packline.sources.jsonl import ABSENT, refuse_nested, value_at
from packline.sources.listing import map_files, pin_inputs
from packline.sources.record_text import transform_of
from packline.storage.inputs import read_fully
from packline.where.conditions import expected_fields, parse_where

if TYPE_CHECKING:
    import pyarrow as pa


MOST_FILES = 16
"""Number of files, from the first, in which a type is looked for."""

FirstRecords = Callable[[InputFile], Iterable[dict[str, Any]]]


def resolve_columns(
    columns: Sequence[str], where: str, files: Sequence[InputFile], first_records: FirstRecords
) -> tuple[Column, ...]:
    wanted = parse_columns(columns, where)
    found: dict[str, ColumnType | None] = dict(wanted)
    for file in files[:MOST_FILES]:
        if file.format == "parquet":
            _look_at_schema(file, found)
        elif None in found.values():
            _look_at_records(first_records(file), found, where, file.path)
    if unknown := [name for name, kind in found.items() if kind is None]:
        raise RecipeError(
            f"{where}: columns: {unknown[0]!r} has no value at the beginning of its first "
            f"{len(files[:MOST_FILES])} files, so its type is unknown",
            hint=f'declare it: columns = ["{unknown[0]}: string"], or integer, float, boolean, timestamp',
        )
    return tuple(Column(name, kind) for name, kind in found.items() if kind is not None)


def _look_at_schema(file: InputFile, found: dict[str, ColumnType | None]) -> None:
    import pyarrow as pa

    from packline.sources.parquet import column_type, read_schema

    schema = read_schema(file)
    for name, type in found.items():
        kind = column_type(schema, name)
        if kind is None or pa.types.is_null(kind):
            continue
        refuse_twice(file.path, schema, [name])
        if type is None:
            found[name] = type = parquet_type(kind)
        if type is None or not converts(kind, type):
            expected = "strings, numbers, booleans or times" if type is None else f"a column that fits {type}"
            raise InputError(
                f"{file.path}: column {name!r} is {kind}: expected {expected}",
                hint=f"name a field in it ({name}.field), declare a number ({name}: float), or leave it out",
            )


def _look_at_records(
    records: Iterable[dict[str, Any]], found: dict[str, ColumnType | None], where: str, path: str
) -> None:
    values: dict[str, list[Any]] = {name: [] for name, kind in found.items() if kind is None}
    for record in records:
        for name, held in values.items():
            value = value_at(record, name.split("."))
            if value is not ABSENT and value is not None:
                held.append(value)
    for name, held in values.items():
        if held:
            found[name] = _type_of(held, f"{where}: columns: {name!r} in {path}", name)


def _type_of(values: list[Any], what: str, name: str) -> ColumnType:
    """Type of the values of a field in one sample: that of the first; of numbers one that holds all."""
    first = values[0]
    if isinstance(first, dict | list):
        raise RecipeError(
            f"{what} is {'a list' if isinstance(first, list) else 'an object'}: "
            "expected strings, numbers or booleans",
            hint=f"name a field in an object ({name}.field), or leave it out of the columns",
        )
    if isinstance(first, str):
        return "string"
    if isinstance(first, bool):
        return "boolean"
    whole = all(not isinstance(value, float | msgspec.Raw) for value in values)
    return "integer" if whole else "float"


FIRST_ROWS = 64
"""Number of rows of a Parquet file on which a template is tried."""
LOOKED_FILES = 16
MOST_RECORDS = 4096
"""Maximum number of records per file."""
SHOWN_FIELDS = 20
DEEPEST = 3
"""Levels of objects whose fields are listed."""


RARE = 'a field that is only rare is named in the recipe, under its [[sources]]: rare_fields = ["{}"]'


class Looked(NamedTuple):
    files: int
    records: list[dict[str, Any]]
    """Sampled records; for a Parquet file one record with every column, with nulls."""

    def has(self, path: str) -> bool:
        """True if any record has a field, even with null; `a.b` for a nested one."""
        names = path.split(".")
        return any(value_at(record, names) is not ABSENT for record in self.records)

    def fields(self) -> list[str]:
        return list(dict.fromkeys(name for record in self.records for name in _names(record)))


def look_at(files: Sequence[InputFile], first_records: FirstRecords | None = None) -> Looked:
    step = max(len(files) // LOOKED_FILES, 1)
    chosen = files[::step][:LOOKED_FILES]
    return Looked(len(chosen), [record for file in chosen for record in (first_records or first_of)(file)])


def named_fields(source: Source) -> list[tuple[str, str]]:
    """Fields that a source names and its records should have, each with its purpose."""
    named = [("the text", source.text), ("the id", source.id)]
    if source.where is not msgspec.UNSET:
        named += [("where", name) for name in expected_fields(parse_where(source.where))]
    named += [("columns", name) for name, _ in parse_columns(source.columns or (), "columns")]
    return [(purpose, field) for purpose, field in named if field]


def refuse_strange(rare: Sequence[str], where: str, looked: Looked, named: Iterable[tuple[str, str]]) -> None:
    if not looked.records:
        return
    for purpose, field in named:
        if field in rare or looked.has(field):
            continue
        known = looked.fields()
        shown = ", ".join(known[:SHOWN_FIELDS]) + (", ..." if len(known) > SHOWN_FIELDS else "")
        raise RecipeError(
            f"{where}: no record has the field {field!r} of {purpose}: looked at the beginning of "
            f"{looked.files} of its files, found {shown or 'no fields'}",
            hint=did_you_mean(field, known) + RARE.format(field),
        )


def first_of(file: InputFile) -> Iterator[dict[str, Any]]:
    """The first records of a file; of a Parquet file one with nulls; of plain text none."""
    if file.format == "parquet":
        from packline.sources.parquet import read_schema

        yield _row_of_nulls(read_schema(file))
    elif file.format != "text":
        with file.open() as raw:
            if file.compression:
                head = DecompressedStream(raw, file.compression).read(HEAD_BYTES)
            else:
                head = read_fully(raw, HEAD_BYTES)
        yield from first_records(file, head, MOST_RECORDS)


def _row_of_nulls(schema: pa.Schema) -> dict[str, Any]:
    """A row with every column; one whose name has dots is found as a nested field is."""
    row: dict[str, Any] = {}
    for column in schema:
        value = _nulls(column.type)
        for name in reversed(column.name.split(".")[1:]):
            value = {name: value}
        head = column.name.partition(".")[0]
        there = row.get(head)
        row[head] = there | value if isinstance(there, dict) and isinstance(value, dict) else value
    return row


def _nulls(kind: pa.DataType) -> Any:
    """Placeholder for a column: an object with all its fields, or null."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return None
    return {kind.field(place).name: _nulls(kind.field(place).type) for place in range(kind.num_fields)}


def _names(record: dict[str, Any], before: str = "", depth: int = 1) -> Iterator[str]:
    for name, value in record.items():
        yield f"{before}{name}"
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _names(value, f"{before}{name}.", depth + 1)


def check_transforms(recipe: Recipe) -> None:
    for number, source in enumerate(recipe.sources):
        try:
            if source.uses_records:
                transform_of(source, source.text or "", recipe.max_document_bytes)
        except RecipeError as error:
            where = source.name or f"sources[{number}]"
            raise RecipeError(f"{where}: {error.message}", hint=error.hint) from error


def pin_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the commit of each dataset of the hub."""
    sources = tuple(
        msgspec.structs.replace(source, inputs=pin_inputs(source.inputs)) for source in recipe.sources
    )
    return recipe if sources == recipe.sources else msgspec.structs.replace(recipe, sources=sources)


def find_files(recipe: Recipe) -> list[InputFile]:
    check_transforms(recipe)
    files = list_files(recipe)
    _check_settings(recipe, files)
    found: list[InputFile] = []
    for number, group in groupby(files, lambda file: file.source):
        source, own = recipe.sources[number], list(group)
        where, limit = source.name or f"sources[{number}]", recipe.max_document_bytes
        _check_fields(source, where, own, limit)
        if source.uses_records:
            own = list(map_files(partial(_with_columns, source=source, limit=limit), own))
        found += _with_carried(source, where, own) if source.columns else own
    return found


def _with_carried(source: Source, where: str, files: list[InputFile]) -> Iterator[InputFile]:
    if plain := next((file for file in files if file.format == "text"), None):
        raise InputError(
            f"{plain.path} is plain text: it has no fields to carry along",
            hint="give JSON lines or Parquet, or leave the columns out",
        )
    columns = resolve_columns(source.columns or (), where, files, first_of)
    for text, id in {(file.text, file.id) for file in files if file.format != "parquet" and file.text}:
        refuse_nested([text, *([] if id is None else [id]), *(column.name for column in columns)])
    return (msgspec.structs.replace(file, carried=columns) for file in files)


def _check_settings(recipe: Recipe, files: list[InputFile]) -> None:
    plain = {file.source for file in files if file.format == "text"}
    for name in ("documents", "charset", "newlines"):
        given = [getattr(source, name) for source in recipe.sources]
        having = [number for number, value in enumerate(given) if value and value != "file"]
        if having and plain.isdisjoint(having):
            where = recipe.sources[having[0]].name or f"sources[{having[0]}]"
            raise RecipeError(
                f"{where}: {name} = {given[having[0]]!r} is for plain text: found no file of that kind",
                hint="take it away: each record of JSON lines, JSON arrays and Parquet is a document",
            )


def _check_fields(source: Source, where: str, files: list[InputFile], limit: int) -> None:
    """Refuse fields that no record has; for a template only if it then produces no text."""
    named = named_fields(source)
    if not named and source.template is msgspec.UNSET:
        return
    looked, rare = look_at(files), source.rare_fields or ()
    refuse_strange(rare, where, looked, named)
    if source.template is not msgspec.UNSET:
        transform = transform_of(source, "", limit)
        if strange := [name for name in transform.fields or () if not looked.has(name)]:
            rows = next((file for file in files if file.format == "parquet"), None)
            records = looked.records if rows is None else _first_rows(rows)
            if not any(map(transform.renders, records)):
                refuse_strange(rare, where, looked, [("the template", name) for name in strange])


def _first_rows(file: InputFile) -> list[dict[str, Any]]:
    from packline.sources.parquet import open_parquet, row_values

    with file.open() as raw:
        for rows in open_parquet(raw, file.path).iter_batches(FIRST_ROWS, use_threads=False):
            return row_values(rows)[0]
    return []


def _with_columns(file: InputFile, source: Source, limit: int) -> InputFile:
    if file.format == "text":
        raise InputError(
            f"{file.path} is plain text: expected records with fields, for a template or filters",
            hint="give JSON lines or Parquet, or take the template and the filters away",
        )
    if file.format != "parquet":
        return file
    from packline.sources.parquet import read_schema

    schema = read_schema(file)
    fields = transform_of(source, file.text, limit).fields
    wanted = tuple(schema.names) if fields is None else (fields or tuple(schema.names[:1]))
    if file.id is not None:
        wanted = tuple(dict.fromkeys([*wanted, file.id.partition(".")[0]]))
    there = tuple(name for name in wanted if name in schema.names)
    if not there:
        found = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise InputError(f"{file.path} has no column {' or '.join(wanted)}: found {found}")
    refuse_twice(file.path, schema, there)
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
