"""Write the tables of options in docs/formats.md from the declarations of the formats.

python -m tools.format_tables
"""

from __future__ import annotations

import re
from pathlib import Path

from packline.cli.formats import facts, shown_default
from packline.formats.format import NAMES, load_format

PAGE = Path(__file__).resolve().parents[1] / "docs" / "formats.md"


LIKE = {"npy": "llmc", "olmo": "datatrove", "forager": "datatrove", "parquet": "arrow"}
"""Formats whose section refers to that of another format for the options that are the same."""


def option_rows(name: str) -> list[str]:
    """A row for each option of a format: name, default, description."""
    return [
        f"| `{one['name']}` | `{shown_default(one['default'])}` | {one['about']} |\n"
        for one in facts(load_format(name))["options"]
    ]


def table_rows(name: str) -> str:
    """Rows of a format's table, without those of the format that it is like."""
    known = option_rows(LIKE[name]) if name in LIKE else []
    return "".join(row for row in option_rows(name) if row not in known)


def with_tables(page: str) -> str:
    """The page, with the rows of all tables made anew."""
    for name in NAMES:
        begin = page.index(f"### {name}\n")
        head = re.compile(r"\| `--set` \|.*\n\|[-|]+\|\n").search(page, begin)
        assert head is not None, f"no table for {name}"
        end = re.compile(r"(?:\| `.*\n)*").match(page, head.end())
        assert end is not None
        page = page[: head.end()] + table_rows(name) + page[end.end() :]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
