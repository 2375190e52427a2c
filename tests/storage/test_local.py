"""Durable writing into a local folder: a file is whole or absent, and its bytes never change."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.steps import failing_at, recorded

from packline.errors import OutOfSpace, StoreError
from packline.storage.local import LocalFolder, publish_bytes

NAMES = st.sampled_from(["a", "b", "in/c", "in/.d"])


@settings(max_examples=30)
@given(st.lists(st.tuples(NAMES, st.binary(max_size=2)), max_size=12))
def test_the_first_bytes_of_a_name_are_its_bytes_for_good(puts: list[tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, model = LocalFolder(Path(place)), dict[str, bytes]()
        Path(place, "in").mkdir()
        for name, data in puts:
            is_new = name not in model
            if model.setdefault(name, data) == data:
                assert folder.put_new(name, data) == is_new
            else:
                with pytest.raises(StoreError, match="exists with another content"):
                    folder.put_new(name, data)
        assert {name: folder.read(name) for name in model} == model
        assert folder.list("") == sorted(name for name in model if "/" not in name)
        assert folder.list("in") == [name for name in model if name == "in/c"]
        folder.delete(["a", "in/c", "none"])
        assert folder.list("") == [name for name in model if name == "b"] and folder.list("none") == []


@given(st.binary(max_size=20), st.integers(0, 25), st.none() | st.integers(0, 25))
def test_a_range_is_that_of_the_bytes(data: bytes, start: int, size: int | None) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place, "a").write_bytes(data)
        stop = None if size is None else start + size
        assert LocalFolder(Path(place)).read("a", start, stop) == data[start:stop]


def put_two(folder: Path) -> None:
    for name in ("x", "y"):
        (folder / f"{name}.part").write_bytes(b"long")
    LocalFolder(folder).put_files({"one/x": folder / "x.part", "y": folder / "y.part"})


def put_bytes(folder: Path) -> None:
    publish_bytes(folder / "a", b"x")


def put_small(folder: Path) -> None:
    LocalFolder(folder).put_new("a", b"x")


@pytest.mark.parametrize("write", [put_bytes, put_small, put_two])
def test_contents_are_durable_before_a_name_and_the_name_after_it(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    with recorded() as steps:
        write(tmp_path)
    moves = [place for place, step in enumerate(steps) if step[2] is not None]
    assert moves
    for place in moves:
        _, source, target = steps[place]
        assert target is not None
        assert ("sync", source, None) in steps[:place]
        assert ("sync", target.parent.stat().st_ino, None) in steps[place:], "else the name may be lost"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_failure_at_any_step_leaves_the_file_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    for number in range(4):
        folder = LocalFolder(tmp_path / str(number))
        folder.path.mkdir()
        with failing_at(number, OSError(errno.ENOSPC, "full"), "fsync", "link"):
            if number < 3:
                with pytest.raises(OutOfSpace, match=r"the disk of .* is full"):
                    folder.put_new("a", b"whole")
            else:
                assert folder.put_new("a", b"whole")
        assert folder.list("") == ([] if number < 2 else ["a"]), "an unfinished file is not listed"
        folder.put_new("a", b"whole")
        assert folder.read("a") == b"whole"
        assert os.listdir(folder.path) == ["a"]
