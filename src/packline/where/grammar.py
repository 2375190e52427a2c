"""The grammar of `where`: text to a condition, a small frozen value; nothing is executed.

    score >= 3 and language in ['de', 'en'] and not url.startswith('http://spam')

    condition   a and b, a or b, not a, (a)
    term        field == value        !=  <  <=  >  >=; chained: 1 <= field < 3
                field in [values]     not in
                field is None         is not None
                field.startswith('a')   field.endswith('a')   field.contains('a'), which is 'a' in field
                field                 a boolean field that is True
    field       name, or a.b for a nested one; field('any name') for names that are not words
                len(field): characters of a string, elements of a list
    value       'text', 3, -0.5, True, False, None

One meaning for every evaluator (`records`, `columns`):

- Values are compared as in JSON: 1 equals 1.0, but neither '1' nor True.
- A missing field and null are None. None equals itself alone; an order comparison and a method are False for
  it. So a record without a score passes `score is None`, `score != 3` and `score not in [3]`, no comparison
  such as `score < 3`, and therefore also `not score < 3`.
- An order comparison of a number with a string, or a method of a value without it, has no answer: a bad
  record in a build, an error in a selection.

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
    """Canonical text of a condition: equal texts have equal meaning.

    >>> canonical_where('( url.startswith("http:") )')
    "url.startswith('http:')"
    """
    try:
        return str(parse_where(text))
    except RecipeError as error:
        before = f"{place}: " if place else ""
        raise RecipeError(f"{before}{error.message}", hint=error.hint) from None


MEANT = {
    "&&": "and",
    "||": "or",
    "&": "and",
    "|": "or",
    "!": "not",
    "=": "==",
    "=>": ">=",
    "=<": "<=",
    "<>": "!=",
    "===": "==",
    "AND": "and",
    "OR": "or",
    "NOT": "not",
    "IN": "in",
    "IS": "is",
    "LIKE": "contains, startswith or endswith",
}
"""Spellings of other languages."""
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
        if "'''" in line or '"""' in line:
            place = min(place for place in (line.find("'''"), line.find('"""')) if place >= 0)
            self._refuse(place, "a string in single quotes", line[place : place + 3])
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
        if isinstance(node, ast.BoolOp):
            word: Literal["and", "or"] = "and" if isinstance(node.op, ast.And) else "or"
            terms: list[Condition] = []
            for value in node.values:
                term = self._condition(value)
                alike = isinstance(term, Joined) and term.word == word
                terms += term.terms if isinstance(term, Joined) and alike else (term,)
            return Joined(word, tuple(terms))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return negated(self._condition(node.operand))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = [self._comparison(*one) for one in zip(sides, node.ops, sides[1:], strict=False)]
            return found[0] if len(found) == 1 else Joined("and", tuple(found))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._method(node, node.func)
        left = self._side(node)
        if isinstance(left, Field) and not left.is_length:
            return Term(left, "truth", True)
        self._refuse_node(node, "a condition")

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition:
        op, one, other = OPERATORS[type(operator)], self._side(left), self._side(right)
        if op in ("in", "not in"):
            return self._membership(op, (left, one), (right, other))
        if isinstance(one, Field) and isinstance(other, Field):
            self._refuse_node(right, "a value", also="one side of a comparison is a value")
        if isinstance(other, Field):
            one, other, op = other, one, FLIPPED.get(op, op)
        if not isinstance(one, Field):
            self._refuse_node(left, "a field")
        if isinstance(other, tuple | Field):
            self._refuse_node(right, f"one value after {op}", also="in takes a list")
        if op in ("is", "is not"):
            if other is not None:
                self._refuse_node(right, f"None after {op}", also="== and != take other values")
            op = "==" if op == "is" else "!="
        if op in FLIPPED and (isinstance(other, bool) or not isinstance(other, str | int | float)):
            self._refuse_node(right, f"a number or a string after {op}")
        return Term(one, cast("Op", op), other)

    def _membership(self, op: str, left: tuple[ast.expr, Side], right: tuple[ast.expr, Side]) -> Condition:
        one, other = left[1], right[1]
        if isinstance(one, Field) and isinstance(other, tuple):
            return Term(one, cast("Op", op), other)
        if isinstance(one, Field):
            self._refuse_node(
                right[0], "a list of values after in", also="for example language in ['de', 'en']"
            )
        if not isinstance(other, Field) or other.is_length:
            self._refuse_node(right[0], "a field after in" if not isinstance(one, tuple) else "one value")
        if isinstance(one, tuple) or one is None:
            self._refuse_node(left[0], "one value before in")
        term = Term(other, "contains", one)
        return term if op == "in" else negated(term)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Condition:
        name = function.attr
        if name not in METHODS:
            self._refuse(
                self._column(function, ended=True) - len(name),
                "a method " + ", ".join(METHODS[:-1]) + f" or {METHODS[-1]}",
                name,
                hint=did_you_mean(name, METHODS),
            )
        field = self._side(function.value)
        if not isinstance(field, Field) or field.is_length:
            self._refuse_node(function.value, "a field")
        value = self._only_argument(node)
        kinds = (str, int, float) if name == "contains" else (str,)
        if not isinstance(value, kinds):
            kind = "one value" if name == "contains" else "one string"
            self._refuse_node(node.args[0], f"{kind} in {name}(...)")
        return Term(field, cast("Op", name), value)

    def _only_argument(self, node: ast.Call) -> Side:
        if len(node.args) != 1 or node.keywords:
            self._refuse_node(node, "one argument in parentheses")
        return self._side(node.args[0])

    def _side(self, node: ast.expr) -> Side:
        """A side of a comparison: a field, a length, a value, or a list of values."""
        match node:
            case ast.Name() | ast.Attribute():
                return self._field(node)
            case ast.List() | ast.Tuple() | ast.Set():
                values = [self._side(one) for one in node.elts]
                for one, value in zip(node.elts, values, strict=True):
                    if isinstance(value, tuple | Field):
                        self._refuse_node(one, "a value in the list", also="strings are in quotes")
                return tuple(cast("list[Value]", values))
            case ast.Constant():
                return self._value(node, node.value)
            case ast.UnaryOp(
                op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float() as number)
            ):
                if not isinstance(number, bool):
                    return self._value(node, -number if isinstance(node.op, ast.USub) else number)
            case ast.Call(func=ast.Name(id=name)):
                return self._function(node, name)
        self._refuse_node(node, "a field, a value or a comparison")

    def _function(self, node: ast.Call, name: str) -> Field:
        if name not in FUNCTIONS:
            hint = did_you_mean(name, (*FUNCTIONS, *METHODS))
            self._refuse(self._column(node), "len(...) or field(...)", f"{name}(...)", hint=hint)
        inner = self._only_argument(node)
        if name == "len" and isinstance(inner, Field) and not inner.is_length:
            return Field(inner.name, is_length=True)
        if name == "field" and isinstance(inner, str) and all(inner.split(".")):
            return Field(inner)
        self._refuse_node(node.args[0], "a field in len(...)" if name == "len" else "a name in field(...)")

    def _field(self, node: ast.Name | ast.Attribute) -> Field:
        parts: list[str] = []
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            parts.insert(0, inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            self._refuse_node(node, "a field", also="a name has dots alone: meta.score")
        name = ".".join([inner.id, *parts])
        written = self._source(node)
        if "".join(written.split()) != name:  # Python normalizes letters; parentheses
            self._refuse_node(node, f"the name {name}", also=f"field({written!r}) takes any name")
        if name in OTHER_VALUES:
            self._refuse_node(node, OTHER_VALUES[name], also=f"a field of that name is field({name!r})")
        return Field(name)

    def _value(self, node: ast.expr, value: object) -> Value:
        if isinstance(value, float):
            if not math.isfinite(value):
                self._refuse_node(node, "a finite number")
            return int(value) if value.is_integer() and abs(value) < 2**53 else value
        if value is None or isinstance(value, str | bool | int):
            if isinstance(value, str):
                value.encode("utf-8")
            return value
        self._refuse_node(node, "a string, a number, True, False or None")

    def _source(self, node: ast.expr) -> str:
        return self._line[node.col_offset : node.end_col_offset].decode("utf-8", "surrogatepass")

    def _column(self, node: ast.expr, *, ended: bool = False) -> int:
        """Place of a node in the text, in characters, from 0."""
        place = cast("int", node.end_col_offset) if ended else node.col_offset
        return self._shift + len(self._line[:place].decode("utf-8", "surrogatepass"))

    def _refuse_node(self, node: ast.expr, expected: str, *, also: str = "") -> NoReturn:
        hint = also or FORMS
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            hint = f"did you mean {'and' if isinstance(node.op, ast.BitAnd) else 'or'}?"
        found = self._source(node)
        self._refuse(self._column(node), expected, _shortened(found), hint=hint)

    def _refuse_syntax(self, line: str, error: SyntaxError) -> NoReturn:
        for word in _WORDS.finditer(line):
            if word["odd"]:
                self._refuse(word.start(), MEANT[word["odd"]], word["odd"])
        place = self._shift + error.offset - 1 if error.offset else len(line)
        rest = line[place:].split(" ")[0] if place < len(line) else ""
        found = _shortened(rest) or "the end"
        reason = (error.msg or "invalid syntax").split(". ")[0].split(" (")[0]
        self._refuse(min(place, len(line)), f"a condition ({reason})", found)

    def _refuse(self, place: int, expected: str, found: str, *, hint: str = "") -> NoReturn:
        raise RecipeError(
            f"where, column {place + 1} of {_excerpt(self._text, place)}: expected {expected}, found {found}",
            hint=hint or FORMS,
        )


def _shortened(text: str) -> str:
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."


def _excerpt(text: str, place: int) -> str:
    start, stop = max(place - EXCERPT, 0), min(place + EXCERPT, len(text))
    shown = repr(text[start:stop])
    return f"{'...' if start else ''}{shown}{'...' if stop < len(text) else ''}"
