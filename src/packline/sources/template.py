"""Templates: the text of a document from the fields of a record, in Jinja, without access to anything else.

What does not turn fields into text is refused before any work: imports, macros, calls of anything except
`range` and a few methods. `a.b` is field b of field a, never an attribute: methods are replaced by filters
before compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, meta, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import safe_range
from jinja2.visitor import NodeTransformer

from packline.errors import RecipeError
from packline.sources.batch import RecordProblem, TemplateTimeout
from packline.sources.sandbox import BUDGET, Sandbox, measure, through

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

    >>> template = Template("{{ title | upper }}: {{ words | join(', ') }}")
    >>> template.render({"title": "a", "words": ["b", "c"]}), template.fields
    ('A: b, c', ('title', 'words'))
    >>> Template("{{ ''.__class__ }}")
    Traceback (most recent call last):
    packline.errors.RecipeError: the template, line 1: '__class__' is not a field
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
    if type(value) is not str:
        measure(value, context.parent[BUDGET].steps)  # refuses what has no text
    return value


class _Fields(Sandbox):
    """Sandbox with fields only, without objects."""

    def __init__(self, max_characters: int) -> None:
        super().__init__(max_characters, undefined=_Missing, finalize=_printable)
        self.globals = {}
        self.filters.update(CALLS, first=_end(0), last=_end(-1))
        self.bound()

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Calls().visit(super()._parse(source, name, filename))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, LoopContext) and attribute in LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict | list | tuple | str | range):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        elif isinstance(obj, Undefined):
            return obj[argument]
        return self.undefined(obj=obj, name=argument)

    def check(self, tree: nodes.Template) -> None:
        """Refuse everything except turning fields into text."""
        for node in [tree, *tree.find_all(nodes.Node)]:
            if not isinstance(node, ALLOWED):
                word = type(node).__name__.lower()
                line = next((one.lineno for one in (node, *node.find_all(nodes.Node)) if one.lineno), 1)
                raise _refusal(line, f"{word!r} is not allowed in a template", "it reads one record only")
            name = node.name if isinstance(node, nodes.Name) else getattr(node, "attr", "")
            if name == "self" or name.startswith("__" if isinstance(node, nodes.Name) else "_"):
                raise _refusal(node.lineno, f"{name!r} is not a field", f"for one, write record[{name!r}]")
            if isinstance(node, nodes.Call):
                _check_call(node)


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


def _end(place: int) -> Callable[..., Any]:
    @pass_context
    def run(context: Context, values: Any) -> Any:
        items = context.parent[BUDGET].list_of(values)
        return items[place] if items else ""

    return run


CALLS: dict[str, Callable[..., Any]] = {
    "range()": safe_range,
    **{f".{name}": partial(_method, name) for name in METHODS},
}
"""Calls as filters, under names that no template can write."""
