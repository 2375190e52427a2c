"""Files of a data set: which are found in which order, what their names say, and indexes that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputError, RecipeError
from packline.formats.files import find_files, read_object
from packline.formats.mds import INDEX, read_index
from packline.formats.types import fitting_dtype


def test_files_are_found_in_order_of_path_and_folders_are_none(tmp_path: Path) -> None:
    for name in ("b/x.ds", "c.ds", "a.ds", "a/z.ds", "a/no.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder.ds").mkdir()
    for below, names in ((False, ["a.ds", "c.ds"]), (True, ["a.ds", "a/z.ds", "b/x.ds", "c.ds"])):
        listed, found = find_files(tmp_path, ".ds", "token files", below=below)
        assert listed.folder == tmp_path and found == sorted(tmp_path / name for name in names)
    listed, found = find_files(tmp_path / "a/no.txt", ".ds", "token files")
    assert (listed.folder, found) == (tmp_path / "a", [tmp_path / "a/no.txt"])
    for path, word in ((tmp_path / "folder.ds", "none"), (tmp_path / "absent", "nothing")):
        with pytest.raises(InputError, match=f"expected token files, found {word}"):
            find_files(path, ".ds", "token files")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b'{"a": "\xff"}', "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[1]", "expected an object, found list"),
        (b'{"b": 1}', "expected a, found b"),
        (None, "or folders train and val"),
    ],
)
def test_an_index_that_is_no_such_object_is_refused_with_its_path(
    tmp_path: Path, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / INDEX).write_bytes(data)
    with pytest.raises(InputError, match=words) as refused:
        read_index(tmp_path, "a")
    assert str(tmp_path) in str(refused.value)


def test_a_pipe_for_an_index_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / INDEX)
    with pytest.raises(InputError, match="is a pipe: expected a regular file"):
        read_object(tmp_path / INDEX)


LIMITS = {"uint16": 2**16, "int32": 2**31, "int64": 2**63}


@given(st.one_of(st.integers(1, 2**63), *(st.integers(most - 2, most + 2) for most in LIMITS.values())))
def test_the_dtype_holds_every_id_and_no_narrower_one_does(vocab_size: int) -> None:
    if vocab_size > 2**63:
        with pytest.raises(RecipeError, match="do not fit into int64"):
            fitting_dtype("x", vocab_size, LIMITS)
        return
    found = fitting_dtype("x", vocab_size, LIMITS)
    assert np.iinfo(found).max >= vocab_size - 1 and found.str[0] == "<"
    narrower = [name for name in LIMITS if np.dtype(name).itemsize < found.itemsize]
    assert all(np.iinfo(name).max < vocab_size - 1 for name in narrower)
    for name in LIMITS:
        if np.iinfo(name).max >= vocab_size - 1:
            assert fitting_dtype("x", vocab_size, LIMITS, name) == np.dtype(name)
        else:
            with pytest.raises(RecipeError, match=f"do not fit into {name}"):
                fitting_dtype("x", vocab_size, LIMITS, name)
