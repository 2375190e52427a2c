"""The pages in docs/ against the code: a reader written from them reads, and no setting is missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import packline
from packline.recipe import Recipe, RunOptions, Share, Source
from packline.sources.batch import Reason
from packline.store.ledger import Ledger
from packline.store.manifest import ManifestFile, Receipt, TokenizerEntry, Totals
from packline.store.provenance import documents_schema
from packline.store.tables import InputEntry, ShardEntry
from packline.store.writer import RejectEntry

LEDGER = re.compile(r"^    documents_in = .*\n    tokens .*$", re.MULTILINE)
DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


@pytest.mark.parametrize("val_fraction", [0.0, 0.3])
def test_the_reader_in_the_page_reads_a_store(
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
    val_fraction: float,
) -> None:
    path = write_jsonl(tmp_path / "corpus.jsonl", documents)
    store = packline.build(path, tokenizer_json, out=tmp_path / "store", workers=0, val_fraction=val_fraction)
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", page("store.md"), re.DOTALL) if "def " in block
    )
    names: dict[str, Any] = {}
    exec(code, names)
    found = [
        document
        for shard in store.manifest.shards
        for document in names["read_shard"](str(tmp_path / "store" / shard.name))
    ]
    assert len(found) == len(store.documents)
    assert all(np.array_equal(one, other) for one, other in zip(found, store.documents, strict=True))


@pytest.mark.parametrize("kind", [Recipe, Source, RunOptions, Share])
def test_every_field_of_a_recipe_is_in_the_page(kind: Any) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", page("recipe.md"), re.MULTILINE)
    fields = {"memory" if field == "memory_bytes" else field for field in kind.__struct_fields__}
    assert fields - {"sources"} <= set(rows)


def test_every_row_of_the_page_is_a_field_of_a_recipe() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", page("recipe.md"), re.MULTILINE))
    fields = {field for kind in (Recipe, Source, RunOptions, Share) for field in kind.__struct_fields__}
    assert rows - {"memory"} <= fields


@pytest.mark.parametrize(
    "kind", [ManifestFile, Totals, TokenizerEntry, InputEntry, ShardEntry, Receipt, RejectEntry, Ledger]
)
def test_every_field_of_the_files_is_in_the_page(kind: Any) -> None:
    assert {
        field for field in kind.__struct_fields__ if not re.search(rf"\b{field}\b", page("store.md"))
    } == set()


def test_every_column_and_every_reason_is_in_its_page() -> None:
    assert all(f"| `{column}` |" in page("store.md") for column in documents_schema().names)
    assert all(f"`{reason}`" in page("recipe.md") + page("sft.md") for reason in get_args(Reason))
