"""`packline formats`: the supported layouts of other projects, and their options."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import textwrap
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.errors import RecipeError
from packline.formats.exporting.parts import is_list
from packline.formats.format import Format
from packline.formats.registry import NAMES
from packline.formats.types import Options

_FLAGS = Flags()


def formats(
    name: Annotated[str | None, Parameter(help="A format, to see its layout and its options.")] = None,
    *,
    flags: Flags = _FLAGS,
) -> int:
    """List the formats, or describe one; see `pages`."""
    if name is None:
        every = [facts(load(one)) for one in NAMES]
        output.lines(list_lines(every))
        output.result({"command": "formats", "exit_code": DONE, "formats": every})
        return DONE
    if name not in NAMES:
        raise RecipeError(f"no format {name!r}", hint=f"expected one of {', '.join(NAMES)}")
    format = load(name)
    values = facts(format)
    layout = inspect.getdoc(inspect.getmodule(type(format))) or ""
    output.lines([[("  " + line).rstrip()] for line in layout.splitlines()])
    output.lines([[""], *option_lines(values["options"])])
    output.result({"command": "formats", "exit_code": DONE, "layout": layout, **values})
    return DONE


def load(name: str) -> Format:
    """A format by name, even if modules it needs are not installed."""
    format: Format = importlib.import_module(f"packline.formats.{name}").FORMAT
    return format


def facts(format: Format) -> dict[str, Any]:
    """Facts about a format."""
    missing = [module for module in format.needs if importlib.util.find_spec(module) is None]
    said = option_docs(format.options)
    return {
        "name": format.name,
        "title": format.title,
        "kind": format.kind,
        "missing": missing,
        "options": [
            {"name": field.name, "default": _default(field), "about": _about(field, said)}
            for field in msgspec.structs.fields(format.options)
        ],
    }


def _about(field: Any, said: dict[str, str]) -> str:
    """Description of an option, including the syntax of its value if that is a list."""
    about = said.get(field.name, "")
    return f"{about} A list: `a,b` or JSON." if is_list(field.type) else about


def _default(field: Any) -> Any:
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None
    return msgspec.to_builtins(value)


def option_docs(options: type[Options]) -> dict[str, str]:
    """Docstring below each field in the source, as one line.

    >>> from packline.formats.nanogpt import FORMAT
    >>> option_docs(FORMAT.options)["edges"][:20] != ""
    True
    """
    found: dict[str, str] = {}
    for kind in reversed(options.__mro__):
        if not issubclass(kind, Options):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def list_lines(every: list[dict[str, Any]]) -> list[Line]:
    """All formats, one per line."""
    lines: list[Line] = []
    for kind, about in (("documents", "whole documents"), ("rows", "rows in training order")):
        rows: list[Line] = []
        for one in every:
            if one["kind"] == kind:
                needs = f" (needs {', '.join(one['missing'])})" if one["missing"] else ""
                rows.append([(one["name"], "title"), f"{one['title']}{needs}"])
        lines += [[""], [f"  {about}"], *table(rows, "ll", indent=4, width=output.wrap)]
    return lines[1:]


def option_lines(options: list[dict[str, Any]]) -> list[Line]:
    """Options of a format with their defaults."""
    if not options:
        return [["  no options"]]
    rows: list[Line] = [[("--set", "quiet"), ("default", "quiet"), ""]]
    rows += [[(one["name"], "title"), _shown(one["default"]), one["about"]] for one in options]
    return table(rows, "lll", width=output.wrap)


def _shown(value: Any) -> str:
    """A default in the syntax of `--set`."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or '""'
    if isinstance(value, str):
        return value or '""'
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()
