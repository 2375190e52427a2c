"""Conditions as small frozen values; `str` of one is its canonical text.

Conditions on records: values as JSON has them, one record at a time, while a store is built.
"""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

Value: TypeAlias = str | int | float | bool | None
Comparison: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
Method: TypeAlias = Literal["startswith", "endswith", "contains"]
METHODS: tuple[Method, ...] = ("startswith", "endswith", "contains")
NOT_NAMES = frozenset((*keyword.kwlist, "true", "false", "null"))
"""Words that are no fields: Python's own, and values in the spelling of JSON; `field('class')` names one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field, or a column of a store."""

    name: str

    @property
    def path(self) -> tuple[str, ...]:
        """Names from the outermost object to the field."""
        return tuple(self.name.split("."))

    def __str__(self) -> str:
        plain = all(part.isidentifier() and part not in NOT_NAMES for part in self.path)
        return self.name if plain else f"field({self.name!r})"


@dataclass(frozen=True, slots=True)
class Length:
    """Characters of a string field, or elements of a list."""

    field: Field

    @property
    def name(self) -> str:
        """Name of the field."""
        return self.field.name

    def __str__(self) -> str:
        return f"len({self.field})"


Operand: TypeAlias = Field | Length


@dataclass(frozen=True, slots=True)
class Compare:
    """Comparison with a value; with None it is == or !=."""

    left: Operand
    op: Comparison
    value: Value

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.left} {'is' if self.op == '==' else 'is not'} None"
        return f"{self.left} {self.op} {self.value!r}"


@dataclass(frozen=True, slots=True)
class In:
    """Membership in a list of values."""

    left: Operand
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{self.left} in [{', '.join(map(repr, self.values))}]"


@dataclass(frozen=True, slots=True)
class Match:
    """Method of a string field, or a list that contains a value."""

    left: Field
    method: Method
    value: Value

    def __str__(self) -> str:
        return f"{self.left}.{self.method}({self.value!r})"


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean field that is True."""

    left: Field

    def __str__(self) -> str:
        return str(self.left)


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    term: Condition

    def __str__(self) -> str:
        if isinstance(self.term, In):
            return str(self.term).replace(" in [", " not in [", 1)
        return f"not ({self.term})" if isinstance(self.term, And | Or) else f"not {self.term}"


@dataclass(frozen=True, slots=True)
class And:
    """All of two or more conditions."""

    terms: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(f"({one})" if isinstance(one, Or) else str(one) for one in self.terms)


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of two or more conditions."""

    terms: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.terms))


Term: TypeAlias = Compare | In | Match | Truth
Condition: TypeAlias = Compare | In | Match | Truth | Not | And | Or


def conjunction(condition: Condition) -> tuple[Condition, ...]:
    """Terms that must all hold, in order.

    >>> from packline.where.grammar import parse_where
    >>> [str(term) for term in conjunction(parse_where("a > 1 and (b or c) and d is None"))]
    ['a > 1', 'b or c', 'd is None']
    """
    return condition.terms if isinstance(condition, And) else (condition,)


def terms_of(condition: Condition) -> Iterator[Term]:
    """All terms of a condition, from left to right."""
    if isinstance(condition, And | Or):
        for one in condition.terms:
            yield from terms_of(one)
    elif isinstance(condition, Not):
        yield from terms_of(condition.term)
    else:
        yield condition


def fields_of(condition: Condition) -> tuple[str, ...]:
    """Names of the fields that a condition uses, in order.

    >>> from packline.where.grammar import parse_where
    >>> fields_of(parse_where("a.b > 1 or len(c) < 3 or a.b is None"))
    ('a.b', 'c')
    """
    return tuple(dict.fromkeys(term.left.name for term in terms_of(condition)))


def expected_fields(condition: Condition) -> tuple[str, ...]:
    """Names of the fields that some record should have: those that are not compared with None.

    >>> from packline.where.grammar import parse_where
    >>> expected_fields(parse_where("a > 1 and (b is None or b > 2)"))
    ('a',)
    """
    absent = {
        term.left.name
        for term in terms_of(condition)
        if isinstance(term, Compare) and (term.value is None and term.op == "==")
    }
    return tuple(name for name in fields_of(condition) if name not in absent)


LISTED, LONGEST = 3, 60


def in_words(condition: Condition) -> str:
    """Short text of a condition for counts and tables: at most a few words of a long list.

    >>> from packline.where.grammar import parse_where
    >>> in_words(parse_where(f"a in {list(range(999))}"))
    'a in [0, 1, 2, ... 999 values]'
    """
    if isinstance(condition, In) and len(condition.values) > LISTED:
        shown = ", ".join(map(repr, condition.values[:LISTED]))
        return f"{condition.left} in [{shown}, ... {len(condition.values):,} values]"
    if isinstance(condition, Not) and isinstance(condition.term, In):
        return in_words(condition.term).replace(" in [", " not in [", 1)
    text = str(condition)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


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
