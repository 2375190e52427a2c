from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.formats.stores import CASES, make_store, random_documents, random_loss

import packline
from packline.errors import CorruptStore, InputError
from packline.facade import Store
from packline.formats.baked import FORMAT, BakedRows
from packline.formats.export import run_export
from packline.formats.row_view import RowView
from packline.packing.batch import ALL_FIELDS
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
    run_export(run, to="baked", out=tmp_path / "rows", options={"file_rows": file_rows}, workers=0)
    rows = BakedRows(tmp_path / "rows")
    loader = packline.Loader.from_file(run, fields=ALL_FIELDS)
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
    rows = packline.write_rows(
        store,
        out=tmp_path / "rows",
        workers=0,
        keep_untrained=True,
        in_order=True if seed is None else None,
        **settings,
    )
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


def test_damage_is_found_with_its_place(run: Path, tmp_path: Path) -> None:
    packline.write_rows(run, out=tmp_path / "rows", workers=0)

    def problems() -> str:
        findings = Findings()
        FORMAT.check(tmp_path / "rows", findings)
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
