"""Filters: selection of the records of a source by the values of their fields.

    where = [
        { field = "score", op = ">=", value = 3 },
        { field = "language", op = "in", value = ["en", "de"] },
    ]

A record must pass all of them. Values are compared as in JSON: 1 equals 1.0, but neither "1" nor true. A
field that is missing or null has no value: it passes `missing`, `!=` and `not in`, and nothing else. An order
comparison of incomparable values, such as a number and a string, makes a bad record instead of a silent loss.

Cost: well under a microsecond per filter. `min_chars` and `max_chars` are applied later, to the text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from packline.recipe import Where
from packline.sources.batch import RecordProblem

Check = Callable[[Any], bool]
"""Function that returns True if a present, non-null value passes."""

ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PASS_WITHOUT_VALUE = ("missing", "!=", "not in")


def field_value(record: Any, path: Sequence[str]) -> Any:
    """Value at a path of names, None if there is none.

    >>> field_value({"a": {"b": 1}}, ["a", "b"]), field_value({"a": 1}, ["a", "b"])
    (1, None)
    """
    value = record
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def make_filter(where: Sequence[Where]) -> Callable[[dict[str, Any]], bool]:
    """Build a function that returns True if a record passes all filters.

    The function raises `RecordProblem` (reason `filter`) for a value that cannot be compared.

    >>> passes = make_filter([Where(field="n", op=">", value=2), Where(field="x.y", op="missing")])
    >>> passes({"n": 3}), passes({"n": 3, "x": {"y": 0}}), passes({})
    (True, False, False)
    """
    checks = [(one.field.split("."), one.op in PASS_WITHOUT_VALUE, _check(one)) for one in where]

    def passes(record: dict[str, Any]) -> bool:
        for path, without, check in checks:
            value = field_value(record, path)
            if not (without if value is None else check(value)):
                return False
        return True

    return passes


def head_fields(where: Sequence[Where]) -> list[str]:
    """Top-level fields that filters use."""
    return [one.field.partition(".")[0] for one in where]


def _check(one: Where) -> Check:
    wanted: Any = one.value
    if one.op in ("exists", "missing"):
        return lambda value: one.op == "exists"
    if one.op in ("==", "!="):
        return lambda value: same(value, wanted) == (one.op == "==")
    if one.op in ("in", "not in"):
        return lambda value: any(same(value, each) for each in wanted) == (one.op == "in")
    if one.op == "contains":
        return lambda value: _contains(value, wanted, one)
    if one.op in ORDERS:
        return lambda value: _ordered(value, wanted, one)
    return lambda value: _begins_or_ends(value, wanted, one)


def same(value: Any, wanted: Any) -> bool:
    """Equality as in JSON.

    >>> same(1, 1.0), same(True, 1), same("1", 1), same([1], [1])
    (True, False, False, True)
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


def _ordered(value: Any, wanted: Any, one: Where) -> bool:
    if kind_of(value) != kind_of(wanted):
        raise _cannot_compare(one, f"a {kind_of(wanted)}", value)
    return ORDERS[one.op](value, wanted)


def _contains(value: Any, wanted: Any, one: Where) -> bool:
    if isinstance(value, list):
        return any(same(each, wanted) for each in value)
    if isinstance(value, str) and isinstance(wanted, str):
        return wanted in value
    raise _cannot_compare(one, "a list, or a string with a string in it", value)


def _begins_or_ends(value: Any, wanted: str, one: Where) -> bool:
    if not isinstance(value, str):
        raise _cannot_compare(one, "a string", value)
    return value.startswith(wanted) if one.op == "starts with" else value.endswith(wanted)


def _cannot_compare(one: Where, expected: str, value: Any) -> RecordProblem:
    detail = f"field {one.field!r}, filter {one.op!r}: expected {expected}, found a {kind_of(value)}"
    return RecordProblem("filter", detail)
