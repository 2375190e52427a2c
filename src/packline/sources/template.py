"""Templates: the text of a document from the fields of a record, in Jinja, without access to anything else.

    template = "Question: {{ question }}\\n\\nAnswer: {{ answer | trim }}"

A template is data from a file, so it is limited to turning fields into text. Before any work, everything else
is refused: attributes of objects, calls of anything except a few methods of strings and objects, include,
import, macros. `a.b` looks up field b of field a, never an attribute: methods are replaced by filters before
the template is compiled. At run time, each record has a budget of loop steps and of characters, including
intermediate values (`packline.sources.sandbox`). `record` is the whole record, for fields whose names are not
identifiers.

Printing a missing or null field makes a bad record; `{{ title | default("", true) }}` provides a default.
Otherwise the output is that of plain Jinja, except that `tojson` does not escape for HTML.

Cost: about 5 to 20 microseconds per record. Threads may share a template.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, filters, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import safe_range
from jinja2.visitor import NodeTransformer

from packline.errors import RecipeError
from packline.sources.batch import RecordProblem, TemplateTimeout
from packline.sources.sandbox import BUDGET, Budget, Sandbox, join_values, json_text, through

MOST_CHARACTERS = 100_000
"""Maximum length of a template."""
WHOLE = "record"
LOOP = (
    *("index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"),
    *("previtem", "nextitem"),
)
"""Fields of `loop`."""
ALLOWED: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
    *(nodes.Name, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.CondExpr),
    *(nodes.Concat, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
)
"""Grammar: the part of Jinja that turns fields into text."""
TESTS = (
    *("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false"),
    *("mapping", "sequence", "iterable", "odd", "even", "divisibleby", "in", "lower", "upper"),
    *("eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">"),
    *("ge", ">="),
)
METHODS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"), (str,)),
    **dict.fromkeys(("upper", "lower", "title", "capitalize"), (str,)),
    **dict.fromkeys(("startswith", "endswith", "isdigit", "isalpha", "isspace", "find"), (str,)),
    **dict.fromkeys(("split", "rsplit", "splitlines"), (str,)),
    **dict.fromkeys(("items", "keys", "values", "get"), (dict,)),
    **dict.fromkeys(("count", "index"), (str, list)),
}
"""Allowed methods and the types that have them."""


class Template:
    """A template, checked and compiled.

    Args:
        source: the template.
        max_characters: maximum output per record, including intermediate values.

    Raises:
        RecipeError: not a template, or a forbidden operation; with its line.

    >>> template = Template("{{ title | upper }}: {{ words | join(', ') }}")
    >>> template.render({"title": "a", "words": ["b", "c"]}), template.fields
    ('A: b, c', ('title', 'words'))
    >>> Template("{{ ''.__class__ }}")
    Traceback (most recent call last):
    packline.errors.RecipeError: the template, line 1: '__class__' is an attribute of an object
    """

    def __init__(self, source: str, max_characters: int = 256 << 20) -> None:
        self.source = source
        if len(source) > MOST_CHARACTERS:
            raise RecipeError(
                f"the template has {len(source):,} characters: expected at most {MOST_CHARACTERS:,}"
            )
        self._environment = environment = _Fields(max_characters)
        try:
            tree = environment.parse(source)
            names = meta.TrackingCodeGenerator(environment)
            names.optimizer = None  # it would evaluate constant parts
            names.visit(tree)
            self._template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise _refusal(
                error.lineno, str(error.message), "a template is Jinja with fields, such as {{ title }}"
            ) from error
        except (RecursionError, SyntaxError) as error:  # from Python's compiler, for the compiled template
            raise RecipeError("the template is nested too deeply") from error
        used = names.undeclared_identifiers
        self.fields = None if WHOLE in used else tuple(sorted(used))
        """Top-level fields that it uses; None for all."""

    def render(self, record: dict[str, Any]) -> str:
        """Render the text of a record.

        Raises:
            RecordProblem: with reason `template`: a missing or null field is printed, an operation is not
                supported by its values, or the budget is exceeded.
            TemplateTimeout: it does not come to an end.
        """
        fields = record if self.fields is not None else {WHOLE: record, **record}
        try:
            parts = []
            stream, budget = self._environment.start(self._template, fields)
            for part in stream:
                budget.spend(0, len(part))
                parts.append(part)
            return "".join(parts)
        except (RecordProblem, TemplateTimeout):
            raise
        except SecurityError as error:
            raise RecordProblem("template", f"refused: {error}") from error
        except Exception as error:  # any error of the template's operations with the values of a record
            first = (str(error).splitlines() or [""])[0][:200]
            raise RecordProblem("template", f"{type(error).__name__}: {first}") from error


class _Missing(StrictUndefined):
    """A missing field; printing it fails, also inside a list."""

    __slots__ = ()
    __repr__ = StrictUndefined.__str__


@pass_context
def _printable(context: Context, value: Any) -> Any:
    if value is None:
        raise RecordProblem("template", "a value that is printed is null")
    return value


class _Fields(Sandbox):
    """Sandbox with fields only, without objects."""

    def __init__(self, max_characters: int) -> None:
        super().__init__(max_characters, undefined=_Missing, finalize=_printable)
        self.globals = {}
        self.filters = FILTERS | CALLS
        self.tests = {name: self.tests[name] for name in TESTS}
        self.bound()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Calls().visit(super()._parse(source, name, filename))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Field of a field, or a counter of `loop`."""
        if isinstance(obj, LoopContext) and attribute in LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An entry of an object, a list or a string."""
        if isinstance(obj, dict | list | tuple | str | range):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        elif isinstance(obj, Undefined):
            return obj[argument]
        return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, within the budget."""
        if isinstance(left, str) and operator == "%":
            raise RecordProblem("template", "'%' formats strings: print the values one by one instead")
        return super().call_binop(context, operator, left, right)

    def check(self, tree: nodes.Template) -> None:
        """Refuse everything except turning fields into text.

        Raises:
            RecipeError: the template contains something else; with its line.
        """
        for node in [tree, *tree.find_all(nodes.Node)]:
            if not isinstance(node, ALLOWED):
                word = type(node).__name__.lower()
                line = next((one.lineno for one in (node, *node.find_all(nodes.Node)) if one.lineno), 1)
                raise _refusal(line, f"{word!r} is not allowed in a template", "it reads one record only")
            name, line = _name_of(node), node.lineno
            if name is not None and name.startswith("__"):
                raise _refusal(line, f"{name!r} is an attribute of an object", "templates read fields only")
            if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
                hint = f"if it is a field, write [{node.attr!r}]"
                raise _refusal(line, f"{node.attr!r} looks like an attribute of an object", hint)
            if isinstance(node, nodes.Filter) and node.name not in FILTERS:
                raise _refusal(line, f"no filter {node.name!r}", f"there are {', '.join(sorted(FILTERS))}")
            if isinstance(node, nodes.Test) and node.name not in TESTS:
                raise _refusal(line, f"no test {node.name!r}", f"there are {', '.join(sorted(TESTS))}")
            if name == "self" and isinstance(node, nodes.Name):
                raise _refusal(line, "'self' is the template", 'for a field, write record["self"]')
            if isinstance(node, nodes.Filter) and node.name == "map" and node.args:
                raise _refusal(line, "'map' applies no filters", "it takes fields: map(attribute='name')")
            if isinstance(node, nodes.For):
                _check_loop(node)
            if isinstance(node, nodes.Call):
                _check_call(node)


def _check_loop(loop: nodes.For) -> None:
    if loop.recursive:
        raise _refusal(loop.lineno, "a loop that calls itself", "write the loops one inside the other")
    fields: list[Any] = [*loop.find_all(nodes.Getattr), *loop.find_all(nodes.Getitem)]
    counted = {id(one.node) for one in fields if _name_of(one) in LOOP}
    for node in (name for part in loop.body for name in part.find_all(nodes.Name)):
        if node.name == "loop" and id(node) not in counted:
            hint = f'it has {", ".join(sorted(LOOP))}; for a field, write record["loop"]'
            raise _refusal(node.lineno, "'loop' is not a value", hint)


def _check_call(node: nodes.Call) -> None:
    called, dynamic = node.node, node.dyn_args or node.dyn_kwargs
    if isinstance(called, nodes.Name) and called.name == "range":
        right = bool(node.args) and not (node.kwargs or dynamic)
    else:
        right = isinstance(called, nodes.Getattr) and called.attr in METHODS and not dynamic
    if not right:
        what = called.attr if isinstance(called, nodes.Getattr) else getattr(called, "name", "an expression")
        known = ", ".join(f".{name}()" for name in sorted(METHODS))
        raise _refusal(node.lineno, f"a call of {what!r}", f"there are range() and {known}")


def _name_of(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getitem):
        node = node.arg
        return node.value if isinstance(node, nodes.Const) and isinstance(node.value, str) else None
    of_kind = {nodes.Name: "name", nodes.Getattr: "attr", nodes.Keyword: "key"}.get(type(node))
    return None if of_kind is None else str(getattr(node, of_kind))


def _refusal(line: int, what: str, hint: str) -> RecipeError:
    return RecipeError(f"the template, line {line}: {what}", hint=hint)


class _Calls(NodeTransformer):
    """Calls as filters: `range(x, y)` of `x`, `a.strip(x)` of `a`; methods are never looked up on a value."""

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr):
            return through(f".{node.node.attr}", node.node.node, node.args, node.kwargs)
        return through("range()", node.args[0], node.args[1:])


def _method(name: str, value: Any, *arguments: Any, **named: Any) -> Any:
    if isinstance(value, Undefined):
        str(value)  # raises an error with its name
    if not isinstance(value, METHODS[name]):
        raise RecordProblem("template", f"a {type(value).__name__} has no {name}()")
    found = getattr(value, name)(*arguments, **named)
    return list(found) if name in ("items", "keys", "values") else found


def _list_filter(function: Callable[..., Any], *, with_environment: bool = False) -> Callable[..., Any]:
    """A filter whose value becomes a list first."""

    @pass_context
    def run(context: Context, values: Any, *arguments: Any, **named: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        items = budget.list_of(values)
        given = (context.environment, items) if with_environment else (items,)
        return function(*given, *arguments, **named)

    return run


def _string(value: Any) -> str:
    if not isinstance(value, str):
        str(value)  # an undefined value raises an error with its name
        raise RecordProblem("template", f"expected a string, found a {type(value).__name__}")
    return value


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    return _string(text).replace(_string(old), _string(new), count)


def _round(value: float, precision: int = 0) -> float:
    if not 0 <= precision <= 15:
        raise RecordProblem("template", f"round: precision is {precision}, expected 0 to 15")
    return round(value, precision)


@pass_context
def _map(context: Context, values: Any, *, attribute: str | int, default: Any = None) -> list[Any]:
    budget: Budget = context.parent[BUDGET]
    field_of = filters.make_attrgetter(context.environment, attribute)
    found = [field_of(item) for item in budget.list_of(values)]
    if default is None:
        return found
    budget.copy(default, sum(isinstance(each, Undefined) for each in found))
    return [default if isinstance(each, Undefined) else each for each in found]


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "capitalize": filters.do_capitalize,
    "count": len,
    "d": filters.do_default,
    "default": filters.do_default,
    "dictsort": filters.do_dictsort,
    "first": _list_filter(lambda values: values[0] if values else ""),
    "float": filters.do_float,
    "int": lambda value, default=0: filters.do_int(value, default),
    "items": filters.do_items,
    "join": join_values,
    "last": _list_filter(lambda values: values[-1] if values else ""),
    "length": len,
    "list": _list_filter(list),
    "lower": filters.do_lower,
    "map": _map,
    "max": _list_filter(filters.do_max, with_environment=True),
    "min": _list_filter(filters.do_min, with_environment=True),
    "rejectattr": filters.sync_do_rejectattr,
    "replace": _replace,
    "reverse": _list_filter(lambda values: values[::-1]),
    "round": _round,
    "selectattr": filters.sync_do_selectattr,
    "sort": _list_filter(filters.do_sort, with_environment=True),
    "string": str,
    "title": filters.do_title,
    "tojson": json_text,
    "trim": filters.do_trim,
    "unique": _list_filter(filters.sync_do_unique, with_environment=True),
    "upper": filters.do_upper,
    "wordcount": lambda text: filters.do_wordcount(_string(text)),
}
"""Filters by name: Jinja's, except for those with other needs."""
CALLS: dict[str, Callable[..., Any]] = {
    "range()": safe_range,
    **{f".{name}": partial(_method, name) for name in METHODS},
}
"""Calls as filters; templates cannot name them."""
