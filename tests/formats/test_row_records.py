"""Folders with an `index.json`: which are found, as which split, and which indexes are refused."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import pytest

from packline.errors import InputError
from packline.formats.layouts.row_records import INDEX, SPLITS, read_index, split_folders


def put(folder: Path, data: bytes = b"{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).write_bytes(data)
    return folder


def test_every_set_of_folders_gives_each_split_once_or_is_refused(tmp_path: Path) -> None:
    subsets = chain.from_iterable(combinations(SPLITS, count) for count in range(len(SPLITS) + 1))
    for number, names in enumerate(subsets):
        root = tmp_path / str(number)
        (root / "other").mkdir(parents=True)
        for name in names:
            put(root / name)
        splits = [SPLITS[name] for name in names]
        if names and len(set(splits)) == len(splits):
            assert sorted(split_folders(root)) == sorted((SPLITS[name], root / name) for name in names)
        else:
            with pytest.raises(InputError, match="one folder per split" if names else "found neither"):
                split_folders(root)


def test_a_folder_with_an_index_is_one_split_whatever_is_below_it(tmp_path: Path) -> None:
    put(put(tmp_path / "data") / "val")
    for path in (tmp_path / "data", tmp_path / "data" / INDEX):
        assert split_folders(path) == [("train", tmp_path / "data")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[1]", "expected an object, found list"),
        (None, "cannot read"),
    ],
)
def test_an_index_that_is_no_object_is_refused_with_its_path(
    tmp_path: Path, data: bytes | None, words: str
) -> None:
    folder = put(tmp_path / "data", data or b"")
    if data is None:
        (folder / INDEX).unlink()
    with pytest.raises(InputError, match=words) as refused:
        read_index(folder)
    assert str(folder / INDEX) in str(refused.value)
