"""litdata's files: its TokensLoader reads ours, which are those of its own writer, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.engines import files_of
from tests.formats.peers import run_peer
from tests.formats.steps import write_rows
from tests.formats.stores import CASES, Case

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


def problems(folder: Path) -> str:
    return "\n".join(map(str, check_dataset(folder, "litdata").problems))


def test_an_index_of_other_data_is_refused(tmp_path: Path) -> None:
    write_rows(view_of(CASES["plain"], tmp_path / "store", seq_len=8), "litdata", written := tmp_path / "out")

    def refused(words: str) -> None:
        with pytest.raises(InputError, match=words):
            check_dataset(written, "litdata")

    whole = (written / "index.json").read_text()
    for format in ("no_header_tensor:1", "int", 'no_header_tensor:16", "int'):
        (written / "index.json").write_text(whole.replace("no_header_tensor:16", format))
        refused("expected items of one tensor of integers for TokensLoader")
    (written / "index.json").write_text(whole.replace("TokensLoader", "PyTreeLoader"))
    refused("for PyTreeLoader")
    (written / "index.json").write_text("{")
    refused("is not JSON")
    assert not get_format("litdata").recognises(written)
