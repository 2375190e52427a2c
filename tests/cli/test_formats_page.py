"""docs/formats.md against the code: every format has a section, with commands and all of its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from tools.format_tables import table_rows, with_tables

from packline.cli.formats import load
from packline.formats.format import NAMES
from packline.formats.types import Edges

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_format_has_a_section_among_its_kind() -> None:
    assert tuple(SECTIONS) == NAMES
    documents, rows = PAGE.split("## Formats of documents")[1].split("## Formats of rows")
    for name in NAMES:
        assert f"### {name}\n" in (documents if load(name).kind == "documents" else rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_section_has_the_options_with_their_defaults(name: str) -> None:
    assert table_rows(name) in SECTIONS[name]


def test_the_tables_are_those_that_the_tool_writes() -> None:
    assert with_tables(PAGE) == PAGE, "python -m tools.format_tables"


@pytest.mark.parametrize("name", NAMES)
def test_a_section_shows_how_to_write_and_to_read_it(name: str) -> None:
    assert f"$ packline export store --to {name} --out " in SECTIONS[name] or re.search(
        rf"\$ packline export store --to {name} --seq-len \d+ .*--out ", SECTIONS[name]
    )
    if getattr(load(name), "holds_text", False):
        assert re.search(r"\$ packline build '\S+' --text text --tokenizer \S+ .*--out ", SECTIONS[name])
    elif load(name).kind == "documents":
        assert re.search(rf"\$ packline import \w+ --from {name} --tokenizer \S+ --out ", SECTIONS[name])
    else:
        assert re.search(rf"\$ packline verify \w+ --from {name}\n", SECTIONS[name])
        assert "packline import" not in SECTIONS[name]
    assert "Not preserved: " in SECTIONS[name]


def test_all_edges_are_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| ", PAGE.split("## Reading")[0], re.MULTILINE)
    assert tuple(explained) == get_args(Edges)
