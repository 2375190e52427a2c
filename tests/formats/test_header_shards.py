"""Names of files of bare tokens, and the splits that they tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.errors import InputError
from packline.formats.layouts.header_shards import files_with_suffix, split_of_name


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
