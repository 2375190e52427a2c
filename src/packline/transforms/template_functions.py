"""What a template may call: filters, tests and methods, each within the record's budget.

Jinja's own are taken where they cannot make much out of little. Those that can (`join`, `replace`, `tojson`,
...) are here, and say beforehand what they would make. Left out is what cannot be bounded (`center`,
`format`, `indent` by any width), what is about HTML, and what chance has a part in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from jinja2 import Undefined, pass_environment
from jinja2 import filters as jinja

from packline.sources.records import RecordProblem

MOST_BITS = 4096
"""Of a whole number: a product of products is soon too long to print."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
TEXT_A_STEP = 1 << 20
"""Searching this much text is a step, so that loops that search are bounded too."""


class Budget:
    """What one record may cost.

    Args:
        steps: of loops.
        characters: of text that is made, whether it is printed or not.
    """

    def __init__(self, steps: int, characters: int) -> None:
        self._most = steps, characters
        self.refill()

    @property
    def steps(self) -> int:
        """Those that are left."""
        return self._steps

    def refill(self) -> None:
        """Begin the next record."""
        self._steps, self._characters = self._most

    def spend_steps(self, count: int) -> None:
        """Count steps of a loop, before it runs."""
        self._steps -= count
        if self._steps < 0:
            raise RecordProblem("template", f"its loops take more than {self._most[0]:,} steps")

    def spend_characters(self, count: int) -> None:
        """Count text, before it is made."""
        self._characters -= count
        if self._characters < 0:
            raise RecordProblem("template", f"it makes more than {self._most[1]:,} characters")

    def write(self, part: str) -> None:
        """Count a part of the output."""
        self.spend_characters(len(part))

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Count what an operator would make.

        Raises:
            RecordProblem: of `%` with a string, or too much.
        """
        if isinstance(left, str) and operator == "%":
            raise RecordProblem("template", "'%' formats strings: print the values one by one instead")
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    size = len(many) * max(times, 0)
                    self.spend_characters(size) if isinstance(many, str) else self.spend_steps(size)
            whole = isinstance(left, int) and isinstance(right, int)
            if whole and left.bit_length() + right.bit_length() > MOST_BITS:
                raise RecordProblem("template", f"a number of more than {MOST_BITS} bits")
        if operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                self.spend_characters(len(left) + len(right))
            elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
                self.spend_steps(len(left) + len(right))

    def listed(self, values: Any) -> list[Any]:
        """The values of a list, an object (its names), a string or an iterator, counted as steps."""
        if isinstance(values, Undefined):
            iter(values)  # says which one it is
        if isinstance(values, list | tuple | dict | str | range):
            self.spend_steps(len(values))
            return list(values)
        if not isinstance(values, Iterable):
            raise RecordProblem("template", f"a {type(values).__name__} has nothing to loop over")
        found = list(islice(values, self._steps + 1))
        self.spend_steps(len(found))
        return found


@pass_environment
def counted(environment: Any, values: Any) -> list[Any]:
    """What a loop runs over."""
    return environment.budget.listed(values)


def _over_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of Jinja's filters of lists, its list counted and its result made at once."""
    wants_environment = getattr(function, "jinja_pass_arg", None) is not None

    @pass_environment
    def of_list(environment: Any, values: Any, *arguments: Any, **named: Any) -> Any:
        items = environment.budget.listed(values)
        found = (
            function(environment, items, *arguments, **named)
            if wants_environment
            else function(items, *arguments, **named)
        )
        return (
            found
            if isinstance(found, str | list | dict | int | float | type(None) | Undefined)
            else list(found)
        )

    return of_list


@pass_environment
def _join(environment: Any, values: Any, separator: str = "", attribute: Any = None) -> str:
    items = environment.budget.listed(values)
    if attribute is not None:
        items = [environment.getitem(item, attribute) for item in items]
    return environment.joined(tuple(part for item in items for part in (separator, item))[1:])


@pass_environment
def _replace(environment: Any, text: Any, old: str, new: str, count: int = -1) -> str:
    text, old, new = _string(text), _string(old), _string(new)
    environment.budget.spend_steps(len(text) // TEXT_A_STEP + 1)
    found = text.count(old) if count < 0 else min(text.count(old), count)
    environment.budget.spend_characters(len(text) + found * max(len(new) - len(old), 0))
    return text.replace(old, new, count)


@pass_environment
def _tojson(environment: Any, value: Any, indent: int | None = None) -> str:
    if indent is not None and not 0 <= indent <= 8:
        raise RecordProblem("template", f"tojson: indent is {indent}, expected 0 to 8")
    made = json.dumps(value, ensure_ascii=False, indent=indent)
    environment.budget.spend_characters(len(made))
    return made


def _round(value: float, precision: int = 0) -> float:
    if not 0 <= precision <= 15:
        raise RecordProblem("template", f"round: precision is {precision}, expected 0 to 15")
    return round(value, precision)


def _int(value: Any, default: int = 0) -> int:
    return jinja.do_int(value, default)


@pass_environment
def _map(environment: Any, values: Any, attribute: str, default: Any = None) -> list[Any]:
    found = [environment.getitem(item, attribute) for item in environment.budget.listed(values)]
    return [default if isinstance(each, Undefined) and default is not None else each for each in found]


@pass_environment
def _string_of(environment: Any, value: Any) -> str:
    made = str(value)
    environment.budget.spend_characters(len(made))
    return made


def _string(value: Any) -> str:
    if not isinstance(value, str):
        str(value)  # an undefined one says its name
        raise RecordProblem("template", f"expected a string, found a {type(value).__name__}")
    return value


def _text_filter(function: Callable[..., str]) -> Callable[..., str]:
    """A function of a string that makes about as much of it."""

    @pass_environment
    def of_text(environment: Any, value: Any, *arguments: Any, **named: Any) -> str:
        text = value if isinstance(value, str) else str(value)
        environment.budget.spend_characters(len(text))
        return function(text, *arguments, **named)

    return of_text


def _select(
    environment: Any, values: Any, wanted: bool, attribute: str, test: str | None, value: Any
) -> list[Any]:
    found = []
    for item in environment.budget.listed(values):
        field = environment.getitem(item, attribute)
        arguments = [] if value is None else [value]
        passes = bool(field) if test is None else environment.call_test(test, field, arguments)
        if passes == wanted:
            found.append(item)
    return found


@pass_environment
def _selectattr(
    environment: Any, values: Any, attribute: str, test: str | None = None, value: Any = None
) -> Any:
    return _select(environment, values, True, attribute, test, value)


@pass_environment
def _rejectattr(
    environment: Any, values: Any, attribute: str, test: str | None = None, value: Any = None
) -> Any:
    return _select(environment, values, False, attribute, test, value)


def _split(
    budget: Budget, text: str, name: str, separator: str | None = None, maxsplit: int = -1
) -> list[str]:
    """Pieces of a text; no more are made than there are steps left."""
    most = budget.steps if maxsplit < 0 else min(maxsplit, budget.steps)
    found: list[str] = getattr(text, name)(separator, most)
    budget.spend_steps(len(found))
    return found


def _split_lines(budget: Budget, text: str, keepends: bool = False) -> list[str]:
    budget.spend_steps(sum(text.count(end) for end in LINE_ENDS) + 1)
    return text.splitlines(keepends)


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "capitalize": _text_filter(jinja.do_capitalize),
    "count": len,
    "d": jinja.do_default,
    "default": jinja.do_default,
    "dictsort": jinja.do_dictsort,
    "first": _over_list(lambda values: values[0] if values else ""),
    "float": jinja.do_float,
    "int": _int,
    "items": lambda value: list(jinja.do_items(value)),
    "join": _join,
    "last": _over_list(lambda values: values[-1] if values else ""),
    "length": len,
    "list": counted,
    "lower": _text_filter(jinja.do_lower),
    "map": _map,
    "max": _over_list(jinja.do_max),
    "min": _over_list(jinja.do_min),
    "rejectattr": _rejectattr,
    "replace": _replace,
    "reverse": _over_list(lambda values: values[::-1]),
    "round": _round,
    "selectattr": _selectattr,
    "sort": _over_list(jinja.do_sort),
    "string": _string_of,
    "title": _text_filter(jinja.do_title),
    "tojson": _tojson,
    "trim": _text_filter(jinja.do_trim),
    "unique": _over_list(jinja.do_unique),
    "upper": _text_filter(jinja.do_upper),
    "wordcount": lambda text: jinja.do_wordcount(_string(text)),
}
"""By name."""

TESTS = frozenset(
    [
        *("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false"),
        *("mapping", "sequence", "iterable", "odd", "even", "divisibleby", "in", "lower", "upper"),
        *("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">"),
        *("ge", ">="),
    ]
)

METHODS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"), (str,)),
    **dict.fromkeys(("upper", "lower", "title", "capitalize"), (str,)),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isspace", "find"), (str,)),
    **dict.fromkeys(("split", "rsplit", "splitlines"), (str,)),
    **dict.fromkeys(("items", "keys", "values", "get"), (dict,)),
    "count": (str, list),
    "index": (str, list),
}
"""Methods that may be called, and of what."""


def call_method(name: str) -> Callable[..., Any]:
    """A method as a function of its value."""

    @pass_environment
    def method(environment: Any, value: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(value, Undefined):
            str(value)  # says which one it is
        if not isinstance(value, METHODS[name]):
            raise RecordProblem("template", f"a {type(value).__name__} has no {name}()")
        if name in ("split", "rsplit"):
            return _split(environment.budget, str(value), name, *arguments, **named)
        if name == "splitlines":
            return _split_lines(environment.budget, str(value), *arguments, **named)
        if isinstance(value, str):
            environment.budget.spend_steps(len(value) // TEXT_A_STEP + 1)
            environment.budget.spend_characters(len(value) if name not in ("startswith", "endswith") else 0)
        found = getattr(value, name)(*arguments, **named)
        return list(found) if name in ("items", "keys", "values") else found

    return method
