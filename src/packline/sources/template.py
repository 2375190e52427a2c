"""Templates: the text of a document from the fields of a record, in Jinja, without access to anything else.

    template = "Question: {{ question }}\\n\\nAnswer: {{ answer | trim }}"

A template is data from a file, so it is limited to turning fields into text. Before any work, everything else
is refused: attributes of objects, calls of anything except a few methods of strings and objects, include,
import, macros. `a.b` looks up field b of field a, never an attribute. At run time, each record has a budget
of loop steps and of characters, including intermediate values, so neither a huge loop nor a string that
doubles repeatedly costs more than that one record. `record` is the whole record, for fields whose names are
not identifiers.

Printing a missing or null field makes a bad record; `{{ title | default("", true) }}` provides a default.
Otherwise the output is that of plain Jinja, except that `tojson` does not escape for HTML.

Cost: about 5 to 20 microseconds per record. Not thread-safe, since there is one budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from packline.errors import RecipeError
from packline.sources.records import RecordProblem
from packline.sources.template_budget import Budget
from packline.sources.template_functions import FILTERS, OWN, TESTS
from packline.sources.template_grammar import LOOP, refusal, refuse_strangers

MOST_CHARACTERS = 100_000
"""Maximum length of a template."""
MOST_STEPS = 1_000_000
"""Maximum steps of all loops per record."""
WHOLE = "record"
OPERATORS = frozenset(("+", "-", "*", "/", "//", "%"))


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
        self._budget = Budget(MOST_STEPS, max_characters)
        self._environment = _Environment(self._budget)
        self.fields = self._compile()

    def _compile(self) -> tuple[str, ...] | None:
        environment = self._environment
        try:
            tree = environment.parse(self.source)
            refuse_strangers(tree)
            tree = _Counted().visit(tree)
            looking = meta.TrackingCodeGenerator(environment)
            looking.optimizer = None  # it would evaluate constant parts outside the budget
            looking.visit(tree)
            names = looking.undeclared_identifiers
            self._template = environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise refusal(error.lineno, str(error.message), "see docs/recipe.md for templates") from error
        except (RecursionError, SyntaxError) as error:  # from Python's compiler, for the compiled template
            raise RecipeError("the template is nested too deeply") from error
        return None if WHOLE in names else tuple(sorted(names))

    def render(self, record: dict[str, Any]) -> str:
        """Render the text of a record.

        Raises:
            RecordProblem: with reason `template`: a missing or null field is printed, an operation is not
                supported by its values, or the budget is exceeded.
        """
        budget = self._budget
        budget.refill()
        fields = record if self.fields is not None else {WHOLE: record, **record}
        template = self._template
        try:
            parts = []
            for part in template.root_render_func(template.new_context(fields)):
                budget.spend_characters(len(part))
                parts.append(part)
            return "".join(parts)
        except RecordProblem:
            raise
        except SecurityError as error:
            raise RecordProblem("template", f"refused: {error}") from error
        except Exception as error:  # any error of the template's operations with the values of a record
            first = (str(error).splitlines() or [""])[0][:200]
            raise RecordProblem("template", f"{type(error).__name__}: {first}") from error


class _Generator(CodeGenerator):
    """Jinja's compiler, except that `~` is counted and nothing is evaluated while compiling."""

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


class _Missing(StrictUndefined):
    """A missing field; printing it fails, also inside a list."""

    __slots__ = ()
    __repr__ = StrictUndefined.__str__


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja environment with fields only, without objects."""

    code_generator_class = _Generator
    intercepted_binops = OPERATORS

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            undefined=_Missing, autoescape=False, optimized=False, finalize=_printable, cache_size=0
        )
        self.budget = budget
        self.globals = {}
        self.filters = FILTERS | OWN
        self.tests = {name: self.tests[name] for name in TESTS}

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


class _Counted(NodeTransformer):
    """Replace costly operations by filters that count them; methods are never looked up on a value."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("__counted", node.iter)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        """`range(x, y)` as a filter of `x`, `a.strip(x)` as one of `a`."""
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr):
            return _through(f"__{node.node.attr}", node.node.node, node.args, node.kwargs)
        return _through("__range", node.args[0], node.args[1:])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [node.arg.start, node.arg.stop, node.arg.step]
        return _through("__sliced", node.node, [bound or nodes.Const(None) for bound in bounds])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through("__read", node.expr)
        for operand in node.ops:
            operand.expr = _through("__read", operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        node.node, node.args = (
            _through("__read", node.node),
            [_through("__read", one) for one in node.args or ()],
        )
        return node

    def visit_List(self, node: nodes.Literal) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_constant(node) else _through("__made", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node  # otherwise names that are assigned


def _through(
    name: str, value: nodes.Node, arguments: Sequence[nodes.Expr] = (), named: Sequence[nodes.Keyword] = ()
) -> nodes.Expr:
    if isinstance(value, nodes.Const) and name == "__read":
        return value
    return nodes.Filter(value, name, list(arguments), list(named), None, None, lineno=value.lineno)


def _is_constant(literal: nodes.Expr) -> bool:
    """True if the size of a list depends on the template alone, not on the record."""
    parts = (nodes.Const, nodes.Pair, nodes.List, nodes.Tuple, nodes.Dict)
    return all(isinstance(part, parts) for part in literal.find_all(nodes.Node))
