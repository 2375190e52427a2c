"""llm.c's shards: what its loaders demand, by readers that were written from the rules."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.damages import Damage, change, cut
from tests.formats.steps import expected, flat, read_all, write_all
from tests.formats.stores import CASES, Case, make_store

from packline.errors import CorruptStore, InputError, RecipeError
from packline.formats.layouts.token_files import BLOCK_TOKENS

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


def batches(folder: Path, pattern: str, size: int, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets: windows of size * length + 1 tokens that overlap by one, file by file."""
    found = []
    for path in sorted(folder.glob(pattern)):
        tokens = load_shard(path)
        step = size * length
        for start in range(0, len(tokens) - step, step):
            window = tokens[start : start + step + 1]
            found.append((window[:-1].reshape(size, length), window[1:].reshape(size, length)))
    return found


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


def test_windows_of_batches(tmp_path: Path) -> None:
    case = CASES["long"]
    write_all(case.make(tmp_path / "store"), "llmc", tmp_path / "out", {"shard_tokens": 1000})
    stream = np.array(flat(expected(case, "bos")["train"]))
    found = batches(tmp_path / "out", "fineweb_train_*.bin", 3, 50)
    assert len(found) == 6 * (len(stream) // 1000) + (len(stream) % 1000 - 1) // 150
    for number, (inputs, targets) in enumerate(found):
        shard, place = divmod(number, 6)
        begin = shard * 1000 + place * 150
        assert np.array_equal(inputs.ravel(), stream[begin : begin + 150])
        assert np.array_equal(targets.ravel(), stream[begin + 1 : begin + 151])


def test_documents_begin_with_one_marker_and_never_two(tmp_path: Path) -> None:
    """modded-nanogpt aligns batches with documents by looking for the marker."""
    case = CASES["plain"]
    write_all(case.make(tmp_path / "store"), "llmc", tmp_path / "out")
    tokens = load_shard(tmp_path / "out/fineweb_train_000000.bin")
    begins = np.flatnonzero(tokens == case.eod_id)
    lengths = np.diff([*begins, len(tokens)])
    assert begins[0] == 0 and lengths.tolist() == [len(body) + 1 for body in case.documents]


@pytest.mark.parametrize(
    ("vocab_size", "options", "magic"),
    [
        (1000, {}, 20240520),
        (1000, {"version": 7}, 20240801),
        (65_536, {}, 20240520),
        (65_537, {}, 20240801),
        (70_000, {"version": 7}, 20240801),
    ],
)
def test_the_version_goes_by_the_vocabulary(
    tmp_path: Path, vocab_size: int, options: dict[str, Any], magic: int
) -> None:
    bodies = [[vocab_size - 1, 5], [6]]
    store = make_store(tmp_path / "store", bodies, vocab_size=vocab_size, eod_id=0)
    write_all(store, "llmc", tmp_path / "out", options)
    (path,) = (tmp_path / "out").iterdir()
    assert struct.unpack("<3i", path.read_bytes()[:12]) == (magic, SIZES[magic][0], 5)
    assert load_shard(path).tolist() == [0, vocab_size - 1, 5, 0, 6]


def test_each_split_may_be_numbered_by_itself_and_the_prefix_be_empty(tmp_path: Path) -> None:
    options = {"shard_tokens": 100, "numbering": "own", "prefix": ""}
    write_all(CASES["splits"].make(tmp_path / "store"), "llmc", tmp_path / "out", options)
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


# --------------------------------------------------------------------------------------------- reading


def test_a_stream_that_does_not_begin_with_a_document(tmp_path: Path) -> None:
    """As a shard in the middle of a data set is."""
    tokens = np.array([7, 8, 0, 5, 6, 0, 9], "<u2")
    path = tmp_path / "x_train_000003.bin"
    path.write_bytes(struct.pack("<3i", 20240520, 1, 7).ljust(1024, b"\0") + tokens.tobytes())
    found = read_all("llmc", path, {"marker": 0})
    assert found.documents == {"train": [[7, 8], [0, 5, 6], [0, 9]]} and found.unfinished == 1
    assert found.places == [(path.name, 1024), (path.name, 1028), (path.name, 1034)]


# ---------------------------------------------------------------------------------------------- damage


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    store = make_store(tmp_path / "store", [[5, 6, 7], [8], [9, 10]], vocab_size=300, eod_id=0)
    write_all(store, "llmc", tmp_path / "out", {"shard_tokens": 5})
    return tmp_path / "out"


FIRST = "fineweb_train_000000.bin"
DAMAGED: list[tuple[Damage, str]] = [
    (change(FIRST, 0, struct.pack("<i", 1234)), "magic number: expected 20240520 or 20240801, found 1234"),
    (change(FIRST, 4, b"\7"), "version, of magic 20240520: expected 1, found 7"),
    (change(FIRST, 8, b"\6"), "size in bytes: expected 1,036, found 1,034"),
    (change(FIRST, 0, struct.pack("<2i", 20240801, 7)), "size in bytes: expected 1,044, found 1,034"),
    (change(FIRST, 8, struct.pack("<i", -5)), "tokens, by its header: expected none or more, found -5"),
    (cut(FIRST, 1030), "size in bytes: expected 1,034, found 1,030"),
    (cut(FIRST, 1033), "size in bytes: expected 1,034, found 1,033"),
    (cut(FIRST, 700), "bytes of the header: expected 1,024, found 700"),
    (cut(FIRST, 0), "bytes of the header: expected 1,024, found 0"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_damage_is_found(shards: Path, damage: Damage, message: str) -> None:
    damage(shards)
    assert read_all("llmc", shards / FIRST, {"marker": 0}).problems == [f"{FIRST}: {message}"]


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


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    from packline.formats.llmc import FORMAT, LlmcOptions
    from packline.store.report import Findings

    path = tmp_path / "x_train_000000.bin"
    count = BLOCK_TOKENS + 10
    path.write_bytes(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + b"\0\0" * count)
    reader = FORMAT.open(tmp_path, LlmcOptions(marker=0), Findings())
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorruptStore, match=rf"{path.name} ends at byte {1024 + 2 * count - 4:,}"):
        list(reader.blocks(reader.units[0]))


def test_it_is_recognised(shards: Path, tmp_path: Path) -> None:
    from packline.formats.llmc import FORMAT

    assert FORMAT.recognises(shards) and FORMAT.recognises(shards / FIRST)
    assert not FORMAT.recognises(tmp_path / "store") and not FORMAT.recognises(tmp_path / "gone")
    (shards / "fineweb_train_000000_mask.bin").write_bytes(b"")
    assert not FORMAT.recognises(shards)  # seed for a format with masks beside its tokens
