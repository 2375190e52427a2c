"""Conditions on Arrow columns, in bulk: the meaning of `conditions`, on typed columns with nulls.

A term is one kernel of Arrow; a dictionary column is tested by its few values. Numbers are compared exactly:
Arrow would convert both sides to one type, so here the value is first replaced by the nearest one of the
column's type. A string compared with a column of timestamps is a time, ISO 8601, UTC unless it has an offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.errors import RecipeError, did_you_mean
from packline.where.conditions import (
    METHODS,
    OPPOSITE,
    Condition,
    Field,
    Joined,
    Not,
    Term,
    Value,
    fields_of,
    holds,
    kind_of,
    terms_of,
)

Column: TypeAlias = pa.Array | pa.ChunkedArray
KERNELS: dict[str, str] = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "contains": "match_substring",
}

FEW = 2
"""Values that are compared one by one; beyond, hashing the column costs less."""


def column_mask(condition: Condition, columns: Mapping[str, Column]) -> np.ndarray:
    """Test a condition on columns.

    Returns:
        bool `[N]`: True where the condition holds.
    """
    return _mask(condition, columns).to_numpy(zero_copy_only=False)


def check_columns(condition: Condition, types: Mapping[str, pa.DataType], where: str) -> None:
    """Refuse a condition that names another column, or compares a column with what it has no order with."""
    refuse_unknown(fields_of(condition), list(types), where)
    for term in terms_of(condition):
        kind = types[term.left.name]
        _term(term, pa.nulls(1, kind.value_type if pa.types.is_dictionary(kind) else kind))


def refuse_unknown(names: Sequence[str], known: Sequence[str], where: str) -> None:
    """Refuse a column that does not exist."""
    for name in names:
        if name not in known:
            raise RecipeError(
                f"where: {where} has no column {name!r}: found {', '.join(known)}",
                hint=did_you_mean(name, known)
                + "a recipe carries fields of its records along: columns = [...] under [[sources]]",
            )


def _mask(condition: Condition, columns: Mapping[str, Column]) -> Column:
    """Booleans without nulls."""
    if isinstance(condition, Joined):
        join = pc.and_ if condition.word == "and" else pc.or_
        return reduce(join, (_mask(term, columns) for term in condition.terms))
    if isinstance(condition, Not):
        return pc.invert(_mask(condition.term, columns))
    return _term(condition, columns[condition.left.name])


def _term(term: Term, column: Column) -> Column:
    op, value, kind = term.op, term.value, column.type
    if op in ("!=", "not in"):
        return pc.invert(_term(Term(term.left, OPPOSITE[op], value), column))
    if pa.types.is_null(kind):
        return pa.repeat(holds(term, None), len(column))
    if pa.types.is_dictionary(kind):
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([_term(term, chunk) for chunk in column.chunks], pa.bool_())
        values = pa.concat_arrays([column.dictionary, pa.nulls(1, kind.value_type)])
        answers = _term(term, values).to_numpy(zero_copy_only=False)
        answers = answers[column.indices.fill_null(len(values) - 1).to_numpy()]  # faster than Arrow's take
        bits = pa.py_buffer(np.packbits(answers, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(column), [None, bits])
    if term.left.is_length:
        if not _is_text(kind):
            _refuse(term, kind, "strings, for len")
        return _term(Term(Field(term.left.name), op, value), pc.utf8_length(column))
    if pa.types.is_floating(kind):
        kind, column = pa.float64(), column.cast(pa.float64())
    if op in OPPOSITE:
        mask = _member(term, column, value if isinstance(value, tuple) else (value,))
    elif op == "truth":
        if not pa.types.is_boolean(kind):
            _refuse(term, kind, "booleans")
        mask = column
    elif op in METHODS:
        if not _is_text(kind) or not isinstance(value, str):
            _refuse(term, kind, "strings, and a string in them")
        mask = pc.call_function(KERNELS[op], [column], pc.MatchSubstringOptions(value))
    else:
        mask = _ordered(term, column)
    return mask.fill_null(False)


def _member(term: Term, column: Column, values: Sequence[Value]) -> Column:
    kind = column.type
    known = _is_number(kind) or _is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind)
    if not known:
        _refuse(term, kind, "strings, numbers, booleans or timestamps")
    found = [_nearest(term, kind, value) for value in values]
    equal = [near for near, side in filter(None, found) if side == 0]
    if len(equal) <= FEW:
        masks = [pc.equal(column, pa.scalar(near, kind)) for near in equal]
    else:
        signed = [-0.0] if pa.types.is_floating(kind) and 0 in equal else []  # `is_in` compares bits
        masks = [pc.is_in(column, value_set=pa.array(equal + signed, kind))]
    masks += [column.is_null()] if None in values else []
    return reduce(pc.or_kleene, masks, pa.repeat(False, len(column)))


def _ordered(term: Term, column: Column) -> Column:
    op, kind = term.op, column.type
    found = None if pa.types.is_boolean(kind) else _nearest(term, kind, term.value)
    if found is None:
        _refuse(term, kind, "numbers" if kind_of(term.value) == "number" else "strings or timestamps")
    near, side = found
    if side:
        op = ("<=" if side < 0 else "<") if op in ("<", "<=") else (">" if side < 0 else ">=")
    return pc.call_function(KERNELS[op], [column, pa.scalar(near, kind)])


def _nearest(term: Term, kind: pa.DataType, value: Any) -> tuple[Any, int] | None:
    """The value in the type of a column, None if that has none alike.

    Of a number the nearest one, and where that lies: -1 below the number, 1 above it, 0 at it.
    """
    alike = kind_of(value)
    if alike == "number" and _is_number(kind):
        near = _nearest_float(value)
        if pa.types.is_integer(kind):
            limits = np.iinfo(kind.to_pandas_dtype())
            near = min(max(math.floor(value), limits.min), limits.max)
        return near, (near > value) - (near < value)
    if alike == "string" and pa.types.is_timestamp(kind):
        return _time(term, value, kind), 0
    same = _is_text(kind) if alike == "string" else alike == "boolean" and pa.types.is_boolean(kind)
    return (value, 0) if same else None


def _nearest_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _time(term: Term, value: str, kind: pa.DataType) -> Any:
    try:
        time = datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise RecipeError(
            f"where {term}: column {term.left.name} is {kind}: expected a time, found {value!r}",
            hint="for example '2026-11-30' or '2026-11-30T12:00:00+01:00'; without an offset it is UTC",
        ) from error
    return pa.scalar(time, pa.timestamp("us", tz="UTC")).cast(kind).as_py()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _refuse(term: Term, kind: pa.DataType, expected: str) -> NoReturn:
    raise RecipeError(
        f"where {term}: column {term.left.name} is {kind}: expected {expected}",
        hint="as in JSON, '3' is not 3: strings are in quotes, numbers are not",
    )
