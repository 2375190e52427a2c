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
    for name in NAMES:
        text = with_sections(PAGE).split(f"### {name}\n")[1].split("### ")[0]
        listed = re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE)
        assert listed == [one["name"] for one in facts(load_format(name))["options"]]
    assert "`--set` |" not in PAGE


def test_a_format_of_text_is_read_by_a_build() -> None:
    (name,) = [name for name in NAMES if getattr(load_format(name), "holds_text", False)]
    assert f"--to {name} " in PAGE
    assert re.search(r"\$ packline build '\S+' --text text --tokenizer \S+ .*--out ", PAGE)


def test_both_kinds_show_how_they_are_written_and_read() -> None:
    documents, rows = (
        PAGE.split(f"## Formats of {kind}\n")[1].split("\n## ")[0] for kind in ("documents", "rows")
    )
    assert "$ packline export store --to NAME --out " in documents
    assert "$ packline import data --from NAME --tokenizer " in documents
    assert "$ packline export store --to NAME --seq-len " in rows
    assert "$ packline verify rows --from NAME\n" in rows
    assert "packline import" not in PAGE.split("## Formats of rows")[1]


def test_all_edges_are_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| ", PAGE.split("## Reading")[0], re.MULTILINE)
    assert tuple(explained) == get_args(Edges)
