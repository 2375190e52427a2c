"""docs/formats.md against the code: every format has a row, and the site adds all of its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tools.format_tables import with_sections

from packline.cli.formats import facts
from packline.formats.format import NAMES, load_format
from packline.formats.types import Edges

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")


def table(kind: str) -> list[str]:
    """Names of the formats in the table of a kind."""
    part = PAGE.split(f"## Formats of {kind}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)


def test_every_format_has_a_row_in_the_table_of_its_kind() -> None:
    for kind in ("documents", "rows"):
        assert table(kind) == [name for name in NAMES if load_format(name).kind == kind]


def test_the_site_has_all_options_of_a_format_in_its_section() -> None:
    site = with_sections(PAGE)
    for name in NAMES:
        text = site.split(f"### {name}\n")[1].split("### ")[0]
        listed = re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE)
        assert listed == [one["name"] for one in facts(load_format(name))["options"]]
    assert "`--set` |" not in PAGE


def test_all_edges_are_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| ", PAGE.split("## Reading")[0], re.MULTILINE)
    assert tuple(explained) == get_args(Edges)
