"""Rows of all splits at once: each folder is what an export of that split alone writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.formats.stores import make_store, random_documents

from packline.errors import InputError
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.check import check_dataset
from packline.formats.export import Exported, run_export
from packline.formats.export_record import RECORD
from packline.formats.format import ROW_FORMATS, get_format
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


def files(folder: Path) -> dict[str, bytes]:
    """The files of a data set, without the record and the tokenizer of the export."""
    beside = (RECORD, "tokenizer.json", "tokenizer_config.json")
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in beside}


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_each_folder_is_the_export_of_its_split(store: Store, tmp_path: Path, name: str) -> None:
    done = write(store, name, tmp_path / "all")
    folders = get_format(name).folders
    assert done.folders == (folders["train"], folders["val"])
    assert not any(lost.what.startswith("split") for lost in done.lost)
    rows = 0
    for split in ("train", "val"):
        alone = write(store, name, tmp_path / split, split)
        assert alone.folders == ()
        assert any(lost.what.startswith("split") for lost in alone.lost)
        assert files(tmp_path / "all" / folders[split]) == files(tmp_path / split)
        rows += alone.rows or 0
    assert done.rows == rows
    assert write(store, name, tmp_path / "all").nothing_to_do


@pytest.mark.parametrize("name", [name for name in ROW_FORMATS if name != "baked"])
def test_all_folders_are_checked_with_and_without_the_record(store: Store, tmp_path: Path, name: str) -> None:
    write(store, name, out := tmp_path / "out")
    assert check_dataset(out).ok
    folder = get_format(name).folders["val"]
    (out / RECORD).unlink()
    assert check_dataset(out, name).ok
    data = [path for path in (out / folder).iterdir() if path.suffix != ".json"]
    largest = max(data, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    (problem, *_) = check_dataset(out, name).problems
    assert problem.file == f"{folder}/{largest.name}"


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
