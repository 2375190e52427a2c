"""`packline formats`: the supported layouts of other projects, and their options."""

from __future__ import annotations

import importlib.util
import inspect
from typing import Annotated, Any

from cyclopts import Parameter

from packline.cli.output import Line, output, table
from packline.errors import RecipeError
from packline.formats.format import (
    NAMES,
    Format,
    describe_options,
    load_format,
    load_other_format,
    other_names,
)


def formats(
    name: Annotated[str | None, Parameter(help="Format to describe, with its options.")] = None,
    /,
) -> int:
    """List the supported formats, or describe one.

    With a NAME: its byte layout, and its options with their defaults.

    Examples:

      packline formats
      packline formats megatron
    """
    if name is None:
        every, refused = [facts(load_format(one)) for one in NAMES], []
        for other in other_names():
            try:
                every.append(facts(load_other_format(other)))
            except RecipeError as error:
                refused.append(str(error))
        output.lines([*list_lines(every), *([[""], *([f"  {one}"] for one in refused)] if refused else ())])
        return output.result("formats", formats=every, refused=refused)
    format = load_format(name) if name.lower() in NAMES else load_other_format(name)
    values = facts(format)
    layout = inspect.getdoc(inspect.getmodule(type(format))) or ""
    output.lines([[("  " + line).rstrip()] for line in layout.splitlines()])
    output.lines([[""], *option_lines(values["options"])])
    return output.result("formats", values, layout=layout)


def facts(format: Format) -> dict[str, Any]:
    missing = [module for module in format.needs if importlib.util.find_spec(module) is None]
    return {
        "name": format.name,
        "title": format.title,
        "kind": format.kind,
        "missing": missing,
        "options": describe_options(format.options),
    }


def list_lines(every: list[dict[str, Any]]) -> list[Line]:
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
    if not options:
        return [["  no options"]]
    rows: list[Line] = [[("--set", "quiet"), ("default", "quiet"), ""]]
    rows += [[(one["name"], "title"), shown_default(one["default"]), one["about"]] for one in options]
    return table(rows, "lll", width=output.wrap)


def shown_default(value: Any) -> str:
    """A default in the syntax of `--set`."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or '""'
    if isinstance(value, str):
        return value or '""'
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()
