"""build-nanogpt's shards: NumPy reads ours, and what NumPy wrote is read here."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES, Case


def load_split(folder: Path, split: str) -> list[np.ndarray]:
    """As build-nanogpt's loader: the names that have the split in them, sorted; no pickles."""
    names = sorted(path.name for path in folder.iterdir() if split in path.name)
    return [np.load(folder / name, allow_pickle=False) for name in names]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numpy_gets_every_token_in_order(tmp_path: Path, case: Case) -> None:
    write_all(case.make(tmp_path / "store"), "npy", tmp_path / "out", {"shard_tokens": 60})
    for split, wanted in expected(case, "bos").items():
        shards = load_split(tmp_path / "out", split)
        assert {shard.dtype.str for shard in shards} == {"<u4" if case.vocab_size > 65_536 else "<u2"}
        assert [len(shard) for shard in shards[:-1]] == [60] * (len(shards) - 1)
        assert np.concatenate(shards).tolist() == flat(wanted)
        found = [np.load(path, mmap_mode="r") for path in sorted((tmp_path / "out").glob(f"*_{split}_*"))]
        assert [one.tolist() for one in found] == [shard.tolist() for shard in shards]


def test_ours_are_the_bytes_that_numpy_writes(tmp_path: Path) -> None:
    case = CASES["splits"]
    write_all(case.make(tmp_path / "store"), "npy", tmp_path / "out", {"shard_tokens": 60})
    for path in (tmp_path / "out").iterdir():
        np.save(tmp_path / "theirs.npy", np.load(path))
        assert (tmp_path / "theirs.npy").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<i4", "<i8"])
def test_what_numpy_wrote_is_read(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "x_train_000001.npy", np.array([0, 5, 6, 0], dtype))
    np.save(tmp_path / "x_train_000002.npy", np.array([7, 0, 0, 200], dtype))
    np.save(tmp_path / "x_val_000000.npy", np.array([0, 9], dtype))
    with (tmp_path / "x_train_000003.npy").open("wb") as file:
        np.lib.format.write_array(file, np.array([0, 4], dtype), version=(2, 0))
    found = read_all("npy", tmp_path, {"marker": 0})
    assert found.problems == [] and found.reader.dtype == np.dtype(dtype)
    assert found.documents == {"train": [[0, 5, 6], [0, 7], [0], [0, 200], [0, 4]], "val": [[0, 9]]}


# ---------------------------------------------------------------------------------------------- damage


BAD: dict[str, tuple[Any, str]] = {
    "two dimensions": (
        np.zeros((2, 3), "<u2"),
        "expected one dimension of little-endian integers, found (2, 3)",
    ),
    "no dimension": (np.array(5, "<u2"), "found () of <u2"),
    "floats": (np.zeros(3, "<f4"), "found (3,) of <f4"),
    "big-endian": (np.zeros(3, ">u2"), "found (3,) of >u2"),
    "structured": (np.zeros(3, [("a", "<u2")]), "found (3,) of |V2"),
}


@pytest.mark.parametrize("bad", BAD)
def test_other_arrays_are_refused(tmp_path: Path, bad: str) -> None:
    array, message = BAD[bad]
    np.save(tmp_path / "a_train_0.npy", array)
    (problem,) = read_all("npy", tmp_path, {"marker": 0}).problems
    assert problem.startswith("a_train_0.npy: array: ") and message in problem


class Runs:
    """A pickle of it leaves a mark when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_an_array_of_objects_is_refused_and_not_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    array = np.empty(1, object)
    array[0] = Runs(str(mark))
    np.save(tmp_path / "a_train_0.npy", array, allow_pickle=True)
    (problem,) = read_all("npy", tmp_path, {"marker": 0}).problems
    assert "found (1,) of |O" in problem and not mark.exists()
    pickle.loads(pickle.dumps(Runs(str(mark)))).close()
    assert mark.exists()  # so it would have


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut within a token": (lambda data: data[:-1], "size in bytes: expected 138, found 137"),
    "longer": (lambda data: data + b"\0", "size in bytes: expected 138, found 139"),
    "count": (lambda data: data.replace(b"(5,)", b"(9,)"), "size in bytes: expected 146, found 138"),
    "below nothing": (lambda data: data.replace(b"(5,), }", b"(-5,),}"), "array: expected one dimension"),
    "magic": (lambda data: b"X" + data[1:], "not a NumPy array"),
    "header cut": (lambda data: data[:60], "not a NumPy array"),
    "version": (
        lambda data: data[:6] + b"\3" + data[7:],
        "not a NumPy array: expected version 1.0",
    ),
    "dtype": (lambda data: data.replace(b"'<u2'", b"'<zz'"), "not a NumPy array"),
    "no end": (lambda data: data.replace(b"n_o", b"n{o"), "not a NumPy array"),
    "no dict": (lambda data: data.replace(b"{", b"("), "not a NumPy array"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_damage_is_found_with_its_place(tmp_path: Path, change: str) -> None:
    damage, message = CHANGES[change]
    path = tmp_path / "a_train_000000.npy"
    np.save(path, np.array([0, 1, 2, 3, 4], "<u2"))
    path.write_bytes(damage(path.read_bytes()))
    (problem,) = read_all("npy", tmp_path, {"marker": 0}).problems
    assert problem.startswith(f"{path.name}: {message}")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_to_a_header_is_found_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a_train_000000.npy"
    np.save(path, np.array([0, 1, 2, 3, 4], "<u2"))
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place] = value
    path.write_bytes(data)
    found = read_all("npy", path, {"marker": 0})
    assert found.problems or len(flat(found.documents["train"])) * found.reader.dtype.itemsize == 10
