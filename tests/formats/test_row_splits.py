"""Rows of all splits at once: each folder is what an export of that split alone writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.stores import make_store, random_documents

from packline.errors import InputError
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.export import Exported, run_export
from packline.packing.options import ExportChoice

LENGTH = 16


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 300, longest=30, seed=3)
    folder = tmp_path_factory.mktemp("stores") / "store"
    return make_store(folder, documents, vocab_size=300, eod_id=0, shards=2, val=(3, 20, 21, 50))


def write(store: Store, name: str, out: Path, split: str | None = None, seq_len: int = LENGTH) -> Exported:
    choice = ExportChoice(seq_len=seq_len, packing="concat", seed=4, split=split)
    return run_export(store.path, to=name, out=out, choice=choice, workers=0)


def test_a_split_too_small_for_a_row_is_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [range(2, 90), [5, 6], [7]] * 3, vocab_size=300, eod_id=0, val=(1, 2))
    done = write(store, "litdata", tmp_path / "out", seq_len=32)
    assert done.folders == () and (tmp_path / "out" / "index.json").is_file()
    (lost,) = [lost for lost in done.lost if lost.what == "split val"]
    assert lost.count == 2 and "no row of 32" in lost.why


def test_baked_rows_are_opened_split_by_split(store: Store, tmp_path: Path) -> None:
    write(store, "baked", out := tmp_path / "out")
    for split in ("train", "val"):
        assert len(BakedRows(out / split)) == len(store.rows(LENGTH, split=split))
    with pytest.raises(InputError, match="holds several splits"):
        BakedRows(out)
