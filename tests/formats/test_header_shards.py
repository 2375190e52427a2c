"""What layouts of bare tokens have in common: names, processes, and being told from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.formats.stores import CASES

from packline.errors import InputError
from packline.formats.export import run_export
from packline.formats.format import recognise
from packline.formats.layouts.header_shards import files_with_suffix, split_of_name

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "megatron many": ("megatron", {}),
    "megatron single": ("megatron", {"files": "single"}),
    "llmc": ("llmc", {"shard_tokens": 60}),
    "npy": ("npy", {"shard_tokens": 60}),
    "nanogpt": ("nanogpt", {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_export_is_recognised_for_what_it_is(tmp_path: Path, way: str) -> None:
    name, options = WAYS[way]
    store = CASES["splits"].make(tmp_path / "store")
    run_export(store.path, to=name, out=tmp_path / "out", options=options, workers=0)
    assert recognise(tmp_path / "out").name == name


@pytest.mark.parametrize("way", ["megatron many", "llmc"])
def test_bytes_do_not_depend_on_processes(tmp_path: Path, way: str) -> None:
    name, options = WAYS[way]
    store = CASES["splits"].make(tmp_path / "store")
    for workers in (0, 2):
        run_export(store.path, to=name, out=tmp_path / f"{workers}", options=options, workers=workers)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / f"{workers}").iterdir()} for workers in (0, 2)
    )
    assert ours == theirs and len(ours) > 4


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("fineweb_val_000000.bin", "val"),
        ("train_text_document.idx", "train"),
        ("web_valid_text_document.idx", "val"),
        ("edufineweb_train_000001.npy", "train"),
        ("VALIDATION.bin", "val"),
        ("evaluations_000001.bin", "train"),
        ("valid/train_000001.bin", "train"),
        ("test0.bin", "test"),
    ],
)
def test_a_name_tells_the_split(name: str, split: str) -> None:
    assert split_of_name(name) == split


def test_files_come_in_the_order_of_their_names_and_folders_are_none(tmp_path: Path) -> None:
    for name in ("b.bin", "a.bin", "c.txt"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "d.bin").mkdir()
    found = files_with_suffix(tmp_path, (".bin",), "something")
    assert [(file.name, file.bytes) for file in found] == [("a.bin", 5), ("b.bin", 5)]
    assert [file.name for file in files_with_suffix(tmp_path / "c.txt", (".bin",), "it")] == ["c.txt"]
    with pytest.raises(InputError, match="expected something, found none"):
        files_with_suffix(tmp_path / "d.bin", (".bin",), "something")
