"""Columns that a source carries along, from the fields of its records to Arrow.

    columns = ["url", "score: float", "metadata.language"]

    JSON values ─────> carry_values ──> Batch.columns, an Arrow record batch, and bad records
    Parquet columns ─> carry_arrays ─┘

A column has one type for the whole source. A value either fits it or makes its record bad (`column_type`):

    string       a string
    integer      a number without a fraction, within 64 bits
    float        a number; an integer becomes the nearest float
    boolean      true or false
    timestamp    ISO 8601, UTC unless it has an offset: "2026-11-22", "2026-11-22T08:30:00.5+01:00"; in
                 Parquet dates and timestamps. Kept in microseconds; what is finer is cut off.

A missing field and null are null. What fits is decided for each value alone, so the result is independent of
batches; whole columns are converted at once, and value by value only if that fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from types import NoneType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.recipe import ColumnType
from packline.sources.batch import Batch, RecordProblem, Reject

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
TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(?::(\d\d)(?:[.,](\d+))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
PLAIN_TIME = r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
"""Times that Arrow parses with the same result as `TIME`."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_TIME = -62_135_596_800_000_000
"""Microseconds from 1970 to the first time that Python can represent, of the year 1."""
LAST_TIME = 253_402_300_799_999_999
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LONGEST_SHOWN = 60


class Column(msgspec.Struct, frozen=True):
    """A column that a source carries along."""

    name: str
    """Name of the field, `a.b` for a nested one."""
    type: ColumnType

    @property
    def path(self) -> list[str]:
        """Names from the outermost object to the field."""
        return self.name.split(".")


class Misfit(Exception):
    """A value that does not fit the type of its column; the message describes it."""


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """Arrow schema of carried columns."""
    return pa.schema([(column.name, TYPES[column.type]) for column in columns])


def pairs_of(columns: Sequence[Column]) -> tuple[tuple[str, ColumnType], ...]:
    """Name and type of each column, as `store.provenance` takes them."""
    return tuple((column.name, column.type) for column in columns)


def fit(value: Any, type: ColumnType) -> Any:
    """Convert a value of JSON to the type of its column; a timestamp to microseconds since 1970.

    Raises:
        Misfit: it does not fit.

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
            raise Misfit(f"{value!r}")
        if not -(2**63) <= value < 2**63:
            raise Misfit("an integer beyond 64 bits")
        return int(value)
    raise Misfit(_shown(value))


def problem_of(column: Column, found: str) -> RecordProblem:
    """The problem of a record with a value that does not fit."""
    return RecordProblem(
        "column_type", f"column {column.name!r}: expected {EXPECTED[column.type]}, found {found}"
    )


def fit_field(record: Any, column: Column) -> Any:
    """Convert the value of a record's field, as `fit` does; None if it is missing.

    Raises:
        RecordProblem: it does not fit.
    """
    value = record
    for name in column.path:
        value = value.get(name) if isinstance(value, dict) else None
    try:
        return fit(value, column.type)
    except Misfit as misfit:
        raise problem_of(column, str(misfit)) from misfit


def fitted_batch(columns: Sequence[Column], values: Sequence[list[Any]]) -> pa.RecordBatch:
    """Columns of values that `fit` returned."""
    arrays = [_fitted(column, found) for column, found in zip(columns, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _fitted(column: Column, values: list[Any]) -> pa.Array:
    if column.type == "timestamp":
        return pa.array(values, pa.int64()).cast(TYPES["timestamp"])
    return pa.array(values, TYPES[column.type])


def carry_values(
    batch: Batch, columns: Sequence[Column], values: Sequence[list[Any]], raw: Callable[[int], bytes]
) -> Batch:
    """Add carried columns to a batch; documents with a value that does not fit become bad records.

    Args:
        batch: documents; its rejects and counts are kept.
        values: for each column its values as in JSON, one per document.
        raw: returns the bytes of the record of a document, for the bad ones.
    """
    if not columns:
        return batch
    problems: dict[int, RecordProblem] = {}
    arrays = [_array(column, found, problems) for column, found in zip(columns, values, strict=True)]
    return _joined(batch, columns, arrays, problems, raw)


def carry_arrays(
    batch: Batch, columns: Sequence[Column], arrays: Sequence[pa.Array | None], raw: Callable[[int], bytes]
) -> Batch:
    """Add carried columns to a batch, as `carry_values` does, from columns of Parquet.

    Args:
        arrays: for each column its values, one per document; None if the file lacks it.
    """
    if not columns:
        return batch
    converted, problems = convert_arrays(columns, arrays, len(batch))
    return _joined(batch, columns, converted, problems, raw)


def convert_arrays(
    columns: Sequence[Column], arrays: Sequence[pa.Array | None], count: int
) -> tuple[list[pa.Array], dict[int, RecordProblem]]:
    """Convert columns of Parquet to the types of carried columns; problems by row, null there."""
    problems: dict[int, RecordProblem] = {}
    converted = []
    for column, array in zip(columns, arrays, strict=True):
        converted.append(
            pa.nulls(count, TYPES[column.type]) if array is None else _converted(column, array, problems)
        )
    return converted, problems


def _joined(
    batch: Batch,
    columns: Sequence[Column],
    arrays: list[pa.Array],
    problems: dict[int, RecordProblem],
    raw: Callable[[int], bytes],
) -> Batch:
    batch.columns = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
    if not problems:
        return batch
    good = batch.keep(np.setdiff1d(np.arange(len(batch)), list(problems)))
    good.rejects = batch.rejects + [
        Reject(batch.file, int(batch.positions[row]), problem.reason, problem.detail, raw(row))
        for row, problem in sorted(problems.items())
    ]
    good.consumed_bytes, good.filtered = batch.consumed_bytes, batch.filtered
    return good


def _array(column: Column, values: list[Any], problems: dict[int, RecordProblem]) -> pa.Array:
    """Values of JSON as an array; problems are added by row, null there."""
    target = TYPES[column.type]
    kinds = set(map(type, values))
    if kinds <= FITTING[column.type]:
        try:
            return pa.array(values, target)
        except (ValueError, OverflowError):  # lone surrogates, integers beyond 64 bits: found below
            pass
    if (
        column.type == "timestamp"
        and kinds <= {str, NoneType}
        and (times := _plain_times(values)) is not None
    ):
        return times
    fitted: list[Any] = []
    for row, value in enumerate(values):
        try:
            fitted.append(fit(value, column.type))
        except Misfit as misfit:
            problems.setdefault(row, problem_of(column, str(misfit)))
            fitted.append(None)
    return _fitted(column, fitted)


def _plain_times(values: list[Any]) -> pa.Array | None:
    """Times of the usual form, converted at once; None if any is of another one."""
    try:
        texts = pa.array(values, pa.string())
        if not pc.all(pc.match_substring_regex(texts, PLAIN_TIME), min_count=0).as_py():
            return None
        times = pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("us"))
    except (ValueError, pa.ArrowInvalid):
        return None
    return times.cast(pa.int64()).cast(TYPES["timestamp"])


def _microseconds(text: str) -> int:
    """Microseconds since 1970 of an ISO 8601 time.

    Raises:
        Misfit: it is none.
    """
    match = TIME.fullmatch(text)
    if match is None:
        raise Misfit(_shown(text))
    date, minutes, seconds, fraction, offset = match.groups()
    try:
        time = datetime.fromisoformat(f"{date}T{minutes or '00:00'}:{seconds or '00'}+00:00")
    except ValueError as error:
        raise Misfit(_shown(text)) from error
    micros = (time - EPOCH) // timedelta(microseconds=1) + int((fraction or "0")[:6].ljust(6, "0"))
    if offset and offset not in "Zz":
        hours, rest = int(offset[1:3]), int(offset[3:].removeprefix(":") or 0)
        if hours > 23 or rest > 59:
            raise Misfit(_shown(text))
        micros -= (1 if offset[0] == "+" else -1) * (hours * 60 + rest) * 60_000_000
    if not FIRST_TIME <= micros <= LAST_TIME:
        raise Misfit(f"{_shown(text)}, outside of the years 1 to 9999")
    return micros


def _shown(value: Any) -> str:
    """Description of a value of JSON: its type, and its beginning."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, msgspec.Raw):
        return "a number out of range"
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


def _converted(column: Column, array: pa.Array, problems: dict[int, RecordProblem]) -> pa.Array:
    """A column of Parquet in the type of a carried one; problems are added by row, null there."""
    target = TYPES[column.type]
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    found = parquet_type(array.type)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if found == "string":
        array = array.cast(pa.large_string())
        if (wrong := _not_utf8(array)) is not None:
            for row in wrong:
                problems.setdefault(row, problem_of(column, "bytes that are not UTF-8"))
            array = _without(array, wrong)
        if column.type == "string":
            return array.cast(target)
        if column.type == "timestamp":
            return _array(column, array.to_pylist(), problems)
    elif found == column.type == "boolean":
        return array
    elif found == column.type == "timestamp":
        return _times(column, array, problems)
    elif column.type == "float" and (found in ("integer", "float") or pa.types.is_decimal(array.type)):
        return array.cast(target, safe=False)
    elif column.type == "integer" and found == "integer":
        if pa.types.is_uint64(array.type):
            wrong = _rows(pc.greater(array, pa.scalar(2**63 - 1, pa.uint64())))
            _add(problems, wrong, column, lambda row: "an integer beyond 64 bits")
            array = _without(array, wrong)
        return array.cast(target)
    elif column.type == "integer" and found == "float":
        values = array.cast(pa.float64())
        numbers = values.to_numpy(zero_copy_only=False)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        fitting = valid & (np.floor(numbers) == numbers) & (numbers >= -(2.0**63)) & (numbers < 2.0**63)
        _add(
            problems, np.flatnonzero(valid & ~fitting), column, lambda row: _shown_number(float(numbers[row]))
        )
        return pa.array(np.where(fitting, numbers, 0).astype(np.int64), mask=~fitting)
    wrong = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    _add(problems, wrong, column, lambda row: f"a value of type {array.type}")
    return pa.nulls(len(array), target)


def _times(column: Column, array: pa.Array, problems: dict[int, RecordProblem]) -> pa.Array:
    kind = array.type
    if pa.types.is_date32(kind):
        counts, per_second = array.cast(pa.int32()).cast(pa.int64()), None
    else:
        counts, per_second = (
            array.cast(pa.int64()),
            10**3 if pa.types.is_date64(kind) else PER_SECOND[kind.unit],
        )
    numbers = counts.fill_null(0).to_numpy()
    if per_second is not None and per_second > 10**6:
        micros, fitting = numbers // (per_second // 10**6), np.ones(len(numbers), bool)
    else:
        factor = 86_400 * 10**6 if per_second is None else 10**6 // per_second
        fitting = (numbers >= -(2**62) // factor) & (numbers <= 2**62 // factor)
        micros = np.where(fitting, numbers, 0) * factor
    fitting &= (micros >= FIRST_TIME) & (micros <= LAST_TIME)
    wrong = np.flatnonzero(~fitting)
    _add(problems, wrong, column, lambda row: "a time outside of the years 1 to 9999")
    nulls = counts.is_null().to_numpy(zero_copy_only=False) | ~fitting
    return pa.array(micros, pa.int64(), mask=nulls).cast(TYPES["timestamp"])


def _add(
    problems: dict[int, RecordProblem], rows: np.ndarray, column: Column, found: Callable[[int], str]
) -> None:
    for row in rows.tolist():
        problems.setdefault(row, problem_of(column, found(row)))


def _rows(mask: pa.Array) -> np.ndarray:
    """Rows at which a mask is true."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))


def _without(array: pa.Array, rows: np.ndarray) -> pa.Array:
    """The array with null at these rows."""
    if not len(rows):
        return array
    kept = np.ones(len(array), bool)
    kept[rows] = False
    return pc.if_else(pa.array(kept), array, pa.scalar(None, array.type))


def _shown_number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "no finite number"


def _not_utf8(array: pa.Array) -> np.ndarray | None:
    """Rows of a string array that are not UTF-8; None if there are none."""
    try:
        array.validate(full=True)
        return None
    except pa.ArrowInvalid:
        pass
    wrong = []
    for row, value in enumerate(array):
        try:
            value.as_py()
        except UnicodeDecodeError:
            wrong.append(row)
    return np.array(wrong, np.int64)
