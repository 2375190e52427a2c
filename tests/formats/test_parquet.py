"""parquet: `datasets` loads ours, and what `datasets` and pyarrow wrote is read here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.formats.engines import bring_back, documents_of, files_of, write
from tests.formats.peers import run_peer
from tests.formats.steps import expected, read_all
from tests.formats.stores import CASES, Case, make_store

from packline.formats import parquet
from packline.formats.export import run_export

PEER = """
import datasets
folder, documents, *names = arguments
made = datasets.Dataset.from_dict({"text": ["t"] * 40, "input_ids": json.loads(documents)})
for kind, rows in (("int64", 1000), ("int32", 4)):
    made = made.cast_column("input_ids", datasets.List(datasets.Value(kind)))
    path = f"{folder}/{kind}/data"
    made.select(range(30)).to_parquet(path + "/train-00000-of-00002.parquet", batch_size=rows)
    made.select(range(30, 35)).to_parquet(path + "/train-00001-of-00002.parquet")
    made.select(range(35, 40)).to_parquet(path + "/test-00000-of-00001.parquet")
answer = {}
for name in names:
    loaded = datasets.load_dataset(f"{folder}/{name}", cache_dir=f"{folder}/cache")
    answer[name] = {split: {column: one[column][:] for column in one.column_names}
                    for split, one in loaded.items()}
    answer[name]["features"] = {column: str(kind) for column, kind in loaded["train"].features.items()}
"""


def edges_of(case: Case) -> Any:
    return "eod" if case.bos_id is None else "both"


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row groups, and documents longer than one."""
    monkeypatch.setattr(parquet, "GROUP_DOCUMENTS", 9)
    monkeypatch.setattr(parquet, "GROUP_TOKENS", 100)


def test_the_library_reads_ours_and_what_it_wrote_is_imported(tmp_path: Path) -> None:
    """Also beside packline.json and tokenizer.json, which are no data of it."""
    plain, out = CASES["plain"], tmp_path / "out"
    for name, case in CASES.items():
        store = case.make(tmp_path / name / "store")
        options = {"edges": edges_of(case), "shard_tokens": 150}
        run_export(str(store.path), to="parquet", out=out / name, options=options, workers=0)
    assert (out / "plain" / "tokenizer.json").exists()
    for kind in ("int32", "int64"):
        (out / kind / "data").mkdir(parents=True)
    found = run_peer(PEER, out, json.dumps(plain.stored), *CASES, modules=("datasets",))
    for name, case in CASES.items():
        wanted = expected(case, edges_of(case))
        features = found[name].pop("features")
        assert features["input_ids"] == "List(Value('int32'))"
        assert set(found[name]) == {"validation" if split == "val" else split for split in wanted}
        for split, documents in wanted.items():
            assert found[name]["validation" if split == "val" else split]["input_ids"] == documents
        if case.loss is not None:
            masked = [
                [token if flag else -100 for token, flag in zip(*both, strict=True)]
                for both in zip(case.stored, case.loss, strict=True)
            ]
            assert found[name]["train"]["labels"] == masked
    for kind in ("int32", "int64"):
        back = bring_back(out / kind, "parquet", plain.make(tmp_path / f"{kind}-store"), tmp_path / kind)
        assert documents_of(back) == {"train": plain.stored[:35], "test": plain.stored[35:]}
        assert read_all("parquet", out / kind).reader.dtype == np.dtype(kind)
        places = [back.provenance(number) for number in range(40)]
        first = [one.position for one in places if one.file.endswith("train-00000-of-00002.parquet")]
        assert first == list(range(30))


def test_row_groups_are_bounded_and_do_not_depend_on_shards(tmp_path: Path) -> None:
    for shards in (1, 4):
        store = make_store(
            tmp_path / f"{shards}", CASES["plain"].documents, vocab_size=1000, eod_id=0, shards=shards
        )
        write(store, "parquet", tmp_path / f"{shards}-out", {"compression": "none"})
    assert files_of(tmp_path / "1-out") == files_of(tmp_path / "4-out")
    metadata = pq.read_metadata(tmp_path / "1-out" / "train-00000-of-00001.parquet")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert len(groups) >= math.ceil(40 / 9)
    assert all(group.num_rows <= 9 and group.column(0).num_values <= 100 for group in groups)


def test_units_are_row_groups_and_blocks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["plain"]
    write(case.make(tmp_path / "store"), "parquet", tmp_path / "out", {"provenance": True})
    monkeypatch.setattr("packline.formats.columns.UNIT_TOKENS", 150)
    for module in ("columns", "parquet"):
        monkeypatch.setattr(f"packline.formats.{module}.BLOCK_TOKENS", 30)
    found = read_all("parquet", tmp_path / "out")
    assert len(found.reader.units) > 3 and found.documents == {"train": case.stored}
    assert [position for _, position in found.places] == list(range(40))
    sizes = [block.tokens.size for unit in found.reader.units for block in found.reader.blocks(unit)]
    assert max(sizes) <= max(30, *map(len, case.stored))


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_every_flipped_byte_of_a_page_is_found(tmp_path: Path, compression: str) -> None:
    store = CASES["one"].make(tmp_path / "store")
    write(store, "parquet", tmp_path / "out", {"compression": compression})
    path = tmp_path / "out" / "train-00000-of-00001.parquet"
    data, whole = path.read_bytes(), read_all("parquet", tmp_path / "out")
    column = pq.read_metadata(path).row_group(0).column(0)
    pages, kind = column.total_compressed_size, compression.upper().replace("NONE", "UNCOMPRESSED")
    assert column.compression == kind
    found = 0
    for place in range(4, 4 + pages):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            changed = read_all("parquet", tmp_path / "out")
        except OSError:
            found += 1
            continue
        assert changed.documents == whole.documents  # of the page's header, something that does not matter
    assert found > pages // 2
