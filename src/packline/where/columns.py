"""Conditions on Arrow columns, in bulk: the meaning of `records`, on typed columns with nulls.

    score   3.5  null  2.0        score >= 3     True  False  False
    label   a    b     null       label != 'a'   False True   True

A term of one column is a few Arrow kernels; a dictionary column is tested by its few values. A string
compared with a column of timestamps is a time, ISO 8601, UTC unless it has an offset. Cost: 1 to 5 ns per
value and term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.errors import RecipeError, did_you_mean
from packline.where.conditions import (
    And,
    Compare,
    Comparison,
    Condition,
    In,
    Length,
    Match,
    Not,
    Or,
    Term,
    Truth,
    Value,
    fields_of,
    terms_of,
    value_test,
)

Column: TypeAlias = pa.Array | pa.ChunkedArray
KERNELS: dict[Comparison, str] = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
METHODS = {"startswith": "starts_with", "endswith": "ends_with", "contains": "match_substring"}
TIME = pa.timestamp("us", tz="UTC")


def column_mask(condition: Condition, columns: Mapping[str, Column]) -> np.ndarray:
    """Test a condition on columns.

    Args:
        condition: the condition.
        columns: by name, one for each field of the condition, all of one length N. Of strings, integers,
            floats, booleans, timestamps or nulls, or dictionaries of these.

    Returns:
        bool `[N]`: True where the condition holds.

    Raises:
        RecipeError: a comparison that the type of a column does not have; with column and types.

    >>> from packline.where.grammar import parse_where
    >>> columns = {"n": pa.array([1, None, 3]), "label": pa.array(["a", "b", None]).dictionary_encode()}
    >>> column_mask(parse_where("n > 1 or label != 'a'"), columns).tolist()
    [False, True, True]
    """
    if isinstance(condition, And | Or):
        joined = np.logical_and if isinstance(condition, And) else np.logical_or
        result = column_mask(condition.terms[0], columns)
        for term in condition.terms[1:]:
            joined(result, column_mask(term, columns), out=result)
        return result
    if isinstance(condition, Not):
        mask = column_mask(condition.term, columns)
        return np.logical_not(mask, out=mask)
    return _chunked(condition, columns[condition.left.name])


def known_answer(condition: Condition, bounds: pa.Array, nulls: int) -> bool | None:
    """Answer of a condition on one column for all its values, if their bounds decide it; else None.

    Args:
        condition: a condition on one column.
        bounds: least and greatest value, `[2]`, in the type of the column.
        nulls: number of nulls.

    >>> from packline.where.grammar import parse_where
    >>> bounds = pa.array([3, 5])
    >>> [known_answer(parse_where(text), bounds, 0) for text in ("a < 3", "a == 6", "not a > 5", "a >= 4")]
    [False, False, True, None]
    """
    if isinstance(condition, Not):
        answer = known_answer(condition.term, bounds, nulls)
        return None if answer is None else not answer
    if not isinstance(condition, Compare) or isinstance(condition.left, Length):
        return None
    if condition.value is None:
        return condition.op == "!=" if nulls == 0 else None
    if condition.op in ("==", "!="):
        outside = [Compare(condition.left, op, condition.value) for op in (">", "<")]
        try:
            above, below = (_mask(one, bounds) for one in outside)
        except RecipeError:  # no order between the types: the comparison itself decides
            return None
        return condition.op == "!=" if above.all() or below.all() else None
    mask = _mask(condition, bounds)
    if not mask.any():
        return False  # nor is it true for null or NaN
    return True if mask.all() and nulls == 0 and not pa.types.is_floating(bounds.type) else None


def check_columns(condition: Condition, types: Mapping[str, pa.DataType], where: str) -> None:
    """Refuse a condition that names another column, or compares a column with what it has no order with.

    Args:
        condition: the condition.
        types: type of every column.
        where: what has the columns, for the message.

    Raises:
        RecipeError: with the name meant, or the column and both types.

    >>> from packline.where.grammar import parse_where
    >>> check_columns(parse_where("scor > 1"), {"score": pa.int64()}, "store")
    Traceback (most recent call last):
    packline.errors.RecipeError: where: store has no column 'scor': found score
    """
    refuse_unknown(fields_of(condition), list(types), where)
    for term in terms_of(condition):
        _chunked(term, pa.nulls(1, _plain(types[term.left.name])))


def refuse_unknown(names: Sequence[str], known: Sequence[str], where: str) -> None:
    """Refuse a column that does not exist.

    Raises:
        RecipeError: with the name meant, and all columns.
    """
    for name in names:
        if name not in known:
            raise RecipeError(
                f"where: {where} has no column {name!r}: found {', '.join(known)}",
                hint=did_you_mean(name, known)
                + "a recipe carries fields of its records along: columns = [...] under [[sources]]",
            )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _chunked(term: Term, column: Column) -> np.ndarray:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    masks = [_mask(term, chunk) for chunk in chunks]
    if len(masks) == 1:
        return masks[0]
    return np.concatenate(masks) if masks else np.empty(0, bool)


def _mask(term: Term, column: pa.Array) -> np.ndarray:
    """A mask of one array; for a dictionary of its values, once each."""
    if pa.types.is_dictionary(column.type):
        values = pa.concat_arrays([column.dictionary, pa.nulls(1, column.type.value_type)])
        of_value = _mask(term, values)
        indices = column.indices.fill_null(len(values) - 1) if column.null_count else column.indices
        return of_value[indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_null(column.type):
        return np.full(len(column), value_test(term)(None))
    if isinstance(term.left, Length):
        if not _is_text(column.type):
            _refuse(term, column.type, "strings, for len")
        column = pc.utf8_length(column)
    if isinstance(term, Truth):
        if not pa.types.is_boolean(column.type):
            _refuse(term, column.type, "booleans")
        return _filled(column)
    if isinstance(term, Match):
        if not _is_text(column.type) or not isinstance(term.value, str):
            _refuse(term, column.type, "strings, and a string in them")
        return _filled(pc.call_function(METHODS[term.method], [column], pc.MatchSubstringOptions(term.value)))
    if isinstance(term, In):
        return _member(term, column)
    equality = term.op in ("==", "!=")
    if equality:
        mask = _equal(term, column, term.value)
        return mask if term.op == "==" else ~mask
    return _ordered(term, column, term.value)


def _filled(mask: pa.Array) -> np.ndarray:
    """Arrow's answer with False for null, bool `[N]`, writable."""
    mask = mask.fill_null(False) if mask.null_count else mask
    return np.asarray(mask.to_numpy(zero_copy_only=False), bool)


def _constant(column: pa.Array, value: bool) -> np.ndarray:
    """The same answer for every value; False for null."""
    if not value:
        return np.zeros(len(column), bool)
    return np.ones(len(column), bool) if not column.null_count else _filled(column.is_valid())


def _equal(term: Term, column: pa.Array, value: Value) -> np.ndarray:
    if value is None:
        return _filled(column.is_null())
    kind = column.type
    if _is_number(kind) and _number(value):
        return _compare_numbers("==", column, value)
    if (_is_text(kind) and isinstance(value, str)) or (pa.types.is_boolean(kind) and isinstance(value, bool)):
        return _filled(pc.equal(column, pa.scalar(value, kind)))
    if pa.types.is_timestamp(kind) and isinstance(value, str):
        return _filled(pc.equal(column, _time(term, value, kind)))
    if not _is_known(kind):
        _refuse(term, kind, "strings, numbers, booleans or timestamps")
    return np.zeros(len(column), bool)


def _member(term: In, column: pa.Array) -> np.ndarray:
    kind = column.type
    if not _is_known(kind):
        _refuse(term, kind, "strings, numbers, booleans or timestamps")
    mask = np.zeros(len(column), bool)
    alike: list[Any] = []
    for value in term.values:
        if value is None or (_is_number(kind) and _number(value)):
            mask |= _equal(term, column, value)
        elif (isinstance(value, str) and _is_text(kind)) or (
            isinstance(value, bool) and pa.types.is_boolean(kind)
        ):
            alike.append(value)
        elif pa.types.is_timestamp(kind) and isinstance(value, str):
            alike.append(_time(term, value, kind).as_py())
    if alike:
        mask |= _filled(pc.is_in(column, value_set=pa.array(alike, kind), skip_nulls=True))
    return mask


def _ordered(term: Compare, column: pa.Array, value: Value) -> np.ndarray:
    kind = column.type
    if _is_number(kind) and _number(value):
        return _compare_numbers(term.op, column, value)
    if isinstance(value, str) and _is_text(kind):
        return _filled(pc.call_function(KERNELS[term.op], [column, pa.scalar(value, kind)]))
    if isinstance(value, str) and pa.types.is_timestamp(kind):
        return _filled(pc.call_function(KERNELS[term.op], [column, _time(term, value, kind)]))
    expected = "numbers" if _number(value) else "strings or timestamps"
    _refuse(term, kind, expected)


def _compare_numbers(op: Comparison, column: pa.Array, value: Any) -> np.ndarray:
    """Exact comparison of a column of numbers with a number of any size, as Python compares."""
    kind = column.type
    if pa.types.is_integer(kind):
        value = int(value) if isinstance(value, float) and value.is_integer() else value  # from 2^53 on
        if isinstance(value, float):  # not a whole number: n < 3.5 is n <= 3
            if op == "==":
                return np.zeros(len(column), bool)
            op, value = ("<=" if op in ("<", "<=") else ">"), math.floor(value)
        bits = kind.bit_width - pa.types.is_signed_integer(kind)
        least, most = -(2**bits) if pa.types.is_signed_integer(kind) else 0, 2**bits - 1
        if not least <= value <= most:
            return _constant(column, op in (("<", "<=") if value > most else (">", ">=")))
        return _filled(pc.call_function(KERNELS[op], [column, pa.scalar(value, kind)]))
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if near != value:  # an integer that is no float: no value equals it
        if op == "==":
            return np.zeros(len(column), bool)
        above = near > value
        op = ("<" if above else "<=") if op in ("<", "<=") else (">=" if above else ">")
    return _filled(pc.call_function(KERNELS[op], [column.cast(pa.float64()), pa.scalar(near, pa.float64())]))


def _time(term: Term, value: str, kind: pa.DataType) -> pa.Scalar:
    try:
        time = datetime.fromisoformat(value)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise RecipeError(
            f"where {term}: column {term.left.name} is {kind}: expected a time, found {value!r}",
            hint="for example '2026-11-30' or '2026-11-30T12:00:00+01:00'; without an offset it is UTC",
        ) from error
    return pa.scalar(time, TIME).cast(kind)


def _number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_known(kind: pa.DataType) -> bool:
    return _is_number(kind) or _is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind)


def _refuse(term: Term, kind: pa.DataType, expected: str) -> NoReturn:
    raise RecipeError(
        f"where {term}: column {term.left.name} is {kind}: expected {expected}",
        hint="as in JSON, '3' is not 3: strings are in quotes, numbers are not",
    )
