"""Order of exported rows: shuffled where a trainer reads files in their order, unless chosen otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.engines import files_of
from tests.formats.stores import make_store, random_documents

import packline
from packline.errors import RecipeError, StoreError
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.export import ExportPlanned


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 300, longest=20, seed=2)
    return make_store(tmp_path_factory.mktemp("made") / "store", documents, vocab_size=300, eod_id=7)


def export(store: Store, name: str, out: Path, **settings: Any) -> tuple[dict[str, bytes], str]:
    """Files of an export, and its order in words."""
    events: list[Any] = []
    packline.export(store, out=out, to=name, seq_len=16, workers=0, on_event=events.append, **settings)
    (order,) = (event.order for event in events if isinstance(event, ExportPlanned))
    return files_of(out), order


def test_the_default_order_is_that_of_the_loader(store: Store, tmp_path: Path) -> None:
    rows = packline.write_rows(store, out=tmp_path / "rows", seq_len=16, workers=0)
    loader = packline.Loader(store.rows(16), batch_size=4)
    for step in range(len(loader)):
        batch = rows.read(np.arange(4 * step, 4 * step + 4), ["tokens"])
        assert np.array_equal(batch["tokens"], loader.batch(step)["tokens"])


def test_an_export_in_another_order_is_another_export(store: Store, tmp_path: Path) -> None:
    export(store, "trl", tmp_path / "rows")
    again = packline.export(store, out=tmp_path / "rows", to="trl", seq_len=16, seed=0, workers=0)
    assert again.nothing_to_do
    with pytest.raises(StoreError, match="seed"):
        export(store, "trl", tmp_path / "rows", in_order=True)


def test_blocks_need_no_seed_where_rows_are_shuffled(store: Store, tmp_path: Path) -> None:
    rows = packline.write_rows(store, out=tmp_path / "a", seq_len=16, order="blocks", block_rows=2, workers=0)
    assert isinstance(rows, BakedRows)
    with pytest.raises(RecipeError, match="no seed was given"):
        packline.write_rows(store, out=tmp_path / "b", seq_len=16, order="blocks", in_order=True, workers=0)
