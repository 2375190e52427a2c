"""Tables of the options of all formats for the site's page on formats, from their declarations."""

from __future__ import annotations

import re

from packline.cli.formats import facts, shown_default
from packline.formats.format import NAMES, load_format

HEAD = "| `--set` | default | meaning |\n|---|---|---|\n"


def option_table(name: str) -> str:
    """Options of a format as a table in Markdown: name, default, description."""
    rows = [
        f"| `{one['name']}` | `{shown_default(one['default'])}` | {one['about']} |\n"
        for one in facts(load_format(name))["options"]
    ]
    return HEAD + "".join(rows)


def with_tables(page: str) -> str:
    """The page, with a table of options at the end of the section of each format."""
    for name in NAMES:
        found = re.search(rf"^### {name}\n.*?(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
        assert found is not None, f"no section for {name}"
        page = f"{page[: found.end()].rstrip()}\n\n{option_table(name)}\n{page[found.end() :]}"
    return page
