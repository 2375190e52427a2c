"""Pages of documents, rows and batches say what is true of them, and notebooks show them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.stores import build_store
from tests.viewing.parsed import text_of

from packline.errors import StoreError
from packline.facade import Store
from packline.loading.loader import Loader
from packline.packing.options import Packing
from packline.viewing.batch_files import BatchFile, batch_page, learned_in
from packline.viewing.describe import store_page
from packline.viewing.page import KeyValues, Page, TokenStrip
from packline.viewing.tokens import document_strip, row_strip
from packline.viewing.view import (
    document_page,
    loader_page,
    row_page,
)


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
) -> Store:
    folder = tmp_path_factory.mktemp("pages")
    records: list[dict[str, Any]] = [
        {"text": text[:400], "id": f"n{place}"} for place, text in enumerate(documents[:80])
    ]
    return build_store(write_jsonl(folder / "<b>.jsonl", records), tokenizer_json, folder / "store")


def facts_of(page: Page) -> dict[str, Any]:
    return dict(next(block for block in page.flat_blocks() if isinstance(block, KeyValues)).rows)


def strips_of(page: Page) -> list[TokenStrip]:
    return [block for block in page.flat_blocks() if isinstance(block, TokenStrip)]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_a_row_is_told_in_targets_and_padding(store: Store, packing: Packing) -> None:
    rows = store.rows(48, packing=packing)
    for index in (0, len(rows) // 2, len(rows) - 1):
        row, page = rows[index], row_page(rows, index, most=20)
        facts = facts_of(page)
        assert facts["documents"] == f"{len(row.spans)}"
        assert facts["in the loss"].split()[0] == f"{int(row.loss_mask.sum())}"
        assert facts["padding"].split()[0] == f"{int((row.segment_ids < 0).sum())}"
        (strip,) = strips_of(page)
        assert sum(len(cell.ids) for cell in strip.cells) == 20 and strip.more == 28
    with pytest.raises(IndexError):
        row_page(rows, len(rows))


def test_the_first_token_of_a_documents_rest_is_not_said_to_be_unlearned(store: Store) -> None:
    rows = store.rows(48)
    for index in range(len(rows)):
        cells = row_strip(rows, index).cells
        for cell in cells:
            if cell.position == 0 and cell.starts:
                assert cell.loss is False  # nothing foretells the beginning of a document
        if cells[0].position:
            assert cells[0].loss is None or len(cells[0].ids) > 1  # the row before may


def test_a_document_shows_where_it_is_from(store: Store) -> None:
    strip = document_strip(store, 3)
    (origin,) = strip.origins
    assert (origin.document, origin.href) == (3, "")
    assert origin.text.endswith(f"<b>.jsonl at {store.provenance(3).position:,}, id n3")
    assert [one for cell in strip.cells for one in cell.ids] == store.documents[3].tolist()
    facts = facts_of(document_page(store, -1))
    assert facts["id"] == store.provenance(len(store.documents) - 1).id
    with pytest.raises(StoreError, match="has no document 80"):
        document_page(store, 80)


def test_notebooks_show_stores_rows_and_loaders(store: Store) -> None:
    rows = store.rows(48, packing="best_fit")
    loader = Loader(rows, batch_size=4, seed=3, rank=1, world_size=2, prefetch=0)
    for thing in (store, rows, rows[1], loader):
        text = thing._repr_html_()
        assert 'class="packline notebook"' in text and "<b>" not in text
        assert "\n" not in repr(thing) and len(repr(thing)) < 300
    assert repr(rows[1]).startswith("<Row 1: 48 tokens in ")
    assert f"{store.manifest.tokens:,}" in text_of(store_page(store))
    first = strips_of(loader_page(loader))[0]
    expected = loader.batch(0)["tokens"][0].tolist()
    assert [one for cell in first.cells for one in cell.ids] == expected


def test_targets_that_stand_with_their_tokens_are_told_from_those_that_stand_before() -> None:
    tokens = np.array([[5, 6, 7, 8]])
    before = BatchFile("b", {"input": tokens, "target": np.array([[6, 7, -100, -100]])}, None, 0)
    beside = BatchFile("b", {"input": tokens, "target": np.array([[-100, 6, 7, -100]])}, None, 0)
    ahead, same = learned_in(before), learned_in(beside)
    assert ahead is not None and same is not None
    assert ahead.tolist() == [[-1, 1, 1, 0]] and same.tolist() == [[0, 1, 1, 0]]
    assert learned_in(BatchFile("b", {"input": tokens}, None, 0)) is None
    text = text_of(batch_page(before, None, ("input", "target"), rows=1))
    assert "row 0, targets" in text and "0  6│7\n" in text
    assert "No target tensor" in text_of(
        batch_page(BatchFile("b", {"input": tokens}, None, 0), None, ("target",))
    )
