"""Templates: a document's text out of the fields of a record, in Jinja, without any way out of the record.

    template = "Question: {{ question }}\\n\\nAnswer: {{ answer | trim }}"

A template is data from a file, so it is held to what turns fields into text. Before any work, everything
else is refused: attributes of objects, calls of anything but a few methods of strings and objects, include,
import, macros. `a.b` looks up field b of field a, never an attribute. While it runs, each record has a budget
of loop steps and of characters, intermediate values included, so neither a huge loop nor a string that
doubles and doubles costs more than that one record. `record` is the whole record, for fields whose names are
no words.

A field that is missing or null and is printed makes a bad record: `{{ title | default("", true) }}` says what
to do instead. Output is that of plain Jinja otherwise, but `tojson` does not escape for HTML.

Cost: some 5 to 20 microseconds a record. Not safe to share between threads: the budget is one at a time.
"""

from __future__ import annotations

from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from packline.errors import RecipeError
from packline.sources.records import RecordProblem
from packline.transforms.template_functions import FILTERS, METHODS, TESTS, Budget, call_method, counted

MOST_CHARACTERS = 100_000
"""Of a template itself."""
MOST_STEPS = 1_000_000
"""Of all loops, a record."""
WHOLE = "record"
LOOP = frozenset(
    {
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "depth",
        "depth0",
        "previtem",
        "nextitem",
    }
)

ALLOWED: tuple[type[nodes.Node], ...] = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign),
    *(nodes.Name, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Filter, nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.CondExpr),
    *(nodes.Concat, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
)
OPERATORS = frozenset(("+", "-", "*", "/", "//", "%"))


class Template:
    """A template, checked and compiled.

    Args:
        source: the template.
        max_characters: what it may make of one record, intermediate values included.

    Raises:
        RecipeError: it is no template, or does what none may do; with its line.

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
        self._budget = Budget(MOST_STEPS, max_characters)
        self._environment = _Environment(self._budget)
        self.fields = self._compile()

    def _compile(self) -> tuple[str, ...] | None:
        environment = self._environment
        try:
            tree = environment.parse(self.source)
            _refuse_strangers(tree)
            names = meta.find_undeclared_variables(tree) - set(environment.globals)
            self._template = environment.from_string(_count_loops(tree))
        except TemplateSyntaxError as error:
            raise _refusal(error.lineno, str(error.message), "see docs/recipe.md for templates") from error
        except RecursionError as error:
            raise RecipeError("the template is nested too deeply") from error
        return None if WHOLE in names else tuple(sorted(names))

    def render(self, record: dict[str, Any]) -> str:
        """The text of a record.

        Raises:
            RecordProblem: with reason `template`: a field that is missing or null is printed, an operation
                that its values do not have, more than the budget.
        """
        budget = self._budget
        budget.refill()
        fields = record if self.fields is not None else {WHOLE: record, **record}
        template = self._template
        try:
            parts = []
            for part in template.root_render_func(template.new_context(fields)):
                budget.write(part)
                parts.append(part)
            return "".join(parts)
        except RecordProblem:
            raise
        except SecurityError as error:
            raise RecordProblem("template", f"refused: {error}") from error
        except Exception as error:  # whatever a record's values make of the template's operations
            first = (str(error).splitlines() or [""])[0][:200]
            raise RecordProblem("template", f"{type(error).__name__}: {first}") from error


class _Generator(CodeGenerator):
    """Jinja's compiler, but that `~` is counted and that nothing is worked out while compiling."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja that knows fields and no objects."""

    code_generator_class = _Generator
    intercepted_binops = OPERATORS

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            undefined=StrictUndefined, autoescape=False, optimized=False, finalize=_printable, cache_size=0
        )
        self.budget = budget
        self.globals = {"range": self.globals["range"]}
        self.filters = dict(FILTERS)
        self.filters["__counted"] = counted
        self.filters.update({f"__{name}": call_method(name) for name in METHODS})
        self.tests = {name: self.tests[name] for name in TESTS}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Field of a field; of `loop`, what it counts."""
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

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Arithmetic, within the budget."""
        self.budget.operate(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def joined(self, parts: tuple[Any, ...]) -> str:
        """The values of a `~`, joined."""
        strings = [part if isinstance(part, str) else str(_printable(part)) for part in parts]
        self.budget.spend_characters(sum(map(len, strings)))
        return "".join(strings)


def _printable(value: Any) -> Any:
    if value is None:
        raise RecordProblem("template", "a value that is printed is null")
    return value


def _refuse_strangers(tree: nodes.Template) -> None:
    """Refuse whatever does not only turn fields into text."""
    for node in [tree, *tree.find_all(nodes.Node)]:
        if not isinstance(node, ALLOWED):
            word = type(node).__name__.lower()
            raise _refusal(
                node.lineno, f"{word!r} is nothing that a template may do", "it sees one record only"
            )
        name = _name_of(node)
        if name is not None and name.startswith("__"):
            raise _refusal(node.lineno, f"{name!r} is an attribute of an object", "templates see fields only")
        if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            hint = f"if it is a field, write [{node.attr!r}]"
            raise _refusal(node.lineno, f"{node.attr!r} looks like an attribute of an object", hint)
        if isinstance(node, nodes.Filter) and node.name not in FILTERS:
            raise _refusal(node.lineno, f"no filter {node.name!r}", f"there are {', '.join(sorted(FILTERS))}")
        if isinstance(node, nodes.Test) and node.name not in TESTS:
            raise _refusal(node.lineno, f"no test {node.name!r}", f"there are {', '.join(sorted(TESTS))}")
        if isinstance(node, nodes.For) and node.recursive:
            raise _refusal(node.lineno, "a loop that calls itself", "write the loops one inside the other")
        if isinstance(node, nodes.Call):
            _refuse_call(node)


def _name_of(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Keyword):
        return node.key
    if (
        isinstance(node, nodes.Getitem)
        and isinstance(node.arg, nodes.Const)
        and isinstance(node.arg.value, str)
    ):
        return node.arg.value
    return None


def _refuse_call(node: nodes.Call) -> None:
    called = node.node
    if isinstance(called, nodes.Name) and called.name == "range":
        right = not (node.kwargs or node.dyn_args or node.dyn_kwargs)
    else:
        right = isinstance(called, nodes.Getattr) and called.attr in METHODS
        right = right and not (node.dyn_args or node.dyn_kwargs)
    if not right:
        what = called.attr if isinstance(called, nodes.Getattr) else getattr(called, "name", "an expression")
        known = ", ".join(f".{name}()" for name in sorted(METHODS))
        raise _refusal(node.lineno, f"a call of {what!r}", f"there are range() and {known}")


def _count_loops(tree: nodes.Template) -> nodes.Template:
    """Send what a loop runs over through the budget, and make methods what they are: functions of a value."""
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = nodes.Filter(loop.iter, "__counted", [], [], None, None, lineno=loop.lineno)
    return _Methods().visit(tree)


class _Methods(NodeTransformer):
    """`a.strip(x)` as a filter of `a`, so that no method is ever looked up on a value."""

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr):
            name = f"__{node.node.attr}"
            return nodes.Filter(node.node.node, name, node.args, node.kwargs, None, None, lineno=node.lineno)
        return node


def _refusal(line: int, what: str, hint: str) -> RecipeError:
    return RecipeError(f"the template, line {line}: {what}", hint=hint)
