"""Rows in torch files: what torch and the project's own loader find, and what a check finds."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.engines import files_of
from tests.formats.peers import run_peer
from tests.formats.steps import write_rows
from tests.formats.stores import CASES, Case, make_store

from packline.errors import CorruptStore, RecipeError
from packline.formats import pt
from packline.formats.check import check_dataset
from packline.formats.format import get_format
from packline.formats.pt import read_tensor, tensor_file, tensor_file_bytes
from packline.formats.row_view import RowView
from packline.formats.types import ExportPlan

# The project's own data set: files in the order of their names, cut to what the model takes.
PEER = """
import pathlib, torch, zipfile
def load(folder, longest):
    paths = sorted(pathlib.Path(folder).glob("chunk_*.pt"))
    tensors = [torch.load(path, weights_only=True) for path in paths]
    mapped = [torch.load(path, weights_only=True, mmap=True) for path in paths]
    assert all(torch.equal(one, other) for one, other in zip(tensors, mapped, strict=True))
    assert all(one.dtype == torch.int64 and one.ndim == 1 and one.is_contiguous() for one in tensors)
    return [tensor[:longest].tolist() for tensor in tensors]
folder = pathlib.Path(arguments[0])
rows = [load(*item) for item in json.loads(arguments[1])]
programs = []
for length in json.loads(arguments[2]):
    assert torch.equal(torch.load(folder / f"ours{length}.pt", weights_only=True), torch.arange(length))
    torch.save(torch.arange(length), folder / f"theirs{length}.pt")
    programs.append(zipfile.ZipFile(folder / f"theirs{length}.pt").read(f"theirs{length}/data.pkl").hex())
for number in range(2):
    torch.save(torch.tensor([4, 7, 5, number]), folder / f"in/chunk_{number:06d}.pt")
    part = torch.arange(100, dtype=torch.int32)[10 * number : 10 * number + 4]
    torch.save(part, folder / f"slices/chunk_{number:06d}.pt")
torch.save(torch.ones(4), folder / "floats.pt")
torch.save(torch.ones(2, 2, dtype=torch.int64), folder / "square.pt")
torch.save({"ids": torch.arange(4)}, folder / "dict.pt")
torch.save(torch.arange(8)[::2], folder / "stride.pt")
torch.save(torch.arange(8), folder / "legacy.pt", _use_new_zipfile_serialization=False)
answer = rows, programs
"""
OTHERS = {
    "floats.pt": "expected integers, found Float",
    "square.pt": "expected one row of integers, found another object",
    "dict.pt": "expected one row of integers, found another object",
    "stride.pt": "expected one row of integers, found another object",
    "legacy.pt": "not a zip file",
}


def write(view: RowView, folder: Path, **options: Any) -> ExportPlan:
    return write_rows(view, "pt", folder, options)


def metadata(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metadata.json").read_text())
    return found


ALL_TRAIN = {name: case for name, case in CASES.items() if not case.val}


def full_rows(case: Case) -> tuple[list[list[int]], int]:
    """Rows of at most 16 tokens of which a case fills two or more, and how many tokens are left."""
    stream = [token for document in case.stored for token in document]
    length = min(16, len(stream) // 2)
    count, rest = divmod(len(stream), length)
    return [stream[number * length : (number + 1) * length] for number in range(count)], rest


def test_torch_reads_ours_and_writes_the_same_program_and_what_it_saved_is_read(tmp_path: Path) -> None:
    """Numbers take 1, 2 or 4 bytes there, by their size. A slice is saved with the whole tensor that it is
    of; here only its own integers count."""
    wanted = [full_rows(case)[0] for case in ALL_TRAIN.values()]
    for (name, case), rows in zip(ALL_TRAIN.items(), wanted, strict=True):
        store = case.make(tmp_path / f"{name}-store")
        write(RowView.of_store(store, seq_len=len(rows[0]), min_tail_fraction=0.0), tmp_path / name)
    lengths = [10, 255, 256, 65_535, 65_536, 70_000]
    for length in lengths:
        (tmp_path / f"ours{length}.pt").write_bytes(tensor_file(np.arange(length), f"ours{length}"))
    for name in ("in", "slices"):
        (tmp_path / name).mkdir()
    asked = [(str(tmp_path / name), len(rows[0])) for name, rows in zip(ALL_TRAIN, wanted, strict=True)]
    found, programs = run_peer(PEER, tmp_path, json.dumps(asked), json.dumps(lengths), modules=("torch",))
    assert dict(zip(ALL_TRAIN, found, strict=True)) == dict(zip(ALL_TRAIN, wanted, strict=True))
    for length, program in zip(lengths, programs, strict=True):
        path = tmp_path / f"ours{length}.pt"
        assert zipfile.ZipFile(path).read(f"{path.stem}/data.pkl").hex() == program
        assert path.stat().st_size <= tensor_file_bytes(length, path.stem) < path.stat().st_size + 128
        for name in ("ours", "theirs"):
            assert np.array_equal(read_tensor(tmp_path / f"{name}{length}.pt"), np.arange(length))
    read = {name: read_tensor(tmp_path / name / "chunk_000001.pt").tolist() for name in ("in", "slices")}
    assert read == {"in": [4, 7, 5, 1], "slices": [10, 11, 12, 13]}
    assert all(check_dataset(tmp_path / name, "pt").ok for name in read)
    for name, match in OTHERS.items():
        with pytest.raises(CorruptStore, match=match):
            read_tensor(tmp_path / name)


@pytest.mark.parametrize("case", ALL_TRAIN.values(), ids=ALL_TRAIN)
def test_what_metadata_says(tmp_path: Path, case: Case) -> None:
    rows, rest = full_rows(case)
    view = RowView.of_store(case.make(tmp_path / "store"), seq_len=len(rows[0]), min_tail_fraction=0.0)
    plan = write(view, tmp_path / "out")
    assert metadata(tmp_path / "out") == {
        "dataset": "packline",
        "tokenizer": "tokenizer.json",
        "vocab_size": case.vocab_size,
        "chunk_size": len(rows[0]),
        "num_chunks": len(rows),
        "total_tokens": len(rows) * len(rows[0]),
        "pad_token_id": case.eod_id,
        "eos_token_id": case.eod_id,
        "bos_token_id": case.bos_id,
        "leftover_tokens": rest,
    }
    assert [lost.count for lost in plan.lost if lost.what == "tail"] == ([rest] if rest else [])


def test_data_begins_at_a_multiple_of_64_bytes() -> None:
    for name in ("a", "chunk_000000", "chunk_12345678"):
        data = tensor_file(np.arange(7) + 2**40, name)
        assert data.index((2**40).to_bytes(8, "little")) % 64 == 0


def test_rows_with_padding_are_left_over_and_every_token_is_accounted_for(tmp_path: Path) -> None:
    case = CASES["plain"]
    store = case.make(tmp_path / "store")
    for packing in ("best_fit", "pad", "concat"):
        view = RowView.of_store(store, seq_len=30, packing=packing)
        write(view, tmp_path / packing)
        said = metadata(tmp_path / packing)
        assert said["total_tokens"] + said["leftover_tokens"] == store.manifest.tokens
        full = view.read(0, view.rows, ("tokens",))["tokens"][view.lengths(0, view.rows) == 30]
        found = [read_tensor(path) for path in sorted((tmp_path / packing).glob("*.pt"))]
        assert np.array_equal(np.stack(found), full) and said["num_chunks"] == len(full)


def test_files_are_numbered_through_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    view = RowView.of_store(store, seq_len=12, packing="best_fit")
    write(view, tmp_path / "one")
    monkeypatch.setattr(pt, "PART_FILES", 7)
    monkeypatch.setattr(pt, "BLOCK_TOKENS", 30)
    assert len(write(view, tmp_path / "many").parts) > 3
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


@pytest.mark.parametrize("most", [1, 7, 8, 1000])
def test_not_more_files_than_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(pt, "PART_FILES", 7)
    store = CASES["plain"].make(tmp_path / "store")
    view = RowView.of_store(store, seq_len=16)
    write(view, tmp_path / "all", dataset="books")
    write(view, tmp_path / "some", dataset="books", max_files=most)
    everything, some = files_of(tmp_path / "all"), files_of(tmp_path / "some")
    wanted = min(most, len(everything) - 1)
    said = metadata(tmp_path / "some")
    assert len(some) == wanted + 1 == said["num_chunks"] + 1 and said["dataset"] == "books"
    assert said["total_tokens"] + said["leftover_tokens"] == store.manifest.tokens
    assert all(some[name] == everything[name] for name in some if name.endswith(".pt"))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5, 6], [7]], vocab_size=300, eod_id=0)
    with pytest.raises(RecipeError, match="no row of 5 tokens is full"):
        write(RowView.of_store(store, seq_len=5, packing="pad"), tmp_path / "out")


# ---------------------------------------------------------------------------------------------- damage


class Harm:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_of_a_file_is_executed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    harmed = tmp_path / "harmed"
    program = pickle.dumps(Harm(harmed), protocol=2)
    pickletools.dis(program, io.StringIO())  # it is a sound one
    with zipfile.ZipFile(tmp_path / "in" / "chunk_000000.pt", "w") as archive:
        archive.writestr("chunk_000000/data.pkl", program)
        archive.writestr("chunk_000000/data/0", bytes(16))
    assert "chunk_000000.pt: expected one row of integers, found another" in problems(tmp_path / "in")
    assert not harmed.exists() and not get_format("pt").recognises(tmp_path / "in")


def problems(folder: Path) -> str:
    return "\n".join(map(str, check_dataset(folder, "pt").problems))


def test_the_padding_token_that_its_script_adds_is_no_other_vocabulary(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    write(RowView.of_store(store, seq_len=16), tmp_path / "out")
    said = metadata(tmp_path / "out") | {"vocab_size": 1001, "pad_token_id": 1000}
    (tmp_path / "out" / "metadata.json").write_text(json.dumps(said))
    assert check_dataset(tmp_path / "out", "pt", store.path / "tokenizer").ok
    (tmp_path / "out" / "metadata.json").write_text(json.dumps(said | {"pad_token_id": None}))
    (problem,) = check_dataset(tmp_path / "out", "pt", store.path / "tokenizer").problems
    assert "vocabulary of 1,001" in str(problem)
