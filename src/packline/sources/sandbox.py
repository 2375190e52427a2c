"""Jinja's immutable sandbox, with bounds on the work that a template does for one record.

    steps         repetitions of loops, calls, entries of new lists     1,000,000       a bad record
    characters    all text that is produced, printed or not             by the caller   a bad record
    seconds       processor time of the thread                          60              stops the job

Steps and characters are counted before they are spent, and equally on every machine, so a refused record is
always refused. A value put into a list counts with everything in it: a list that contains one list twice,
which contains another twice, and so on, takes no memory until it is printed or compared. Reading counts too:
one step per 16 kB of text, or per 16 values.

Jinja's sandbox hides the attributes of objects, and passes calls and operators to `call` and `call_binop`.
Loops, literals, comparisons, slices and `~` have no such hook, so the parsed template is changed to send
their values through filters (`_Hooks`). Nothing is evaluated while a template is compiled.

Guarantee: no operation has an operand or a result beyond these bounds, and the clock is read at each of them,
so a template ends, at the latest soon after 60 seconds of processor time. An operation in progress is never
interrupted: this needs no signals, and holds in any thread and process.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from time import monotonic, thread_time
from types import MappingProxyType
from typing import Any

from jinja2 import Template, nodes, pass_context
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
READ_CHARACTERS, READ_VALUES = 1 << 14, 16
"""Characters and values read, for example compared, per step."""
CONTAINERS = (list, tuple, dict)
BUDGET = "the budget"
"""Variable of the budget: no identifier, so no template can name it."""
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
CHOOSING = frozenset(("d", "default", "first", "last", "max", "min", "get"))
"""Filters and methods that return an existing value, so their result is not counted."""
FORMATS = frozenset(("%", "format", "format_map"))
GROWING = {**dict.fromkeys(FORMATS, "{%"), "expandtabs": "\t", "indent": "\n", "translate": ""}
"""Operations that may insert their arguments at each of these characters in a text; "" is each character."""
WIDTHS = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "round"))
"""Filters and methods whose integer arguments determine the size of the result."""
SPECIAL = WIDTHS | GROWING.keys() | {"replace", "split", "rsplit", "splitlines", "wordcount"}
WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{5})")
"""A format of `%` with a large width, or one from a value."""


def measure(value: Any, most: int) -> tuple[int, int]:
    """Count the values in a value, at any depth, and the characters of text.

    Stops once there are more values than `most`.

    >>> measure("abc", 9), measure([1, ["ab", {"c": 2}]], 9)
    ((0, 3), (5, 3))
    """
    if isinstance(value, str):
        return 0, len(value)
    values = characters = 0
    rest = [value] if isinstance(value, CONTAINERS) else []
    while rest and values <= most:
        one = rest.pop()
        values += len(one)
        for part in one if not isinstance(one, dict) else (*one, *one.values()):
            if isinstance(part, str):
                characters += len(part)
            elif isinstance(part, CONTAINERS):
                rest.append(part)
    return values, characters


class Budget:
    """Budget of one record; its clock runs from the start.

    Args:
        most: maximum characters of produced text.
    """

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
        """Count a value with everything in it, before it is put into another one `times` times."""
        if type(value) is str:
            self.spend(0, len(value) * times)
            return
        values, characters = measure(value, self.steps)
        self.spend(values * times, characters * times)

    def read(self, value: Any) -> None:
        """Count a value that is traversed, for example by a comparison."""
        if type(value) is str:
            self.spend(len(value) // READ_CHARACTERS)
        elif isinstance(value, CONTAINERS):
            values, characters = measure(value, self.steps * READ_VALUES)
            self.spend(values // READ_VALUES + characters // READ_CHARACTERS)

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
        """Count the result of an operator in advance."""
        if operator == "**":
            raise SecurityError("a template has no use for powers")
        if operator == "%" and isinstance(left, str):
            self._insert(operator, left, (right,))
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
        """Call a filter or method of a value, with its arguments and its result counted."""
        self.read(value)
        if given or named or name in SPECIAL:
            self._check(name, value, (*given, *named.values()))
        found = function(value, *given, **named)
        return found if found is value or name in CHOOSING else self.made(found)

    def _check(self, name: str, value: Any, arguments: tuple[Any, ...]) -> None:
        """Count the arguments of a filter or method, and check the size of its result."""
        for each in arguments:
            self.read(each)
            if name in WIDTHS and isinstance(each, int) and abs(each) > MOST_WIDTH:
                raise RecordProblem("template", f"{name}: {each} is more than {MOST_WIDTH:,}")
        if isinstance(value, str):
            if name in GROWING:
                self._insert(name, value, arguments)
            elif name == "replace" and all(isinstance(each, str) for each in arguments[:2]):
                old, new = (*arguments, "", "")[:2]
                self.need(value.count(old) * max(len(new) - len(old), 0))
            elif name == "wordcount":
                self.spend(characters=len(value))  # a hundred times slower than a comparison
            elif name in ("split", "rsplit", "splitlines"):
                plain = not arguments or arguments[0] is None or name == "splitlines"
                ends: Iterable[str] = LINE_ENDS + string.whitespace if plain else arguments[:1]
                if len(value) > self.steps and sum(map(value.count, ends)) > self.steps:
                    self.spend(self.steps + 1)

    def _insert(self, name: str, text: str, arguments: Sequence[Any]) -> None:
        """Check that a text with its arguments inserted is within the budget."""
        if name in FORMATS and WIDE.search(text):
            raise RecordProblem("template", f"a format with a width of more than {MOST_WIDTH:,}")
        size = measure([*arguments], self.steps)[1] + (MOST_WIDTH if name in FORMATS else 8)
        size += sum(abs(each) for each in arguments if isinstance(each, int)) if name in WIDTHS else 0
        self.need(sum(map(text.count, GROWING[name])) * size if GROWING[name] else len(text) * size)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's environment with a budget.

    Args:
        most_characters: maximum characters of produced text per record.
        finalize: filter of printed values, with the context as its first argument.
        settings: other settings of the environment.
    """

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, most_characters: int, *, finalize: Callable[..., Any], **settings: Any) -> None:
        settings |= {"finalize": finalize}
        super().__init__(autoescape=False, optimized=False, cache_size=0, **settings)
        self._most_characters = most_characters
        for name in ("random", "urlize", "wordwrap", "xmlattr"):  # without order or bounds, or for HTML alone
            del self.filters[name]
        del self.globals["lipsum"]  # random text
        self.filters.update(join=join_values, tojson=json_text)

    def bound(self) -> None:
        """Count all filters and tests, and add those of `_Hooks`; after the last change to them."""
        filters: dict[str, Any] = self.filters
        tests: dict[str, Any] = self.tests
        self.filters = {name: _counted(name, function) for name, function in filters.items()} | HOOKS
        self.tests = {name: _counted(name, function) for name, function in tests.items()}

    def start(
        self, template: Template, variables: Mapping[str, Any], budget: Budget | None = None
    ) -> tuple[Iterator[str], Budget]:
        """Render one record in parts; also return its budget, by default a new one.

        Any error of an operation with the values of the record may be raised while the parts are iterated.
        """
        budget = budget or Budget(self._most_characters)
        context = template.new_context({**variables, BUDGET: budget})
        return template.root_render_func(context), budget

    def check(self, tree: nodes.Template) -> None:
        """Refuse a parsed template before any work."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self.check(tree)
        return _Hooks().visit(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, within the budget."""
        budget = context.parent[BUDGET]
        budget.operate(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` in Jinja's sandbox, without widths that are large or come from values."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            for _, _, form, _ in string.Formatter().parse(value.__self__):
                if form and ("{" in form or re.search(r"\d{5}", form)):
                    raise SecurityError(f"a format with a width of more than {MOST_WIDTH:,}")
        return wrapped

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method or a function of the template, within the budget."""
        budget = __context.parent[BUDGET]
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
    """Wrap a filter or test, so that its arguments and result are counted."""
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
    """Format a value as JSON, without escapes for HTML, as transformers does.

    >>> json_text({"a": "<b>"})
    '{"a": "<b>"}'
    """
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MOST_INDENT):
        raise RecordProblem("template", f"tojson: indent is {indent!r}, expected 0 to {MOST_INDENT}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)


@pass_context
def _joined(context: Context, values: list[Any]) -> Any:
    """The values of a `~`."""
    text, budget = join_values(context, values), context.parent[BUDGET]
    budget.spend(characters=len(text))
    return text


@pass_context
def _copied(context: Context, value: Any) -> Any:
    context.parent[BUDGET].copy(value)
    return value


@pass_context
def _read(context: Context, value: Any) -> Any:
    context.parent[BUDGET].read(value)
    return value


JINJAS_OWN = ("_loop_vars", "_block_vars")
"""Arguments that compiled templates add to every call."""
HOOKS: dict[str, Callable[..., Any]] = {
    "__joined": _joined,
    "__copied": _copied,
    "__read": _read,
    "__made": pass_context(lambda context, value: context.parent[BUDGET].made(value)),
    "__loop": pass_context(lambda context, values: context.parent[BUDGET].list_of(values)),
}


class _Hooks(NodeTransformer):
    """Send the values of operations that Jinja does not intercept through filters that count them."""

    def __init__(self) -> None:
        self._captured = False

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = through("__loop", node.iter)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return through("__made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        operands: list[Any] = [node, *node.ops]
        for operand in operands:
            if not isinstance(operand.expr, nodes.Const):
                operand.expr = through("__read", operand.expr)
        return node

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

    def visit_Macro(self, node: nodes.Node) -> nodes.Node:
        """The text of a macro or block is a value of the template: printed like one, it is counted."""
        before, self._captured = self._captured, True
        self.generic_visit(node)
        self._captured = before
        return node

    visit_AssignBlock = visit_FilterBlock = visit_CallBlock = visit_Macro

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno) if self._captured else node


def through(
    name: str, value: nodes.Node, arguments: Sequence[nodes.Expr] = (), named: Sequence[nodes.Keyword] = ()
) -> nodes.Filter:
    """A value that is sent through a filter."""
    return nodes.Filter(value, name, list(arguments), list(named), None, None, lineno=value.lineno)
