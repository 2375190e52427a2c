"""Conditions on records: values as JSON has them, one record at a time, while a store is built."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from packline.where.conditions import (
    And,
    Compare,
    Condition,
    In,
    Length,
    Match,
    Not,
    Operand,
    Or,
    Truth,
    Value,
)

Record = dict[str, Any]
Test = Callable[[Record], bool]
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Incomparable(Exception):
    """A value for which a condition has no answer; the message names field, expected and found type."""


def field_value(record: Any, path: Sequence[str]) -> Any:
    """Value at a path of names, None if there is none.

    >>> field_value({"a": {"b": 1}}, ["a", "b"]), field_value({"a": 1}, ["a", "b"])
    (1, None)
    """
    value = record
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def record_test(condition: Condition) -> Test:
    """Build a function that returns True if a record meets a condition.

    The function raises `Incomparable` for a value that cannot be compared. `and` and `or` stop at the first
    term that decides.

    >>> from packline.where.grammar import parse_where
    >>> passes = record_test(parse_where("n > 2 and x.y is None"))
    >>> passes({"n": 3}), passes({"n": 3, "x": {"y": 0}}), passes({})
    (True, False, False)
    """
    if isinstance(condition, And | Or):
        tests = [record_test(term) for term in condition.terms]
        decided = isinstance(condition, Or)

        def joined(record: Record) -> bool:
            for test in tests:
                if test(record) is decided:
                    return decided
            return not decided

        return joined
    if isinstance(condition, Not):
        inner = record_test(condition.term)
        return lambda record: not inner(record)
    path, check = _path(condition.left), value_test(condition)
    return lambda record: check(field_value(record, path))


def _path(left: Operand) -> tuple[str, ...]:
    return (left.field if isinstance(left, Length) else left).path


def value_test(term: Compare | In | Match | Truth) -> Callable[[Any], bool]:
    """Build a function that returns True if the value of the term's field meets the term."""
    if isinstance(term, Truth):
        return lambda value: _truth(value, term)
    if isinstance(term, Match):
        return lambda value: _matches(value, term)
    measure = _length_of(term) if isinstance(term.left, Length) else lambda value: value
    if isinstance(term, In):
        values = term.values
        return lambda value: any(same(measure(value), one) for one in values)
    if isinstance(term, Compare):
        wanted = term.value
        if term.op in ("==", "!="):
            return lambda value: same(measure(value), wanted) == (term.op == "==")
        return lambda value: _ordered(measure(value), term)
    assert_never(term)


def same(value: Any, wanted: Value) -> bool:
    """Equality as in JSON.

    >>> same(1, 1.0), same(True, 1), same("1", 1), same([1], [1]), same(None, None)
    (True, False, False, True, True)
    """
    return kind_of(value) == kind_of(wanted) and bool(value == wanted)


def kind_of(value: Any) -> str:
    """JSON type name of a value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, dict) else "list" if isinstance(value, list) else "null"


def _ordered(value: Any, term: Compare) -> bool:
    if value is None:
        return False
    if kind_of(value) != kind_of(term.value):
        raise _incomparable(term, f"a {kind_of(term.value)}", value)
    return ORDERS[term.op](value, term.value)


def _truth(value: Any, term: Truth) -> bool:
    if value is None or isinstance(value, bool):
        return value is True
    raise _incomparable(term, "a boolean", value)


def _matches(value: Any, term: Match) -> bool:
    if value is None:
        return False
    wanted: Any = term.value
    if term.method == "contains":
        if isinstance(value, list):
            return any(same(one, wanted) for one in value)
        if isinstance(value, str) and isinstance(wanted, str):
            return wanted in value
        raise _incomparable(term, "a list, or a string with a string in it", value)
    if not isinstance(value, str):
        raise _incomparable(term, "a string", value)
    return value.startswith(wanted) if term.method == "startswith" else value.endswith(wanted)


def _length_of(term: Compare | In) -> Callable[[Any], int | None]:
    def length(value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, str | list):
            raise _incomparable(term, "a string or a list", value)
        return len(value)

    return length


def _incomparable(term: Compare | In | Match | Truth, expected: str, value: Any) -> Incomparable:
    shown = str(term) if len(str(term)) <= 60 else f"{str(term)[:57]}..."
    return Incomparable(f"field {term.left.name!r} in {shown}: expected {expected}, found a {kind_of(value)}")
