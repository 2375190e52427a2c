"""levanter's rows: what its processor of records and its causal mask make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.formats.steps import write_rows
from tests.formats.stores import CASES, make_store, random_documents

from packline.formats.check import check_dataset
from packline.formats.export import run_export
from packline.formats.format import recognise
from packline.formats.row_view import RowView
from packline.packing.options import ExportChoice

LENGTH = 24


def examples_of(folder: Path, seq_len: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens and weights as its trainer gets them: a record each, the last position without a loss."""
    mask = np.r_[np.ones(seq_len - 1), 0].astype(np.float32)
    return [
        (np.asarray(record["input_ids"], np.int32), np.asarray(record["loss_weights"], np.float32) * mask)
        for path in sorted(folder.glob("*.parquet"))
        for record in pq.read_table(path).to_pylist()
    ]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
@pytest.mark.parametrize("case", ["plain", "loss", "bos", "wide"])
def test_its_trainer_predicts_what_a_loader_gives(tmp_path: Path, case: str, packing: str) -> None:
    settings: dict[str, Any] = {"seq_len": LENGTH, "packing": packing, "seed": 3}
    view = RowView.of_store(CASES[case].make(tmp_path / "store"), **settings)
    plan = write_rows(view, "levanter", tmp_path / "out", {"shard_tokens": 5 * LENGTH})
    found = examples_of(tmp_path / "out", LENGTH)
    wanted = view.read(0, view.rows)
    assert len(found) == view.rows and len(plan.parts) == -(-view.rows // 5)
    for row, (tokens, weights) in enumerate(found):
        assert np.array_equal(tokens, wanted["tokens"][row])
        targets = wanted["targets"][row][:-1]
        assert np.array_equal(weights[:-1] == 1, targets != -100) and weights[-1] == 0
        learned = weights[:-1] == 1
        assert np.array_equal(np.roll(tokens, -1)[:-1][learned], targets[learned])


def test_a_format_of_documents_does_not_claim_it_and_damage_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", random_documents(40, 300), vocab_size=300, eod_id=0, val=(2, 5, 7, 9))
    out = tmp_path / "out"
    run_export(store.path, to="levanter", out=out, choice=ExportChoice(seq_len=LENGTH), workers=0)
    (out / "packline.json").unlink()
    assert recognise(out).name == "levanter" and check_dataset(out).ok
    (path,) = (out / "val").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    (problem,) = check_dataset(out, "levanter").problems
    assert problem.file == f"val/{path.name}" and "not a whole Parquet file" in problem.what


def test_rows_of_two_lengths_are_reported(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    for length in (LENGTH, 2 * LENGTH):
        write_rows(RowView.of_store(store, seq_len=length), "levanter", tmp_path / str(length))
    (one,) = (tmp_path / str(LENGTH)).iterdir()
    one.rename(tmp_path / str(2 * LENGTH) / "other.parquet")
    (problem,) = check_dataset(tmp_path / str(2 * LENGTH), "levanter").problems
    assert problem.found == f"{LENGTH}, {2 * LENGTH}"
