"""The pages in docs/ against the code: no setting, field or reason is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from packline.recipe import Recipe, RunOptions, Share, Source
from packline.sources.batch import Reason
from packline.store.ledger import Ledger
from packline.store.manifest import Manifest, Receipt, TokenizerEntry, Totals
from packline.store.provenance import documents_schema
from packline.store.tables import InputEntry, ShardEntry
from packline.store.writer import RejectEntry

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("kind", [Recipe, Source, RunOptions, Share])
def test_every_field_of_a_recipe_is_in_the_page(kind: Any) -> None:
    named = re.findall(r"`(\w+)`", page("recipe.md"))
    fields = {"memory" if field == "memory_bytes" else field for field in kind.__struct_fields__}
    assert fields - {"sources"} <= set(named)


def test_every_item_of_the_page_is_a_field_of_a_recipe() -> None:
    rows = set(re.findall(r"^- `(\w+)` \(", page("recipe.md"), re.MULTILINE))
    assert len(rows) > 30
    fields = {field for kind in (Recipe, Source, RunOptions, Share) for field in kind.__struct_fields__}
    assert rows - {"memory"} <= fields


@pytest.mark.parametrize(
    "kind", [Manifest, Totals, TokenizerEntry, InputEntry, ShardEntry, Receipt, RejectEntry, Ledger]
)
def test_every_field_of_the_files_is_in_the_page(kind: Any) -> None:
    assert {
        field for field in kind.__struct_fields__ if not re.search(rf"\b{field}\b", page("store.md"))
    } == set()


def test_every_column_and_every_reason_is_in_its_page() -> None:
    assert all(f"| `{column}` |" in page("store.md") for column in documents_schema().names)
    assert all(f"`{reason}`" in page("recipe.md") + page("sft.md") for reason in get_args(Reason))
