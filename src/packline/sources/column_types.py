"""The types of the columns that a source carries, decided before any work.

    declared    columns = ["score: float"]
    Parquet     type of the column, in the first file that has it
    JSON        string, integer, number or boolean: of the first values in the first file that has any, among
                the records in its first 256 KiB

A type must not depend on other sources, on units or on workers, and adding files at the end of a source must
not change it; so files are looked at in order, and the first one with a value decides. In JSON the first
value that is not null decides, and integers are numbers (`float`) if any value of the same sample has a
fraction. A time in JSON is a string unless it is declared. If 16 files have no value, the type must be
declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from packline.errors import InputError, RecipeError
from packline.recipe import ColumnType, parse_columns
from packline.sources.carried import Column, converts, parquet_type
from packline.sources.files import InputFile, refuse_twice
from packline.sources.jsonl import ABSENT, value_at

if TYPE_CHECKING:
    import pyarrow as pa

MOST_FILES = 16
"""Number of files, from the first, in which a type is looked for."""

FirstRecords = Callable[[InputFile], Iterable[dict[str, Any]]]


def resolve_columns(
    columns: Sequence[str], where: str, files: Sequence[InputFile], first_records: FirstRecords
) -> tuple[Column, ...]:
    """Columns of a source with their types.

    Args:
        columns: as in the recipe.
        where: the source, for messages.
        files: its files, in order.
        first_records: returns the first records of a file that is not Parquet.

    Raises:
        InputError: a column of Parquet that cannot be carried.
        RecipeError: a field that is an object or a list, or without values to take a type from.
    """
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

    from packline.sources.parquet_schema import column_type, open_parquet

    with file.open() as raw:
        schema = open_parquet(raw, file.path).schema_arrow
    for name, type in found.items():
        kind = column_type(schema, name)
        if kind is None or pa.types.is_null(kind):
            continue
        refuse_twice(file.path, schema, [name])
        if type is None:
            found[name] = type = parquet_type(kind)
        if type is None or not converts(kind, type):
            raise _cannot_carry(file, name, kind, type)


def _cannot_carry(file: InputFile, name: str, kind: pa.DataType, type: ColumnType | None) -> InputError:
    import pyarrow as pa

    hint = "leave it out of the columns"
    if pa.types.is_struct(kind):
        hint = f"name a field in it: {name}.{kind.field(0).name}" if kind.num_fields else hint
    elif pa.types.is_decimal(kind):
        hint = f'declare it: columns = ["{name}: float"]'
    expected = "strings, numbers, booleans or times" if type is None else f"a column that fits {type}"
    return InputError(f"{file.path}: column {name!r} is {kind}: expected {expected}", hint=hint)


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
    if isinstance(first, dict):
        inner = next(iter(first), "field")
        raise RecipeError(f"{what} is an object", hint=f"name a field in it: {name}.{inner}")
    if isinstance(first, list):
        raise RecipeError(
            f"{what} is a list: expected strings, numbers or booleans", hint="leave it out of the columns"
        )
    if isinstance(first, str):
        return "string"
    if isinstance(first, bool):
        return "boolean"
    whole = all(not isinstance(value, float | msgspec.Raw) for value in values)
    return "integer" if whole else "float"
