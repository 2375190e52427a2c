"""Jinja's immutable sandbox, with counts of what a template does for one record.

    steps         repetitions of loops, calls, filters, entries of lists     1,000,000       a bad record
    characters    all text that is produced, printed or not                  by the caller   a bad record
    seconds       processor time of the thread                               60              stops the job

Steps and characters are counted before they are spent, and equally on every machine. A value put into a list
counts with everything in it: a list that contains one list twice, which contains another twice, and so on,
takes no memory until it is printed or compared. Values that are no JSON values are not printed, as their text
has addresses.

The sandbox passes calls and operators to `call` and `call_binop`. Loops, literals, slices and `~` have no
such hook, so the parsed template is changed to send their values through filters (`_Hooks`). Every operation
takes a time linear in its values, so the clock, which is read when something is counted, ends a template
without signals or processes.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from time import monotonic, thread_time
from types import BuiltinMethodType, MappingProxyType
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg
from jinja2.visitor import NodeTransformer

from packline.sources.batch import RecordProblem, TemplateTimeout

MOST_STEPS = 1_000_000
MOST_SECONDS = 60.0
MOST_BITS = 4096
"""Maximum bits of a product: repeated products are soon too long to print."""
MOST_WIDTH = 9999
"""Maximum width that a filter, a method or a format may request."""
MOST_INDENT = 16
CONTAINERS = (list, tuple, dict)
PRINTED = (*CONTAINERS, str, int, float, type(None), range, Undefined)
"""Types of values that have a text of their own."""
BUDGET = "the budget"
"""Variable of the budget: no identifier, so no template can name it."""
CHOOSING = frozenset(("d", "default", "first", "last", "max", "min", "get"))
"""Filters and methods that return an existing value, so their result is not counted."""
FORMATS = frozenset(("%", "format", "format_map"))
GROWING = {**dict.fromkeys(FORMATS, "{%"), "expandtabs": "\t", "indent": "\n", "translate": ""}
"""Operations that may insert their arguments at each of these characters in a text; "" is each character."""
WIDTHS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "round"))
"""Filters and methods whose integer arguments determine the size of the result."""
WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})|\{[^{}]*:[^{}]*(?:\{|\d{5})")
"""A format with a large width, or one from a value."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
SHRINKING = frozenset(("strip", "lstrip", "rstrip", "startswith", "endswith", "partition", "rpartition"))
"""Methods of text that make no more text than there was, which templates call most."""
UNBOUND = ("random", "striptags", "urlize", "wordwrap", "xmlattr")
"""Filters without order or bounds, or for HTML alone."""


def measure(value: Any, most: int) -> tuple[int, int]:
    """Count the values in a value, at any depth, and the characters of text.

    Stops once there are more values than `most`.
    """
    values = characters = 0
    rest = [value]
    while rest and values <= most:
        one = rest.pop()
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, CONTAINERS):
            values += len(one)
            rest += one if not isinstance(one, dict) else (*one, *one.values())
        elif not isinstance(one, PRINTED):
            raise RecordProblem("template", f"a {type(one).__name__} has no text")
    return values, characters


class Budget:
    """Counts of one record; the clock runs from the start."""

    __slots__ = ("_alarm", "_began", "_most", "characters", "steps")

    def __init__(self, most: int) -> None:
        self._most = most
        self.steps, self.characters = MOST_STEPS, most
        self._began, self._alarm = thread_time(), monotonic() + MOST_SECONDS

    def spend(self, steps: int = 0, characters: int = 0) -> None:
        """Count steps and text, before the work is done."""
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0:
            raise RecordProblem("template", f"its loops take more than {MOST_STEPS:,} steps")
        if self.characters < 0:
            self.need(0)
        if monotonic() > self._alarm:
            left = self._began + MOST_SECONDS - thread_time()
            if left <= 0:
                raise TemplateTimeout(f"the template took {MOST_SECONDS:g} seconds of processor time")
            self._alarm = monotonic() + left

    def need(self, characters: int) -> None:
        """Refuse an operation that might produce more text than is left."""
        if characters > self.characters:
            raise RecordProblem("template", f"it makes more than {self._most:,} characters")

    def copy(self, value: Any, times: int = 1) -> None:
        """Count a value with everything in it, before it is printed or put into another one."""
        if type(value) is str:
            self.spend(0, len(value) * times)
            return
        values, characters = measure(value, self.steps)
        self.spend(values * times, characters * times)

    def made(self, value: Any) -> Any:
        """Count a new string or list; an iterator becomes a list."""
        if isinstance(value, str):
            self.spend(characters=len(value))
        elif isinstance(value, CONTAINERS):
            self.spend(len(value))
        elif isinstance(value, Iterator) and not isinstance(value, LoopContext):
            return self.list_of(value)
        return value

    def list_of(self, values: Any) -> list[Any]:
        """The values of a list, an object (its names), a string or an iterator, counted as steps."""
        if isinstance(values, list | tuple | dict | str | range):
            self.spend(len(values))
            return list(values)
        if not isinstance(values, Iterable):
            raise RecordProblem("template", f"a {type(values).__name__} has nothing to loop over")
        found = list(islice(values, self.steps + 1))
        self.spend(len(found))
        return found

    def operate(self, operator: str, left: Any, right: Any) -> None:
        if operator == "**":
            raise SecurityError("a template has no use for powers")
        if operator == "%" and isinstance(left, str):
            self._grow(operator, left, (right,))
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    self.copy(many, max(times, 0))
            whole = isinstance(left, int) and isinstance(right, int)
            if whole and left.bit_length() + right.bit_length() > MOST_BITS:
                raise RecordProblem("template", f"a number of more than {MOST_BITS} bits")
        elif operator == "+" and isinstance(left, str | list | tuple):
            self.copy(left)
            self.copy(right)

    def apply(
        self,
        name: str,
        function: Callable[..., Any],
        value: Any,
        given: Any = (),
        named: Any = MappingProxyType({}),
    ) -> Any:
        """Call a filter or method of a value, with its result counted."""
        self.spend(1)
        arguments = (*given, *named.values())
        for each in arguments if name in WIDTHS else ():
            if isinstance(each, int) and abs(each) > MOST_WIDTH:
                raise RecordProblem("template", f"{name}: {each} is more than {MOST_WIDTH:,}")
        if name == "sum" and any(isinstance(each, CONTAINERS) for each in arguments):
            raise RecordProblem("template", "sum: lists are joined by +")
        if isinstance(value, str):
            self._grow(name, value, arguments)
        found = function(value, *given, **named)
        if found is value or name in CHOOSING:
            return found
        if isinstance(found, str) and not isinstance(value, str):
            measure(value, self.steps)  # an object that has no text
        made = self.made(found)
        if arguments and any(isinstance(each, CONTAINERS) for each in arguments):
            self.copy(made)  # it may hold an argument many times
        return made

    def _grow(self, name: str, text: str, given: Sequence[Any]) -> None:
        """Check that the result of an operation on a text is within the budget."""
        if name in GROWING:
            if name in FORMATS and WIDE.search(text):
                raise RecordProblem("template", f"a format with a width of more than {MOST_WIDTH:,}")
            size = measure([*given], self.steps)[1] + (MOST_WIDTH if name in FORMATS else 8)
            size += sum(abs(each) for each in given if isinstance(each, int)) if name in WIDTHS else 0
            places = sum(map(text.count, GROWING[name])) if GROWING[name] else len(text)
            self.need(places * size)
        elif name == "replace" and all(isinstance(each, str) for each in given[:2]):
            old, new = (*given, "", "")[:2]
            self.need(text.count(old) * max(len(new) - len(old), 0))
        elif name in ("split", "rsplit", "splitlines") and len(text) > self.steps:
            plain = not given or given[0] is None or name == "splitlines"
            ends: Iterable[str] = LINE_ENDS + string.whitespace if plain else given[:1]
            if sum(map(text.count, ends)) > self.steps:
                self.spend(self.steps + 1)


class _Loop(list[Any]):
    """Values of a loop; the clock is read at each."""

    budget: Budget

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            self.budget.spend()
            yield value


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self, most_characters: int, *, finalize: Callable[..., Any], **settings: Any) -> None:
        settings |= {"finalize": finalize}
        super().__init__(autoescape=False, optimized=False, cache_size=0, **settings)
        self._most_characters = most_characters
        for name in UNBOUND:
            del self.filters[name]
        del self.globals["lipsum"]  # random text
        self.filters.update(join=join_values, tojson=json_text)

    def bound(self) -> None:
        """Count all filters, and add those of `_Hooks`; after the last change to them."""
        filters: dict[str, Any] = self.filters
        self.filters = {name: _counted(name, function) for name, function in filters.items()} | HOOKS

    def start(self, template: Template, variables: Mapping[str, Any]) -> tuple[Iterator[str], Budget]:
        """Render one record in parts; also return its budget.

        Any error of an operation with the values of the record may be raised while the parts are iterated.
        """
        budget = Budget(self._most_characters)
        context = template.new_context({**variables, BUDGET: budget})
        return template.root_render_func(context), budget

    def check(self, tree: nodes.Template) -> None:
        """Refuse a parsed template before any work."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.check(tree)
        return _Hooks().visit(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = context.parent[BUDGET]
        if operator == "+" and type(left) is type(right) is str:  # the most frequent by far
            budget.spend(0, len(left) + len(right))
            return left + right
        budget.operate(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Attribute or entry; an entry at once where no attribute has its name."""
        if type(obj) is dict and attribute in obj and not hasattr(dict, attribute):
            return obj[attribute]
        if type(obj) is str and attribute in SHRINKING:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __context.parent[BUDGET]
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str and __obj.__name__ in SHRINKING:
            budget.spend(1, len(__obj.__self__))
            return __obj(*args)
        own = {name: kwargs.pop(name) for name in JINJAS_OWN if name in kwargs}
        called = partial(super().call, **own)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if isinstance(owner, str | list | tuple | dict):
            name = __obj.__name__
            if name == "join" and args:
                args = (budget.list_of(args[0]), *args[1:])
                budget.need(len(owner) * len(args[0]) + measure(args[0], budget.steps)[1])

            def method(value: Any, *given: Any, **named: Any) -> Any:
                return called(__context, __obj, *given, **named)

            return budget.apply(name, method, owner, args, kwargs)
        if __obj is dict:
            budget.copy([*args, kwargs])
        if isinstance(__obj, LoopContext):
            args = (budget.list_of(args[0]), *args[1:])
        budget.spend(1)
        return budget.made(called(__context, __obj, *args, **kwargs))


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    kind, name = _PassArg.from_obj(function), name.removeprefix(".")

    @pass_context
    def run(context: Context, value: Any, *given: Any, **named: Any) -> Any:
        called = function
        if kind is not None:
            passed = {
                _PassArg.context: context,
                _PassArg.eval_context: context.eval_ctx,
                _PassArg.environment: context.environment,
            }
            called = partial(function, passed[kind])
        return context.parent[BUDGET].apply(name, called, value, given, named)

    return run


@pass_context
def join_values(context: Context, values: Any, separator: str = "", attribute: Any = None) -> str:
    """Join printed values, counted in advance."""
    items = context.parent[BUDGET].list_of(values)
    if attribute is not None:
        items = list(map(make_attrgetter(context.environment, attribute), items))
    printed: Any = context.environment.finalize
    texts = [item if isinstance(item, str) else str(printed(context, item)) for item in items]
    context.parent[BUDGET].need(sum(map(len, texts)) + len(str(separator)) * max(len(texts) - 1, 0))
    return str(separator).join(texts)


def json_text(value: Any, ensure_ascii: bool = False, indent: Any = None, **more: Any) -> str:
    """Format a value as JSON, without escapes for HTML, as transformers does."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MOST_INDENT):
        raise RecordProblem("template", f"tojson: indent is {indent!r}, expected 0 to {MOST_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


@pass_context
def print_value(context: Context, value: Any) -> Any:
    """`finalize` of an environment: a value, counted before it is printed, or put into a list or object."""
    context.parent[BUDGET].copy(value)
    return value


def _hook(use: Callable[[Budget, Any], Any]) -> Callable[..., Any]:
    """A filter that gives a value to the budget."""
    return pass_context(lambda context, value: use(context.parent[BUDGET], value))


def _loop(budget: Budget, values: Any) -> _Loop:
    loop = _Loop(budget.list_of(values))
    loop.budget = budget
    return loop


@pass_context
def _joined(context: Context, values: list[Any]) -> str:
    return str(context.parent[BUDGET].made(join_values(context, values)))


JINJAS_OWN = ("_loop_vars", "_block_vars")
"""Arguments that compiled templates add to every call."""
HOOKS: dict[str, Callable[..., Any]] = {
    "__joined": _joined,
    "__copied": print_value,
    "__made": _hook(Budget.made),
    "__loop": _hook(_loop),
}


class _Hooks(NodeTransformer):
    """Send the values of operations that Jinja does not intercept through filters that count them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = through("__loop", node.iter)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return through("__made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return through("__joined", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.Literal) -> nodes.Node:
        self.generic_visit(node)
        parts = (nodes.Const, nodes.Pair, nodes.List, nodes.Tuple, nodes.Dict)
        constant = all(isinstance(part, parts) for part in node.find_all(nodes.Node))
        return node if constant else through("__copied", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node  # otherwise names that are assigned


def through(
    name: str, value: nodes.Node, arguments: Sequence[nodes.Expr] = (), named: Sequence[nodes.Keyword] = ()
) -> nodes.Filter:
    return nodes.Filter(value, name, list(arguments), list(named), None, None, lineno=value.lineno)
