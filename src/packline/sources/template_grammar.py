"""Grammar of templates: the part of Jinja that turns fields into text.

Templates are checked before they are compiled, so refused code never runs. Errors contain the line. Cost:
once per template.
"""

from __future__ import annotations

from jinja2 import nodes

from packline.errors import RecipeError
from packline.sources.template_functions import FILTERS, METHODS, TESTS

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


def refuse_strangers(tree: nodes.Template) -> None:
    """Refuse everything except turning fields into text.

    Raises:
        RecipeError: the template contains something else; with its line.
    """
    for node in [tree, *tree.find_all(nodes.Node)]:
        if not isinstance(node, ALLOWED):
            word = type(node).__name__.lower()
            line = next((one.lineno for one in (node, *node.find_all(nodes.Node)) if one.lineno), 1)
            raise refusal(line, f"{word!r} is nothing that a template may do", "it sees one record only")
        name = _name_of(node)
        if name is not None and name.startswith("__"):
            raise refusal(node.lineno, f"{name!r} is an attribute of an object", "templates see fields only")
        if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            hint = f"if it is a field, write [{node.attr!r}]"
            raise refusal(node.lineno, f"{node.attr!r} looks like an attribute of an object", hint)
        if isinstance(node, nodes.Filter) and node.name not in FILTERS:
            raise refusal(node.lineno, f"no filter {node.name!r}", f"there are {', '.join(sorted(FILTERS))}")
        if isinstance(node, nodes.Test) and node.name not in TESTS:
            raise refusal(node.lineno, f"no test {node.name!r}", f"there are {', '.join(sorted(TESTS))}")
        if name == "self" and isinstance(node, nodes.Name):
            raise refusal(node.lineno, "'self' is the template", 'for a field, write record["self"]')
        if isinstance(node, nodes.Filter) and node.name == "map" and node.args:
            raise refusal(node.lineno, "'map' applies no filters", "it takes fields: map(attribute='name')")
        if isinstance(node, nodes.For):
            _refuse_loop(node)
        if isinstance(node, nodes.Call):
            _refuse_call(node)


def _refuse_loop(loop: nodes.For) -> None:
    if loop.recursive:
        raise refusal(loop.lineno, "a loop that calls itself", "write the loops one inside the other")
    fields: list[nodes.Getattr | nodes.Getitem] = [
        *loop.find_all(nodes.Getattr),
        *loop.find_all(nodes.Getitem),
    ]
    counted = {id(one.node) for one in fields if _name_of(one) in LOOP}
    for node in (name for part in loop.body for name in part.find_all(nodes.Name)):
        if node.name == "loop" and id(node) not in counted:
            hint = f'it has {", ".join(sorted(LOOP))}; for a field, write record["loop"]'
            raise refusal(node.lineno, "'loop' is not a value", hint)


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
        right = bool(node.args) and not (node.kwargs or node.dyn_args or node.dyn_kwargs)
    else:
        right = isinstance(called, nodes.Getattr) and called.attr in METHODS
        right = right and not (node.dyn_args or node.dyn_kwargs)
    if not right:
        what = called.attr if isinstance(called, nodes.Getattr) else getattr(called, "name", "an expression")
        known = ", ".join(f".{name}()" for name in sorted(METHODS))
        raise refusal(node.lineno, f"a call of {what!r}", f"there are range() and {known}")


def refusal(line: int, what: str, hint: str) -> RecipeError:
    """Build the error for a template."""
    return RecipeError(f"the template, line {line}: {what}", hint=hint)
