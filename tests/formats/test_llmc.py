"""llm.c's shards: what its loaders demand, by readers that were written from the rules."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES, Case, make_store

from packline.errors import InputError, RecipeError

SIZES = {20240520: (1, "<u2"), 20240801: (7, "<u4")}


def load_shard(path: Path) -> np.ndarray:
    """A shard as llm.c's loader takes it: every field and the size of the file have to be right."""
    data = path.read_bytes()
    head = struct.unpack("<256i", data[:1024])
    version, dtype = SIZES[head[0]]
    assert head[1] == version and set(head[3:]) == {0}
    assert len(data) == 1024 + head[2] * np.dtype(dtype).itemsize
    return np.frombuffer(data, dtype, offset=1024)


def load_split(folder: Path, pattern: str) -> list[int]:
    """All tokens that a pattern finds, in the order of names."""
    return [int(token) for path in sorted(folder.glob(pattern)) for token in load_shard(path)]


@pytest.mark.parametrize("edges", ["bos", "eod"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_loader_gets_every_token_in_order(tmp_path: Path, case: Case, edges: Any) -> None:
    size = 50
    options = {"shard_tokens": size, "edges": edges}
    write_all(case.make(tmp_path / "store"), "llmc", tmp_path / "out", options)
    documents = expected(case, edges)
    for split, wanted in documents.items():
        assert load_split(tmp_path / "out", f"fineweb_{split}_*.bin") == flat(wanted)
    shards = {split: math.ceil(len(flat(wanted)) / size) for split, wanted in documents.items()}
    held_out = shards.get("val", 0)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(f"fineweb_train_{held_out + number:06d}.bin" for number in range(shards["train"])),
        *(f"fineweb_val_{number:06d}.bin" for number in range(held_out)),
    ]
    sizes = [len(load_shard(path)) for path in sorted((tmp_path / "out").glob("*train*"))]
    assert set(sizes[:-1]) <= {size} and 0 < sizes[-1] <= size


def test_each_split_may_be_numbered_by_itself_and_the_prefix_be_empty(tmp_path: Path) -> None:
    options = {"shard_tokens": 100, "numbering": "own", "prefix": "", "version": 7}
    write_all(CASES["splits"].make(tmp_path / "store"), "llmc", tmp_path / "out", options)
    assert {load_shard(path).dtype for path in (tmp_path / "out").iterdir()} == {np.dtype("<u4")}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"val_000000.bin", "train_000000.bin", "train_000001.bin"} <= names


def test_a_short_last_shard_may_be_dropped_and_is_in_the_ledger(tmp_path: Path) -> None:
    case = CASES["splits"]
    store = case.make(tmp_path / "store")
    options = {"shard_tokens": 100, "last_shard": "drop"}
    plan = write_all(store, "llmc", tmp_path / "out", options)
    documents = {split: flat(wanted) for split, wanted in expected(case, "bos").items()}
    tail = len(documents["train"]) % 100
    assert ("tail", tail, "tokens") in [(lost.what, lost.count, lost.unit) for lost in plan.lost]
    assert load_split(tmp_path / "out", "*_train_*") == documents["train"][:-tail]
    assert load_split(tmp_path / "out", "*_val_*") == documents["val"]
    with pytest.raises(RecipeError, match=r"train has [\d,]+ tokens: expected at least a shard of 100,000"):
        write_all(store, "llmc", tmp_path / "no", {"last_shard": "drop", "shard_tokens": 100_000})


# ---------------------------------------------------------------------------------------------- damage


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "store", [[5, 6, 7], [8], [9, 10]], vocab_size=300, eod_id=0)
    write_all(store, "llmc", tmp_path / "out", {"shard_tokens": 5})
    return tmp_path / "out"


FIRST = "fineweb_train_000000.bin"


def test_what_is_behind_the_tokens_is_found_and_not_read(shards: Path) -> None:
    with (shards / FIRST).open("ab") as file:
        file.write(b"\7\0\7\0")
    found = read_all("llmc", shards / FIRST, {"marker": 0})
    assert found.problems == [f"{FIRST}: size in bytes: expected 1,034, found 1,038"]
    assert found.reader.tokens == 5


def test_an_evaluation_set_is_refused(shards: Path) -> None:
    (shards / "hellaswag_val.bin").write_bytes(struct.pack("<4i", 20240522, 1, 2, 9).ljust(1024, b"\0"))
    with pytest.raises(InputError, match=r"hellaswag_val.bin: .*found an evaluation set of llm.c"):
        read_all("llmc", shards, {"marker": 0})
