"""Functions for templates: filters, tests and methods, each within the record's budget.

Jinja's own functions are used if they cannot produce large output from small input. Those that can (`join`,
`replace`, `tojson`, ...) are replaced here by versions that count their output in advance. Excluded are
functions that cannot be bounded (`center`, `format`, `indent` by any width), functions for HTML, and random
ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jinja2 import Undefined, pass_environment
from jinja2 import filters as jinja
from jinja2.sandbox import safe_range

from packline.sources.records import RecordProblem
from packline.sources.template_budget import TEXT_A_STEP, Budget

LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@pass_environment
def counted(environment: Any, values: Any) -> list[Any]:
    """Count the values of a loop."""
    return environment.budget.listed(values)


@pass_environment
def _made(environment: Any, value: Any) -> Any:
    """Count a list, tuple or object literal of the template."""
    environment.budget.copy(value)
    return value


@pass_environment
def _read(environment: Any, value: Any) -> Any:
    """Count a value that is compared or tested."""
    environment.budget.read(value)
    return value


@pass_environment
def _sliced(environment: Any, value: Any, *bounds: Any) -> Any:
    """`value[start:stop:step]`."""
    if isinstance(value, Undefined):
        str(value)  # says which one it is
    if not isinstance(value, str | list | tuple):
        raise RecordProblem("template", f"a {type(value).__name__} cannot be sliced")
    size = len(range(*slice(*bounds).indices(len(value))))
    spend = environment.budget.spend_characters if isinstance(value, str) else environment.budget.spend_steps
    spend(size)
    return value[slice(*bounds)]


def _over_list(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a list filter of Jinja: count its list and evaluate its result immediately."""
    wants_environment = getattr(function, "jinja_pass_arg", None) is not None

    @pass_environment
    def of_list(environment: Any, values: Any, *arguments: Any, **named: Any) -> Any:
        items = environment.budget.listed(values)
        environment.budget.read(items)
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
        items = list(map(jinja.make_attrgetter(environment, attribute), items))
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
def _map(environment: Any, values: Any, *, attribute: str | int, default: Any = None) -> list[Any]:
    field_of = jinja.make_attrgetter(environment, attribute)
    found = [field_of(item) for item in environment.budget.listed(values)]
    if default is None:
        return found
    environment.budget.copy(default, sum(isinstance(each, Undefined) for each in found))
    return [default if isinstance(each, Undefined) else each for each in found]


def _string(value: Any) -> str:
    if not isinstance(value, str):
        str(value)  # an undefined value raises an error with its name
        raise RecordProblem("template", f"expected a string, found a {type(value).__name__}")
    return value


def _text_filter(function: Callable[..., Any], *, as_string: bool = True) -> Callable[..., Any]:
    """Wrap a function whose cost is the length of its text; the value is passed as a string or unchanged."""

    @pass_environment
    def of_text(environment: Any, value: Any, *arguments: Any, **named: Any) -> Any:
        if as_string and not isinstance(value, str):
            value = str(value)
        environment.budget.spend_characters(len(value) if isinstance(value, str) else 0)
        return function(value, *arguments, **named)

    return of_text


def _select(
    environment: Any, values: Any, wanted: bool, attribute: str, test: str | None, value: Any
) -> list[Any]:
    found = []
    field_of = jinja.make_attrgetter(environment, attribute)
    for item in environment.budget.listed(values):
        field = field_of(item)
        environment.budget.read(field)
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
    """Split a text into at most as many pieces as there are steps left."""
    budget.spend_characters(len(text))
    most = budget.steps if maxsplit < 0 else min(maxsplit, budget.steps)
    found: list[str] = getattr(text, name)(separator, most)
    budget.spend_steps(len(found))
    return found


def _split_lines(budget: Budget, text: str, keepends: bool = False) -> list[str]:
    budget.spend_characters(len(text))
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
    "float": _text_filter(jinja.do_float, as_string=False),
    "int": _text_filter(_int, as_string=False),
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
    "string": _text_filter(str),
    "title": _text_filter(jinja.do_title),
    "tojson": _tojson,
    "trim": _text_filter(jinja.do_trim),
    "unique": _over_list(jinja.do_unique),
    "upper": _text_filter(jinja.do_upper),
    "wordcount": _text_filter(lambda text: jinja.do_wordcount(_string(text)), as_string=False),
}
"""Filters by name."""

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
"""Allowed methods and the types that have them."""


def call_method(name: str) -> Callable[..., Any]:
    """Wrap a method as a function of its value."""

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
        else:
            environment.budget.read([value, *arguments] if isinstance(value, list) else arguments)
        found = getattr(value, name)(*arguments, **named)
        return list(found) if name in ("items", "keys", "values") else found

    return method


OWN: dict[str, Callable[..., Any]] = {
    "__counted": counted,
    "__made": _made,
    "__range": safe_range,
    "__read": _read,
    "__sliced": _sliced,
    **{f"__{name}": call_method(name) for name in METHODS},
}
"""Replacements for loops, lists, comparisons, slices and calls; templates cannot name them."""
