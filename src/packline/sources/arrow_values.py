"""Conversion of Arrow values that Python cannot represent, so that a bad row loses only itself.

    b"\\xff\\xfe" in a column of strings            not UTF-8
    timestamp[ns] that is no whole microsecond     Python's own times end at microseconds
    date32 of the year 12000                       and at the year 9999
    timestamp[us, tz=Mars/Phobos]                  a time zone that this machine does not know

A whole column is converted at once; only if that fails, value by value. Values that cannot be converted
become `Odd`, and the caller decides. Cost: nothing for good columns, some microseconds per value for others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from packline.sources.batch import Reason
from packline.sources.jsonl import not_utf8

FAILURES = (ValueError, ArithmeticError, LookupError, pa.ArrowException)
"""Exceptions of a conversion, including `UnicodeDecodeError` and `OverflowError`."""


class Odd(NamedTuple):
    """Placeholder for a value that Python cannot represent."""

    reason: Reason
    detail: str
    text: str | None
    """The value as formatted by Arrow; None if that fails too."""


def column_values(column: pa.Array) -> list[Any]:
    """Convert a column to Python values, `Odd` for those that Python cannot represent.

    >>> column_values(pa.array([0, 10**7], pa.date32()))
    [datetime.date(1970, 1, 1), Odd(reason='template', detail='date value out of range', text='29349-01-26')]
    """
    try:
        return list(column.to_pylist())
    except FAILURES:
        return [_value(scalar) for scalar in column]


def row_values(rows: pa.RecordBatch) -> tuple[list[dict[str, Any]], set[str]]:
    """Rows as dicts, and the names of columns in which some values are `Odd`."""
    try:
        return list(rows.to_pylist()), set()
    except FAILURES:
        names = rows.schema.names
        columns = [column_values(column) for column in rows.columns]
        odd = {
            name
            for name, values in zip(names, columns, strict=True)
            if any(isinstance(value, Odd) for value in values)
        }
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)], odd


def id_texts(ids: pa.Array) -> list[str | None]:
    """Ids of any type as strings; None for one that cannot be a string.

    >>> id_texts(pa.array([1.5, None])), id_texts(pa.array([1], pa.timestamp("ns")))
    (['1.5', None], ['1970-01-01 00:00:00.000000001'])
    """
    values = column_values(ids)
    return [
        value if value is None or type(value) is str else value.text if isinstance(value, Odd) else str(value)
        for value in values
    ]


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
