"""MDS shards: streaming reads ours, which are those of its own writer, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.formats.engines import files_of
from tests.formats.peers import run_peer
from tests.formats.steps import write_rows
from tests.formats.stores import CASES, Case

from packline.errors import InputError
from packline.formats.check import check_dataset
from packline.formats.format import get_format
from packline.formats.row_view import RowView
from packline.packing.batch import ALL_FIELDS

STREAMING = ("streaming", "torch")

# A row is a list of values a column: lists of numbers become arrays of the given type, or their bytes.
PEER = """
import random, time
import numpy as np
from streaming import MDSWriter, StreamingDataset

def opened(name):
    # Names in shared memory are the machine's, and two processes that begin together may choose the same one.
    for attempt in range(10):
        try:
            return StreamingDataset(local=name, batch_size=1, shuffle=False)
        except (OSError, ValueError):
            if attempt == 9:
                raise
            time.sleep(random.random())

sets, asked = json.loads(open(arguments[0]).read())
for path, columns, types, rows, settings in sets:
    with MDSWriter(out=path, columns=columns, **settings) as writer:
        for row in rows:
            values = {}
            for name, value in row.items():
                if name in types:
                    value = np.array(value, types[name])
                    if columns[name] == "bytes":
                        value = value.tobytes()
                values[name] = value
            writer.write(values)
answer = {}
for name in asked:
    data = opened(name)
    rows = [data[place] for place in range(len(data))]
    answer[name] = {key: [row[key].tolist() for row in rows] for key in rows[0]}
    answer[name]["dtypes"] = {key: str(value.dtype) for key, value in rows[0].items()}
    # In the order in which a trainer meets them.
    answer[name]["met"] = [row["tokens"].tolist() for row in data]
"""
Sets = list[tuple[str, dict[str, str], dict[str, str], Any, Any]]
"""Folder, columns, types, rows and settings of what the project's writer is to make."""


def view_of(case: Case, folder: Path, *, seq_len: int, **settings: Any) -> RowView:
    store = case.make(folder)
    return RowView.of_store(store, seq_len=min(seq_len, store.manifest.tokens), **settings)


def test_streaming_reads_the_same_rows_and_writes_the_same_files_and_others_pass_the_check(
    tmp_path: Path,
) -> None:
    wanted = {}
    ways: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in CASES]
    ways += [
        ("loss", {"fields": list(ALL_FIELDS)}),
        ("plain", {"fields": ["segment_ids", "tokens"]}),
        ("bos_loss", {"compression": "zstd"}),
        ("shards", {"compression": "zstd:9", "fields": ["tokens", "loss_mask"]}),
    ]
    for number, (name, options) in enumerate(ways):
        folder = tmp_path / f"{number}"
        view = view_of(CASES[name], folder / "store", seq_len=16, packing="best_fit")
        plan = write_rows(view, "mds", folder / "out", {"size_limit": 1500, **options})
        assert len(plan.parts) > 1 or view.rows < 10
        if "compression" in options:
            assert sorted(path.suffix for path in (folder / "out").glob("shard*")) == [".zstd"] * len(
                plan.parts
            )
        fields = options.get("fields", ["tokens", "targets"])
        wanted[str(folder / "out")] = view.read(0, view.rows, fields)
    same, others = sets_of_ours(tmp_path / "same"), sets_of_theirs(tmp_path / "others")
    job = tmp_path / "job.json"
    job.write_text(json.dumps([[*same, *others], list(wanted)]))
    found = run_peer(PEER, job, modules=STREAMING)
    for path, arrays in wanted.items():
        for name, values in arrays.items():
            assert found[path].pop(name) == values.tolist(), (path, name)
        assert found[path].pop("met") == arrays["tokens"].tolist()
        assert found[path] == {"dtypes": {name: values.dtype.name for name, values in arrays.items()}}
    for theirs, *_ in same:
        one = files_of(Path(theirs.replace("theirs", "own")))
        assert one == files_of(Path(theirs))
        assert len(one) > (2 if theirs.endswith("800") else 1)
    for theirs, *_ in others:
        assert problems(Path(theirs)) == "" and get_format("mds").recognises(Path(theirs))


def sets_of_ours(folder: Path) -> Sets:
    """Rows written here to `own-SIZE`, for the project to write to `theirs-SIZE`."""
    sets: Sets = []
    for name, fields in (("plain", ["tokens", "targets"]), ("wide", list(ALL_FIELDS))):
        view = view_of(CASES[name], folder / name / "store", seq_len=10, packing="best_fit")
        arrays = view.read(0, view.rows, fields)
        types = {field: values.dtype.name for field, values in arrays.items()}
        rows = [{field: arrays[field][row].tolist() for field in fields} for row in range(view.rows)]
        columns = {field: f"ndarray:{types[field]}:10" for field in fields}
        for size in (800, 1 << 26):
            options = {"size_limit": size, "fields": fields}
            write_rows(view, "mds", folder / name / f"own-{size}", options)
            sets.append((str(folder / name / f"theirs-{size}"), columns, types, rows, {"size_limit": size}))
    return sets


def sets_of_theirs(folder: Path) -> Sets:
    """Columns of every kind that it writes."""
    long, wide = CASES["long"].stored, CASES["wide"].stored
    same = [[*item[:4], 0] for item in long if len(item) >= 5]
    plain = [{"tokens": item} for item in long]
    mixed = [{"a": "x" * (n % 3), "tokens": item, "id": n, "z": "y" * n} for n, item in enumerate(long)]
    whole = {"a": "str", "id": "int", "tokens": "ndarray:int32", "z": "str"}
    int32, size = {"tokens": "int32"}, {"size_limit": 1000}
    sets: Sets = [
        ("typed", {"tokens": "ndarray:int32"}, int32, plain, size),
        ("free", {"tokens": "ndarray"}, {"tokens": "uint16"}, plain, size),
        ("mixed", whole, int32, mixed, size),
        ("wide", {"tokens": "ndarray:uint32"}, {"tokens": "uint32"}, [{"tokens": i} for i in wide], size),
        ("bytes", {"tokens": "bytes"}, {"tokens": "int64"}, plain, size),
        ("fixed", {"tokens": "ndarray:uint16:5", "t": "str"}, {"tokens": "uint16"},
         [{"tokens": item, "t": "é" * n} for n, item in enumerate(same)], {"size_limit": 400}),
        ("packed", whole, int32, mixed, {"size_limit": 1000, "compression": "zstd:7"}),
        ("hashed", {"tokens": "ndarray:int32"}, int32, plain, {"size_limit": None, "hashes": ["sha1"]}),
    ]  # fmt: skip
    return [(str(folder / name), *rest) for name, *rest in sets]


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    view = view_of(CASES["loss"], tmp_path / "loss", seq_len=16, packing="best_fit")
    mds = get_format("mds")

    def lost(*fields: str) -> set[str]:
        plan = mds.plan(view, mds.options(fields=("tokens", *fields)))
        return {one.what for one in plan.lost}

    assert lost() == {"loss mask", "padding mask", "document boundaries", "provenance"}
    assert lost("targets") == {"document boundaries", "provenance"}
    assert lost("position_ids") == {"loss mask", "padding mask", "provenance"}
    assert lost("loss_mask", "segment_ids") == {"provenance"}


def problems(folder: Path) -> str:
    return "\n".join(map(str, check_dataset(folder, "mds").problems))


def test_shards_of_another_kind_or_version_are_refused(tmp_path: Path) -> None:
    write_rows(view_of(CASES["plain"], tmp_path / "store", seq_len=8), "mds", tmp_path / "out")
    path = tmp_path / "out" / "index.json"
    whole = path.read_text()
    for old, new in (('"version": 2', '"version": 1'), ('"format": "mds"', '"format": "csv"')):
        path.write_text(whole.replace(old, new))
        with pytest.raises(InputError, match="expected shards 'mds' of version 2"):
            problems(tmp_path / "out")
