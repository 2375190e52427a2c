"""Conditions: small frozen values, their test on records as JSON has them, and their grammar (docs/recipe.md,
"Filters"): text to a value, of which nothing is executed.

`str` of a condition is its canonical text: equal for texts that differ in spacing, quotes, parentheses or the
side of a value, and parsed to the same condition. Fingerprints use it.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeAlias, cast

from packline.errors import RecipeError, did_you_mean

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


FUNCTIONS = ("len", "field")
MOST_CHARACTERS = 1 << 20
EXCERPT = 30
"""Characters of a long text that an error shows on either side of the place."""


@lru_cache(maxsize=256)
def parse_where(text: str) -> Condition:
    """Parse a condition.

    >>> print(parse_where('3 <= score and  (not lang in ("de", "en"))'))
    score >= 3 and lang not in ['de', 'en']
    >>> parse_where("score => 3")
    Traceback (most recent call last):
    packline.errors.RecipeError: where, column 7 of 'score => 3': expected >=, found =>
    """
    return _Parser(text).parse()


def canonical_where(text: str, place: str = "") -> str:
    """Canonical text of a condition: equal texts have equal meaning."""
    try:
        return str(parse_where(text))
    except RecipeError as error:
        before = f"{place}: " if place else ""
        raise RecipeError(f"{before}{error.message}", hint=error.hint) from None


MEANT = {
    **{"&&": "and", "||": "or", "&": "and", "|": "or", "!": "not"},
    **{"=": "==", "=>": ">=", "=<": "<=", "<>": "!=", "===": "=="},
    **{"AND": "and", "OR": "or", "NOT": "not", "IN": "in", "IS": "is"},
    "LIKE": "contains, startswith or endswith",
}
_WORDS = re.compile(
    r"""(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<comment>\#)"""
    r"""|(?P<odd>&&?|\|\|?|===|=>|=<|<>|(?<![=!<>])=(?!=)|!(?!=)|\b(?:AND|OR|NOT|IN|IS|LIKE)\b)"""
)
FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
OPERATORS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"},
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="},
}
OTHER_VALUES = {"true": "True", "false": "False", "null": "None"}
Side: TypeAlias = Field | Value | tuple[Value, ...]
FORMS = (
    "a condition is field == value, field in [values], field is None, field.startswith('a'), "
    "field.contains('a') or len(field) > 3, joined by and, or, not"
)


class _Parser:
    """Conversion of Python's syntax tree, node by node; a node that is not listed is refused."""

    def __init__(self, text: str) -> None:
        self._text = text

    def parse(self) -> Condition:
        text = self._text
        if len(text) > MOST_CHARACTERS:
            raise RecipeError(f"where has {len(text):,} characters: expected at most {MOST_CHARACTERS:,}")
        line = re.sub(r"\s", " ", text)  # lines may end anywhere; columns stay
        if not line.strip():
            raise RecipeError("where is empty: expected a condition", hint=FORMS)
        for word in _WORDS.finditer(line):
            if word["comment"]:
                self._refuse(word.start(), "a condition without comments", "#")
        self._shift = len(line) - len(line.lstrip())
        self._line = line.strip().encode("utf-8", "surrogatepass")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # escapes that are none, such as "\d"
                tree = ast.parse(line.strip(), mode="eval")
            return self._condition(tree.body)
        except SyntaxError as error:
            self._refuse_syntax(line, error)
        except (RecursionError, MemoryError):
            raise RecipeError("where is nested too deeply", hint="in [...] takes many values") from None
        except RecipeError:
            raise
        except ValueError as error:  # a null byte, an integer of 5,000 digits, a lone surrogate
            raise RecipeError(f"where {_excerpt(text, 0)}: {error}", hint=FORMS) from None

    def _condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp(op=op, values=values):
                word: Literal["and", "or"] = "and" if isinstance(op, ast.And) else "or"
                terms: list[Condition] = []
                for term in map(self._condition, values):
                    terms += term.terms if isinstance(term, Joined) and term.word == word else (term,)
                return Joined(word, tuple(terms))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negated(self._condition(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                found = [self._comparison(*one) for one in zip([left, *others], ops, others, strict=False)]
                return found[0] if len(found) == 1 else Joined("and", tuple(found))
            case ast.Call(func=ast.Attribute() as function):
                return self._method(node, function)
        field = self._side(node)
        if isinstance(field, Field) and not field.is_length:
            return Term(field, "truth", True)
        self._refuse_node(node, "a condition")

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        op, one, other = OPERATORS[type(operator)], self._side(left), self._side(right)
        if op in ("in", "not in"):
            if isinstance(one, Field) and isinstance(other, tuple):
                return Term(one, cast("Op", op), other)
            if not isinstance(other, Field) or other.is_length or isinstance(one, Field | tuple | None):
                self._refuse_node(right, f"field {op} [values], or value {op} field")
            term = Term(other, "contains", one)
            return term if op == "in" else negated(term)
        if isinstance(other, Field) and not isinstance(one, Field):
            one, other, op = other, one, FLIPPED.get(op, op)
        if not isinstance(one, Field):
            self._refuse_node(left, "a field")
        if isinstance(other, tuple | Field):
            self._refuse_node(right, f"one value after {op}")
        if op in ("is", "is not"):
            if other is not None:
                self._refuse_node(right, f"None after {op}", "== and != take other values")
            op = "==" if op == "is" else "!="
        if op in FLIPPED and (isinstance(other, bool) or not isinstance(other, str | int | float)):
            self._refuse_node(right, f"a number or a string after {op}")
        return Term(one, cast("Op", op), other)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Condition:
        name = function.attr
        if name not in METHODS:
            place = self._column(function.end_col_offset or 0) - len(name)
            self._refuse(place, f"a method {', '.join(METHODS)}", name, did_you_mean(name, METHODS))
        field, values = self._side(function.value), list(map(self._side, node.args))
        kinds = (str, int, float) if name == "contains" else (str,)
        if not isinstance(field, Field) or field.is_length or node.keywords or len(values) != 1:
            self._refuse_node(node, f"field.{name}(...) with one value")
        if not isinstance(value := values[0], kinds):
            self._refuse_node(node.args[0], f"one {'value' if len(kinds) > 1 else 'string'} in {name}(...)")
        return Term(field, cast("Op", name), value)

    def _side(self, node: ast.expr) -> Side:
        """A side of a comparison: a field, a length, a value, or a list of values."""
        match node:
            case ast.Name() | ast.Attribute():
                return self._field(node)
            case ast.List() | ast.Tuple() | ast.Set():
                values = [self._side(one) for one in node.elts]
                for one, value in zip(node.elts, values, strict=True):
                    if isinstance(value, tuple | Field):
                        self._refuse_node(one, "a value in the list", "strings are in quotes")
                return tuple(cast("list[Value]", values))
            case ast.Constant(value=value):
                return self._value(node, value)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=number)):
                if isinstance(number, int | float) and not isinstance(number, bool):
                    return self._value(node, -number if isinstance(sign, ast.USub) else number)
            case ast.Call(func=ast.Name(id=name)):
                if name not in FUNCTIONS:
                    hint = did_you_mean(name, (*FUNCTIONS, *METHODS))
                    self._refuse_node(node, "len(...) or field(...)", hint)
                inner = self._side(node.args[0]) if len(node.args) == 1 and not node.keywords else None
                if name == "len" and isinstance(inner, Field) and not inner.is_length:
                    return Field(inner.name, is_length=True)
                if name == "field" and isinstance(inner, str) and all(inner.split(".")):
                    return Field(inner)
                self._refuse_node(node, "a field in len(...), or a name in field('...')")
        self._refuse_node(node, "a field, a value or a comparison")

    def _field(self, node: ast.Name | ast.Attribute) -> Field:
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self._refuse_node(node, "a field", "a name has dots alone: meta.score")
        name = ".".join([inner.id, *parts])
        written = self._source(node)
        if "".join(written.split()) != name:  # Python normalizes letters; parentheses
            self._refuse_node(node, f"the name {name}", f"field({written!r}) takes any name")
        if name in OTHER_VALUES:
            self._refuse_node(node, OTHER_VALUES[name], f"a field of that name is field({name!r})")
        return Field(name)

    def _value(self, node: ast.expr, value: object) -> Value:
        if isinstance(value, float) and math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < 2**53 else value
        if value is None or isinstance(value, str | bool | int):
            if isinstance(value, str):
                value.encode("utf-8")
            return value
        self._refuse_node(node, "a string, a finite number, True, False or None")

    def _source(self, node: ast.expr) -> str:
        return self._line[node.col_offset : node.end_col_offset].decode("utf-8", "surrogatepass")

    def _column(self, offset: int) -> int:
        """Place in the text, in characters from 0, of a place in its bytes."""
        return self._shift + len(self._line[:offset].decode("utf-8", "surrogatepass"))

    def _refuse_node(self, node: ast.expr, expected: str, hint: str = "") -> NoReturn:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            hint = f"did you mean {'and' if isinstance(node.op, ast.BitAnd) else 'or'}?"
        self._refuse(self._column(node.col_offset), expected, self._source(node), hint)

    def _refuse_syntax(self, line: str, error: SyntaxError) -> NoReturn:
        for word in _WORDS.finditer(line):
            if word["odd"]:
                self._refuse(word.start(), MEANT[word["odd"]], word["odd"])
        place = min(self._shift + error.offset - 1, len(line)) if error.offset else len(line)
        reason = (error.msg or "invalid syntax").split(". ")[0].split(" (")[0]
        self._refuse(place, f"a condition ({reason})", line[place:].split(" ")[0])

    def _refuse(self, place: int, expected: str, found: str, hint: str = "") -> NoReturn:
        shown = found if len(found) <= EXCERPT else f"{found[:EXCERPT]}..."
        where = f"where, column {place + 1} of {_excerpt(self._text, place)}"
        raise RecipeError(f"{where}: expected {expected}, found {shown or 'the end'}", hint=hint or FORMS)


def _excerpt(text: str, place: int) -> str:
    start, stop = max(place - EXCERPT, 0), min(place + EXCERPT, len(text))
    shown = repr(text[start:stop])
    return f"{'...' if start else ''}{shown}{'...' if stop < len(text) else ''}"
