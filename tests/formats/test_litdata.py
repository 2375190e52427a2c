"""litdata's files: its TokensLoader reads ours, which are those of its own writer, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.damages import Damage, change, cut, remove
from tests.formats.engines import files_of
from tests.formats.peers import run_peer
from tests.formats.row_steps import write_rows
from tests.formats.stores import CASES, Case, make_store, random_documents

from packline.errors import InputError
from packline.formats.check import check_dataset
from packline.formats.format import get_format
from packline.formats.row_view import RowView

LITDATA = ("litdata", "torch")

# The work of each worker of `optimize`, then the reading of its data set.
PEER = """
import numpy as np, torch
from litdata import StreamingDataset, TokensLoader
from litdata.streaming.writer import BinaryWriter
sets, asked = json.loads(open(arguments[0]).read())
for path, kind, dtype, items, settings in sets:
    writer = BinaryWriter(path, item_loader=TokensLoader(), **settings)
    for number, item in enumerate(items):
        array = np.array(item, dtype)
        writer[number] = torch.from_numpy(array) if kind == "tensor" else array
    writer.done()
    writer.merge()
answer = {}
for name, block in asked.items():
    data = StreamingDataset(name, item_loader=TokensLoader(block_size=block))
    rows = [data[place] for place in range(len(data))]
    answer[name] = {"dtype": str(rows[0].dtype), "rows": [row.tolist() for row in rows]}
"""


def view_of(case: Case, folder: Path, *, seq_len: int, **settings: Any) -> RowView:
    store = case.make(folder)
    return RowView.of_store(store, seq_len=min(seq_len, store.manifest.tokens), **settings)


def longer_rows(view: RowView) -> list[list[int]]:
    """Tokens of each row, and the target of the last one, or padding where it has none."""
    arrays = view.read(0, view.rows, ("tokens", "targets"))
    last = arrays["targets"][:, -1]
    return [
        [*row, target if target >= 0 else view.pad_id]
        for row, target in zip(arrays["tokens"].tolist(), last.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    "settings", [{}, {"packing": "best_fit"}, {"packing": "best_fit", "boundary_loss": True}]
)
def test_longer_rows_are_rows_and_their_last_targets(tmp_path: Path, settings: dict[str, Any]) -> None:
    for name, case in CASES.items():
        view = view_of(case, tmp_path / name, seq_len=16, **settings)
        whole = np.full((view.rows, view.seq_len + 1), -7, np.int64)
        for start in range(0, view.rows, 3):
            view.read_longer(start, whole[start : start + 3])
        assert whole.tolist() == longer_rows(view), name


def test_litdata_reads_the_same_rows_and_writes_the_same_files_and_others_pass_the_check(
    tmp_path: Path,
) -> None:
    wanted: dict[str, tuple[list[list[int]], str, int]] = {}
    ways = [(name, "int32", 16) for name in CASES] + [("plain", "uint16", 7), ("shards", "int64", 33)]
    for name, dtype, length in ways:
        folder = tmp_path / f"{name}-{dtype}"
        view = view_of(CASES[name], folder / "store", seq_len=length, packing="best_fit")
        length = view.seq_len
        options = {"dtype": dtype, "shard_bytes": 5 * (length + 1) * np.dtype(dtype).itemsize}
        plan = write_rows(view, "litdata", folder / "out", options)
        assert len(plan.parts) == -(-view.rows // 5)
        wanted[str(folder / "out")] = (longer_rows(view), dtype, length + 1)
    same: list[tuple[str, str, str, Any, Any]] = []
    for name, dtype in (("plain", "int32"), ("wide", "int64")):
        folder = tmp_path / name
        view = view_of(CASES[name], folder / "store", seq_len=10)
        for size in (1, 500, 1 << 26):
            write_rows(view, "litdata", folder / f"own-{size}", {"shard_bytes": size, "dtype": dtype})
            rows = longer_rows(view)
            same.append((str(folder / f"theirs-{size}"), "tensor", dtype, rows, {"chunk_bytes": size}))
    documents, wide = CASES["long"].stored, CASES["wide"].stored
    others: list[tuple[str, str, str, Any, Any]] = [
        ("int32", "tensor", "int32", documents, {"chunk_bytes": 300}),
        ("int64", "tensor", "int64", wide, {"chunk_bytes": 1000}),
        ("numpy", "numpy", "uint16", documents, {"chunk_size": 400}),
        ("wide", "numpy", "uint32", wide, {"chunk_bytes": 1 << 20}),
        ("packed", "tensor", "int32", documents,
         {"chunk_bytes": 800, "compression": "zstd", "compression_level": "chunk"}),
    ]  # fmt: skip
    others = [(str(tmp_path / "others" / name), *rest) for name, *rest in others]
    job = tmp_path / "job.json"
    job.write_text(json.dumps([[*same, *others], {path: block for path, (_, _, block) in wanted.items()}]))
    found = run_peer(PEER, job, modules=LITDATA)
    for path, (rows, dtype, _) in wanted.items():
        assert found[path] == {"dtype": f"torch.{dtype}", "rows": rows}, path
    for theirs, *_ in same:
        one, other = files_of(Path(theirs.replace("theirs", "own"))), files_of(Path(theirs))
        mine, index = json.loads(one.pop("index.json")), json.loads(other.pop("index.json"))
        assert one == other
        assert float(index.pop("updated_at")) and len(mine.pop("updated_at")) == 32
        assert mine == index
    for theirs, *_ in others:
        assert problems(Path(theirs)) == "" and get_format("litdata").recognises(Path(theirs))
    assert sorted((tmp_path / "others" / "packed").glob("*.zstd.bin"))


def test_equal_stores_give_equal_bytes_and_others_another_state(tmp_path: Path) -> None:
    states = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        store = make_store(tmp_path / name, random_documents(20, 300, seed=seed), vocab_size=300, eod_id=0)
        write_rows(RowView.of_store(store, seq_len=8), "litdata", tmp_path / f"{name}-out")
        states.append(files_of(tmp_path / f"{name}-out"))
    assert states[0] == states[1]
    updated = [json.loads(one["index.json"])["updated_at"] for one in states]
    assert updated[0] != updated[2]


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    view = view_of(CASES["loss"], tmp_path / "loss", seq_len=16, packing="best_fit")
    plan = write_rows(view, "litdata", tmp_path / "out")
    assert {lost.what: lost.count for lost in plan.lost} == {
        "loss mask": view.tokens,
        "padding mask": view.padding_tokens,
        "document boundaries": 40,
        "provenance": 40,
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Three files of four rows of nine tokens, without a peer."""
    documents = random_documents(12, 300, longest=7, seed=4)
    store = make_store(tmp_path / "more", documents, vocab_size=300, eod_id=0)
    view = RowView.of_store(store, seq_len=8, packing="pad")
    write_rows(view, "litdata", tmp_path / "out", {"shard_bytes": 4 * 36})
    return tmp_path / "out"


def edit_index(folder: Path, change: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


def problems(folder: Path) -> str:
    return "\n".join(map(str, check_dataset(folder, "litdata").problems))


SECOND = "chunk-0-1.bin"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut": (cut(SECOND, -3), "size in bytes: expected 168, found 165"),
    "items": (change(SECOND, 0, b"\5"), "items: expected 4, found 5"),
    "an end": (change(SECOND, 12, b"\x10\x27"), "end of item 2: expected 10000 or more, found"),
    "offset": (change(SECOND, 4, b"\x14"), "first and last offset: expected [24, 168], found [20, 168]"),
    "missing": (remove(SECOND), "a file that index.json names: expected there, found missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_with_its_place(written: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    assert problems(written) == ""
    damage(written)
    assert f"{SECOND}: {words}" in problems(written)


def test_an_index_that_makes_no_sense_is_refused(written: Path) -> None:
    edit_index(written, lambda index: index["chunks"][2].update(dim=35))
    assert "chunk-0-2.bin: bytes, by its items and tokens" in problems(written)
    edit_index(written, lambda index: index["chunks"][2].update(filename="../chunk-0-0.bin"))
    assert "index.json: entry 2 of chunks" in problems(written)
    edit_index(written, lambda index: index["chunks"].append(7))
    assert "index.json: entry 3 of chunks" in problems(written)
    for format in (["no_header_tensor:1"], ["int"], ["no_header_tensor:16", "int"], None):
        edit_index(written, lambda index, format=format: index["config"].update(data_format=format))
        with pytest.raises(InputError, match="expected"):
            problems(written)
    edit_index(written, lambda index: index["config"].update(item_loader="PyTreeLoader"))
    with pytest.raises(InputError, match="PyTreeLoader"):
        problems(written)
    (written / "index.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        problems(written)
    (written / "index.json").unlink()
    with pytest.raises(InputError, match=r"expected index\.json"):
        problems(written)
    assert not get_format("litdata").recognises(written)
