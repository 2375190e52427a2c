"""Byte layouts and options of all formats for the page of the site, from their modules and declarations."""

from __future__ import annotations

import inspect

from packline.cli.formats import facts, shown_default
from packline.formats.format import NAMES, load_format

HEAD = "| `--set` | default | meaning |\n|---|---|---|\n"


def section(name: str) -> str:
    """Layout of a format, and its options as a table in Markdown: name, default, description."""
    format = load_format(name)
    rows = [
        f"| `{one['name']}` | `{shown_default(one['default'])}` | {one['about']} |\n"
        for one in facts(format)["options"]
    ]
    layout = inspect.getdoc(inspect.getmodule(type(format)))
    return f"### {name}\n\n```text\n{layout}\n```\n\n{HEAD}{''.join(rows)}\n"


def with_sections(page: str) -> str:
    """The page, with a section for each format at its end."""
    return f"{page.rstrip()}\n\n## Layouts and options\n\n{''.join(map(section, NAMES))}"
