"""docs/formats.md against the code: every format has a section, to which the site adds all of its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from tools.format_tables import with_tables

from packline.cli.formats import facts
from packline.formats.format import NAMES, load_format
from packline.formats.types import Edges

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text("utf-8")


def sections(page: str) -> dict[str, str]:
    return dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))


SECTIONS = sections(PAGE)


def test_every_format_has_a_section_among_its_kind() -> None:
    assert tuple(SECTIONS) == NAMES
    documents, rows = PAGE.split("## Formats of documents")[1].split("## Formats of rows")
    for name in NAMES:
        assert f"### {name}\n" in (documents if load_format(name).kind == "documents" else rows)


def test_the_site_has_all_options_of_a_format_in_its_section() -> None:
    for name, text in sections(with_tables(PAGE)).items():
        listed = re.findall(r"^\| `(\w+)` \| `", text, re.MULTILINE)
        assert listed == [one["name"] for one in facts(load_format(name))["options"]]
    assert "`--set` |" not in PAGE


@pytest.mark.parametrize("name", NAMES)
def test_a_section_tells_what_is_lost_and_a_command_of_its_own(name: str) -> None:
    assert "Not preserved: " in SECTIONS[name]
    if getattr(load_format(name), "holds_text", False):
        assert re.search(r"\$ packline build '\S+' --text text --tokenizer \S+ .*--out ", SECTIONS[name])
    assert all(f"--to {name} " in line for line in re.findall(r"\$ packline export .*", SECTIONS[name]))


def test_both_kinds_show_how_they_are_written_and_read() -> None:
    documents, rows = (
        PAGE.split(f"## Formats of {kind}\n")[1].split("### ")[0] for kind in ("documents", "rows")
    )
    assert "$ packline export store --to NAME --out " in documents
    assert "$ packline import data --from NAME --tokenizer " in documents
    assert "$ packline export store --to NAME --seq-len " in rows
    assert "$ packline verify rows --from NAME\n" in rows
    assert "packline import" not in PAGE.split("## Formats of rows")[1]


def test_all_edges_are_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| ", PAGE.split("## Reading")[0], re.MULTILINE)
    assert tuple(explained) == get_args(Edges)
