"""The grammar of `where` (docs/recipe.md, "Filters"): text to a small frozen value; nothing is executed.

`str` of a condition is its canonical text: equal for texts that differ in spacing, quotes, parentheses or the
side of a value, and parsed to the same condition. Fingerprints use it.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from functools import lru_cache
from typing import Literal, NoReturn, TypeAlias, cast

from packline.errors import RecipeError, did_you_mean
from packline.where.conditions import METHODS, Condition, Field, Joined, Op, Term, Value, negated

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
