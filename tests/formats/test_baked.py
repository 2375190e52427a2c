from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.formats.stores import CASES, Case, make_store, random_documents, random_loss

import packline
from packline.errors import CorruptStore, InputError
from packline.facade import Store
from packline.formats.baked import FORMAT, BakedOptions, BakedRows
from packline.formats.exporting.rows import RowView
from packline.formats.exporting.run import export
from packline.packing.arrays import ALL_FIELDS
from packline.store.index import Index
from packline.store.report import Findings

RUN = """
[loader]
batch_size = 4
seed = 9

[[stages]]
seq_len = 16
tokens = 640
packing = "best_fit"
boundary_loss = true

[[stages.sources]]
store = "plain"
weight = 2

[[stages.sources]]
store = "loss"
weight = 1
max_epochs = 3

[[stages]]
seq_len = 16

[[stages.sources]]
store = "loss"
max_epochs = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for number, name in enumerate(["plain", "loss"]):
        documents = random_documents(60, 1000, longest=30, seed=number)
        mask = random_loss(documents) if name == "loss" else None
        make_store(folder / name, documents, vocab_size=1000, eod_id=0, loss=mask, shards=2)
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


@pytest.mark.parametrize("file_rows", [0, 1, 7])
def test_baked_rows_are_the_global_batches_bit_for_bit(run: Path, tmp_path: Path, file_rows: int) -> None:
    export(run, to="baked", out=tmp_path / "rows", options={"file_rows": file_rows}, workers=0)
    rows = BakedRows(tmp_path / "rows")
    loader = packline.load(run, fields=ALL_FIELDS)
    assert (len(rows), rows.seq_len, rows.batch_size) == (4 * len(loader), 16, 4)
    for step in range(len(loader)):
        batch, found = loader.batch(step), rows.read(np.arange(4 * step, 4 * step + 4), ALL_FIELDS)
        for name in ALL_FIELDS:
            assert found[name].dtype == batch[name].dtype
            assert found[name].tobytes() == batch[name].tobytes(), (step, name)
    with pytest.raises(IndexError):
        rows.read(np.array([len(rows)]))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    packing=st.sampled_from(["concat", "best_fit", "pad"]),
    seed=st.none() | st.integers(0, 3),
    chosen=st.data(),
    case=st.sampled_from(["plain", "wide", "bos", "loss", "shards"]),
)
def test_any_rows_of_any_store(
    made: dict[str, Store], tmp_path: Path, packing: str, seed: int | None, chosen: st.DataObject, case: str
) -> None:
    store = made[case]
    settings: dict[str, Any] = {"seq_len": 12, "packing": packing, "seed": seed}
    shutil.rmtree(tmp_path / "rows", ignore_errors=True)
    rows = packline.bake(store, out=tmp_path / "rows", workers=0, **settings)
    view = RowView.of_store(store, **settings)
    picked = chosen.draw(st.lists(st.integers(0, view.rows - 1), max_size=9))
    found = rows.read(np.array(picked, np.int64), ALL_FIELDS)
    for place, row in enumerate(picked):
        expected = view.read(row, row + 1, ALL_FIELDS)
        for name in ALL_FIELDS:
            assert np.array_equal(found[name][place], expected[name][0]), name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    folder = tmp_path_factory.mktemp("made")
    return {name: case.make(folder / name) for name, case in CASES.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("chosen", [{}, {"seed": 3, "epochs": 2}, {"seed": 1, "packing": "best_fit"}])
def test_documents_come_back_whatever_the_order_of_rows(
    made: dict[str, Store], case: Case, chosen: dict[str, Any], tmp_path: Path
) -> None:
    store = made[case.name]
    size = 8 if store.manifest.tokens >= 8 else 2
    tail: dict[str, Any] = {} if chosen.get("packing") else {"min_tail_fraction": 0.0}
    packline.export(
        store,
        to="baked",
        out=tmp_path / "rows",
        options={"file_rows": 5},
        seq_len=size,
        split="all",
        workers=0,
        **chosen,
        **tail,
    )
    findings = Findings()
    foreign = FORMAT.open(tmp_path / "rows", BakedOptions(), findings)
    assert findings.problems == []
    assert foreign.edges == ("eod" if case.bos_id is None else "both")
    found, masks = [], []
    for unit in foreign.units:
        for block in foreign.blocks(unit):
            assert block.unfinished is None
            for low, high in zip(block.offsets, block.offsets[1:], strict=False):
                found.append(block.tokens[low:high].tolist())
                masks.append(None if block.loss is None else block.loss[low:high].tolist())
    assert found == [document.tolist() for document in store.documents]
    whole = sorted(piece for unit in foreign.units for piece in unit.pieces)
    assert whole == [(number, 0, file.bytes) for number, file in enumerate(foreign.files)]
    for number, mask in enumerate(masks):
        shard, inner = store.locate(number)
        begin = int(shard.places(np.array([inner]))[0])
        if shard.loss is None:
            assert mask is None
        else:  # that of the first token cannot show in rows: it is nobody's target
            assert mask is not None and mask[1:] == shard.loss[begin + 1 : begin + len(mask)].tolist()


def test_what_rows_left_out_is_unfinished(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [[*range(5, 25)], [30]], vocab_size=300, eod_id=0)
    packline.bake(store, out=tmp_path / "rows", seq_len=8, packing="pad", workers=0)
    foreign = FORMAT.open(tmp_path / "rows", BakedOptions(), Findings())
    (block,) = foreign.blocks(foreign.units[0])
    assert block.tokens.tolist() == [*range(5, 13), 30, 0]
    assert block.unfinished is not None and block.unfinished.tolist() == [True, False]


def test_the_index_is_megatrons(run: Path, tmp_path: Path) -> None:
    rows = packline.bake(run, out=tmp_path / "rows", stage=1, workers=0)
    index = Index(tmp_path / "rows" / "rows-000000.idx")
    assert len(index) == len(rows) and set(index.lengths.tolist()) == {17}


def test_damage_is_found_with_its_place(run: Path, tmp_path: Path) -> None:
    packline.bake(run, out=tmp_path / "rows", workers=0)

    def problems() -> str:
        findings = Findings()
        FORMAT.open(tmp_path / "rows", BakedOptions(), findings)
        return "; ".join(map(str, findings.problems))

    assert problems() == ""
    for ending, said in ((".bin", "expected"), (".loss", "expected"), (".idx", "expected")):
        path = tmp_path / "rows" / f"rows-000000{ending}"
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        assert f"rows-000000{ending}" in problems() and said in problems()
        path.write_bytes(data)
    (tmp_path / "rows" / "rows-000000.rows.parquet").unlink()
    assert "cannot read" in problems()
    (tmp_path / "rows" / "rows-000000.bin").write_bytes(b"")
    assert problems().count("rows-000000: ") == 2  # all that is wrong, not the first of it
    with pytest.raises(CorruptStore, match=r"rows-000000\.bin"):
        BakedRows(tmp_path / "rows")
    (tmp_path / "rows" / "baked.json").write_text("{}")
    with pytest.raises(CorruptStore, match=r"baked\.json: expected 328 bytes, found 2"):
        BakedRows(tmp_path / "rows")
    with pytest.raises(InputError, match="no baked rows"):
        BakedRows(tmp_path)
