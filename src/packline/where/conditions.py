"""Conditions as small frozen values, and their test on records, as JSON has them."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Value: TypeAlias = str | int | float | bool | None
Op: TypeAlias = Literal[
    "==", "!=", "in", "not in", "<", "<=", ">", ">=", "startswith", "endswith", "contains", "truth"
]
METHODS = ("startswith", "endswith", "contains")
OPPOSITE: dict[Op, Op] = {"==": "!=", "!=": "==", "in": "not in", "not in": "in"}
"""The others are false for None, and so is their opposite."""
NOT_NAMES = frozenset((*keyword.kwlist, "true", "false", "null"))
"""Words that are no fields: Python's own, and values in the spelling of JSON; `field('class')` names one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field, or a column of a store."""

    name: str
    is_length: bool = False
    """True for its length: characters of a string, or elements of a list."""

    @property
    def path(self) -> tuple[str, ...]:
        """Names from the outermost object to the field."""
        return tuple(self.name.split("."))

    def __str__(self) -> str:
        plain = all(part.isidentifier() and part not in NOT_NAMES for part in self.path)
        name = self.name if plain else f"field({self.name!r})"
        return f"len({name})" if self.is_length else name


@dataclass(frozen=True, slots=True)
class Term:
    """A question about one field."""

    left: Field
    op: Op
    value: Value | tuple[Value, ...]
    """Values for `in` and `not in`, True for `truth`."""

    def __str__(self) -> str:
        if self.op == "truth":
            return str(self.left)
        if self.op in METHODS:
            return f"{self.left}.{self.op}({self.value!r})"
        if isinstance(self.value, tuple):
            return f"{self.left} {self.op} [{', '.join(map(repr, self.value))}]"
        if self.value is None:
            return f"{self.left} {'is' if self.op == '==' else 'is not'} None"
        return f"{self.left} {self.op} {self.value!r}"


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    term: Condition

    def __str__(self) -> str:
        return f"not ({self.term})" if isinstance(self.term, Joined) else f"not {self.term}"


@dataclass(frozen=True, slots=True)
class Joined:
    """Two or more conditions of which all, or at least one, must hold."""

    word: Literal["and", "or"]
    terms: tuple[Condition, ...]

    def __str__(self) -> str:
        inner = (isinstance(one, Joined) and one.word == "or" for one in self.terms)
        shown = (f"({one})" if loose else str(one) for one, loose in zip(self.terms, inner, strict=True))
        return f" {self.word} ".join(shown)


Condition: TypeAlias = Term | Not | Joined


def negated(condition: Condition) -> Condition:
    """The opposite of a condition, in its shortest form."""
    if isinstance(condition, Not):
        return condition.term
    if isinstance(condition, Term) and condition.op in OPPOSITE:
        return replace(condition, op=OPPOSITE[condition.op])
    return Not(condition)


def conjunction(condition: Condition) -> tuple[Condition, ...]:
    """Terms that must all hold, in order."""
    if isinstance(condition, Joined) and condition.word == "and":
        return condition.terms
    return (condition,)


def terms_of(condition: Condition) -> Iterator[Term]:
    """All terms of a condition, from left to right."""
    if isinstance(condition, Joined):
        for one in condition.terms:
            yield from terms_of(one)
    elif isinstance(condition, Not):
        yield from terms_of(condition.term)
    else:
        yield condition


def fields_of(condition: Condition) -> tuple[str, ...]:
    """Names of the fields that a condition uses, in order."""
    return tuple(dict.fromkeys(term.left.name for term in terms_of(condition)))


def expected_fields(condition: Condition) -> tuple[str, ...]:
    """Names of the fields that some record should have: those that are not compared with None."""
    absent = {term.left.name for term in terms_of(condition) if term.op == "==" and term.value is None}
    return tuple(name for name in fields_of(condition) if name not in absent)


LISTED, LONGEST = 3, 60


def in_words(condition: Condition) -> str:
    """Short text of a condition for counts and tables: at most a few words of a long list.

    >>> from packline.where.grammar import parse_where
    >>> in_words(parse_where(f"a in {list(range(999))}"))
    'a in [0, 1, 2, ... 999 values]'
    """
    values = condition.value if isinstance(condition, Term) else None
    if isinstance(condition, Term) and isinstance(values, tuple) and len(values) > LISTED:
        shown = ", ".join(map(repr, values[:LISTED]))
        return f"{condition.left} {condition.op} [{shown}, ... {len(values):,} values]"
    text = str(condition)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


Record = dict[str, Any]
TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
    "truth": operator.is_,
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


def record_test(condition: Condition) -> Callable[[Record], bool]:
    """Build a function that returns True if a record meets a condition.

    The function raises `Incomparable` for a value that cannot be compared. `and` and `or` stop at the first
    term that decides.
    """
    if isinstance(condition, Joined):
        tests = [record_test(term) for term in condition.terms]
        decided = condition.word == "or"

        def joined(record: Record) -> bool:
            for test in tests:
                if test(record) is decided:
                    return decided
            return not decided

        return joined
    if isinstance(condition, Not):
        inner = record_test(condition.term)
        return lambda record: not inner(record)
    path = condition.left.path
    return lambda record: holds(condition, field_value(record, path))


def holds(term: Term, value: Any) -> bool:
    """True if the value of the term's field meets the term."""
    op, wanted = term.op, term.value
    if term.left.is_length and value is not None:
        if not isinstance(value, str | list):
            raise _incomparable(term, "a string or a list", value)
        value = len(value)
    if op in OPPOSITE:
        if isinstance(wanted, tuple):
            return any(same(value, one) for one in wanted) == (op == "in")
        return same(value, wanted) == (op == "==")
    if value is None:
        return False
    if op == "contains":
        if isinstance(value, list):
            return any(same(one, wanted) for one in value)
        if not isinstance(value, str) or not isinstance(wanted, str):
            raise _incomparable(term, "a list, or a string with a string in it", value)
    elif kind_of(value) != kind_of(wanted):
        raise _incomparable(term, f"a {kind_of(wanted)}", value)
    return TESTS[op](value, wanted)


def same(value: Any, wanted: Any) -> bool:
    """Equality as in JSON."""
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


def _incomparable(term: Term, expected: str, value: Any) -> Incomparable:
    shown = str(term) if len(str(term)) <= 60 else f"{str(term)[:57]}..."
    return Incomparable(f"field {term.left.name!r} in {shown}: expected {expected}, found a {kind_of(value)}")
