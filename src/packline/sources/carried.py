"""Columns that a source carries along, from the fields of its records to Arrow.

A value that does not fit the one type of its column makes its record bad. What fits is decided for each value
alone, so the result is independent of batches; whole columns are converted at once, and value by value only
if that fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.recipe import ColumnType
from packline.sources.batch import Batch, Reason, RecordProblem
from packline.sources.lines import not_utf8
from packline.where.conditions import field_value

TYPES: dict[ColumnType, pa.DataType] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
EXPECTED: dict[ColumnType, str] = {
    "string": "a string",
    "integer": "an integer",
    "float": "a number",
    "boolean": "true or false",
    "timestamp": "an ISO 8601 time",
}
FITTING: dict[ColumnType, set[type]] = {
    "string": {str, NoneType},
    "integer": {int, NoneType},
    "float": {float, int, NoneType},
    "boolean": {bool, NoneType},
    "timestamp": {NoneType},
}
"""Types of Python whose values Arrow converts as they are, if it does."""
TIME = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|z|[+-]\d\d(:?[0-5]\d)?)?)?", re.ASCII)
PLAIN_TIME = r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
"""Times that Arrow parses with the same result as `TIME`."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_TIME = -62_135_596_800_000_000
"""Microseconds from 1970 to the first time that Python can represent, of the year 1."""
LAST_TIME = 253_402_300_799_999_999
LONGEST_SHOWN = 60
Values: TypeAlias = list[Any] | pa.Array
"""Values of a column: as in JSON, or a column of Parquet."""


class Column(msgspec.Struct, frozen=True):
    name: str
    """Name of the field, `a.b` for a nested one."""
    type: ColumnType

    @property
    def path(self) -> list[str]:
        return self.name.split(".")


class Misfit(Exception):
    """A value that does not fit the type of its column; the message describes it."""


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, TYPES[column.type]) for column in columns])


def pairs_of(columns: Sequence[Column]) -> tuple[tuple[str, ColumnType], ...]:
    return tuple((column.name, column.type) for column in columns)


def fit(value: Any, type: ColumnType) -> Any:
    """Convert a value of JSON to the type of its column; a timestamp to microseconds since 1970.

    >>> fit(3, "float"), fit(2.0, "integer"), fit("1970-01-01T01:00:00.5+01:00", "timestamp")
    (3.0, 2, 500000)
    """
    if value is None:
        return None
    if type == "string" and isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Misfit("a string that is not valid Unicode") from error
        return value
    if type == "boolean" and isinstance(value, bool):
        return value
    if type == "timestamp" and isinstance(value, str | date):  # records of Parquet have times of Python
        return _microseconds(value if isinstance(value, str) else value.isoformat())
    if type in ("integer", "float") and isinstance(value, int | float) and not isinstance(value, bool):
        if type == "float":
            try:
                return float(value)
            except OverflowError as error:
                raise Misfit("a number out of range") from error
        if isinstance(value, float) and not value.is_integer():
            raise Misfit(repr(value) if math.isfinite(value) else "no finite number")
        if not -(2**63) <= value < 2**63:
            raise Misfit("an integer beyond 64 bits")
        return int(value)
    raise Misfit(_shown(value))


def fit_field(record: Any, column: Column) -> Any:
    """Convert the value of a record's field, as `fit` does; None if it is missing."""
    return _fit(field_value(record, column.path), column)


def _fit(value: Any, column: Column) -> Any:
    try:
        return fit(value, column.type)
    except Misfit as misfit:
        detail = f"column {column.name!r}: expected {EXPECTED[column.type]}, found {misfit}"
        raise RecordProblem("column_type", detail) from misfit


def fitted_batch(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Columns of the values that `fit_field` returned, of each document a row."""
    arrays = [_fitted(column, [row[place] for row in rows]) for place, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _fitted(column: Column, values: list[Any]) -> pa.Array:
    if column.type == "timestamp":
        return pa.array(values, pa.int64()).cast(TYPES["timestamp"])
    return pa.array(values, TYPES[column.type])


def carry(
    batch: Batch, columns: Sequence[Column], values: Sequence[Values | None], raw: Callable[[int], bytes]
) -> Batch:
    """Add carried columns to a batch; documents with a value that does not fit become bad records.

    Args:
        batch: documents; its rejects and counts are kept.
        values: for each column its values, one per document: as in JSON, or a column of Parquet.
        raw: returns the bytes of the record of a document, for the bad ones.
    """
    if not columns:
        return batch
    batch.columns, problems = fit_all(columns, values, len(batch))
    if not problems:
        return batch
    good = batch.keep(np.setdiff1d(np.arange(len(batch)), list(problems)))
    good.rejects = batch.rejects + [
        problem.reject(batch.file, int(batch.positions[row]), raw(row))
        for row, problem in sorted(problems.items())
    ]
    good.consumed_bytes, good.filtered = batch.consumed_bytes, batch.filtered
    return good


def fit_all(
    columns: Sequence[Column], values: Sequence[Values | None], count: int
) -> tuple[pa.RecordBatch, dict[int, RecordProblem]]:
    """Convert the values of `count` records to the types of their columns; problems by row, null there.

    Args:
        values: for each column; None for one that a file of Parquet lacks.
    """
    problems: dict[int, RecordProblem] = {}
    arrays = []
    for column, found in zip(columns, values, strict=True):
        if found is None:
            whole = pa.nulls(count, TYPES[column.type])
        elif isinstance(found, list):
            whole = _of_json(found, column.type)
        else:
            found = _plain(found)
            whole = _of_parquet(found, column.type)
        arrays.append(_one_by_one(column, found, problems) if whole is None else whole)
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns)), problems


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.timestamp(array.type.unit)) if pa.types.is_timestamp(array.type) else array


def _of_json(values: list[Any], type: ColumnType) -> pa.Array | None:
    """Values of JSON as an array, converted at once; None if they have to be looked at one by one."""
    kinds = {one.__class__ for one in values}
    try:
        if kinds <= FITTING[type]:
            return pa.array(values, TYPES[type])
        if type == "timestamp" and kinds <= {str, NoneType}:
            return _plain_times(values)
    except (ValueError, OverflowError):  # lone surrogates, integers beyond 64 bits
        pass
    return None


def _of_parquet(array: pa.Array, type: ColumnType) -> pa.Array | None:
    """A column of Parquet in the type of a carried one, converted at once; None as in `_of_json`."""
    found = parquet_type(array.type)
    try:
        if type == found == "timestamp":
            return _times(array)
        if type == found or (type == "float" and converts(array.type, type)):
            array.validate(full=True)  # UTF-8
            return array.cast(TYPES[type], safe=type != "float")
    except pa.ArrowInvalid:  # bytes that are not UTF-8, integers beyond 64 bits
        pass
    return None


def _one_by_one(column: Column, values: Values, problems: dict[int, RecordProblem]) -> pa.Array:
    """Values as an array; problems are added by row, null there."""
    fitted: list[Any] = []
    for row, value in enumerate(values if isinstance(values, list) else column_values(values)):
        try:
            fitted.append(_fit(value, column))
        except RecordProblem as problem:
            problems.setdefault(row, problem)
            fitted.append(None)
    return _fitted(column, fitted)


def _plain_times(values: list[Any]) -> pa.Array | None:
    """Times of the usual form, converted at once; None if any is of another one."""
    texts = pa.array(values, pa.string())
    if not pc.all(pc.match_substring_regex(texts, PLAIN_TIME), min_count=0).as_py():
        return None
    times = pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("us"))
    return times.cast(pa.int64()).cast(TYPES["timestamp"])


def _times(array: pa.Array) -> pa.Array | None:
    """Times of Parquet in microseconds; None if any is outside of the years 1 to 9999."""
    kind = array.type
    if pa.types.is_date32(kind):
        array, factor = array.cast(pa.int32()), 86_400 * 10**6
    else:
        factor = {"s": 10**6, "ms": 10**3}.get("ms" if pa.types.is_date64(kind) else kind.unit, 1)
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy()
    if getattr(kind, "unit", None) == "ns":
        numbers = numbers // 1000
    if ((numbers < FIRST_TIME // factor) | (numbers > LAST_TIME // factor)).any():
        return None
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers * factor, pa.int64(), mask=nulls).cast(TYPES["timestamp"])


def _microseconds(text: str) -> int:
    try:
        if not TIME.fullmatch(text):
            raise ValueError
        time = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise Misfit(_shown(text)) from error
    micros = (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // timedelta(microseconds=1)
    if not FIRST_TIME <= micros <= LAST_TIME:
        raise Misfit(f"{_shown(text)}, outside of the years 1 to 9999")
    return micros


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, msgspec.Raw):
        return "a number out of range"
    if isinstance(value, Odd):
        return value.detail
    kind = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}.get(type(value))
    if kind is None:
        return f"a value of type {type(value).__name__}"
    text = msgspec.json.encode(value).decode() if not isinstance(value, str) else ascii(value)
    return f"{kind}: {text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + '...'}"


def parquet_type(kind: pa.DataType) -> ColumnType | None:
    """Type of a carried column for a column of Parquet; None if there is none."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_boolean(kind):
        return "boolean"
    return "timestamp" if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else None


def converts(kind: pa.DataType, type: ColumnType) -> bool:
    """True if values of a column of Parquet may fit a carried column of this type."""
    found = parquet_type(kind)
    if type == "float":
        return found in ("float", "integer") or pa.types.is_decimal(kind)
    if type == "integer":
        return found in ("float", "integer")
    return found == type or (type == "timestamp" and found == "string")


FAILURES = (ValueError, ArithmeticError, LookupError, pa.ArrowException)
"""Exceptions of a conversion, including `UnicodeDecodeError` and `OverflowError`."""


class Odd(NamedTuple):
    """Placeholder for a value that Python cannot represent."""

    reason: Reason
    detail: str
    text: str | None
    """The value as formatted by Arrow; None if that fails too."""


def column_values(column: pa.Array) -> list[Any]:
    """Convert a column to Python values, `Odd` for those that Python cannot represent."""
    try:
        return list(column.to_pylist())
    except FAILURES:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return Odd("invalid_utf8", not_utf8(error), None)
    except FAILURES as error:
        return Odd("template", str(error).splitlines()[0] if str(error) else repr(error), _text(scalar))


def _text(scalar: pa.Scalar) -> str | None:
    """A time with nanoseconds in the format of pandas, in UTC for an unknown time zone; else as in Arrow."""
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            whole, rest = divmod(scalar.value, 1000)
            try:
                moment = pa.scalar(whole, pa.timestamp("us", kind.tz)).as_py()
                text = moment.isoformat(" ", "microseconds")
                return f"{text[:26]}{rest:03d}{text[26:]}"
            except FAILURES:
                pass
        if kind.tz is not None:
            text = _cast(pa.scalar(scalar.value, pa.timestamp(kind.unit)))
            return None if text is None else f"{text}+00:00"
    return _cast(scalar)


def _cast(scalar: pa.Scalar) -> str | None:
    try:
        text = scalar.cast(pa.string()).as_py()
    except FAILURES:
        return None
    return str(scalar.value) if text.startswith("<value out of range") else str(text)
