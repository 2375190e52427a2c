"""Conditions as small frozen values; `str` of one is its canonical text."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
