"""chuk-mlx's batches: what NumPy finds in them, and what a check finds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.peers import run_peer
from tests.formats.steps import IGNORED, rows_by_hand, write_rows
from tests.formats.stores import CASES, Case, make_store

from packline.formats.row_view import RowView

KEYS = ["input_tensor", "target_tensor", "attention_mask_tensor", "lengths"]
Arrays = dict[str, Any]


def load(folder: Path, prefix: str = "tokenized") -> list[Arrays]:
    """All batches, in the order in which a trainer counts them up from 1."""
    found: list[Arrays] = []
    while (path := folder / f"{prefix}_batch_{len(found) + 1:04d}.npz").exists():
        with np.load(path, allow_pickle=False) as batch:
            found.append({key: batch[key] for key in batch.files})
    return found


def stacked(batches: list[Arrays]) -> Arrays:
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def kept_tail(case: Case, seq_len: int) -> dict[str, Any]:
    """Settings with which no token of a case is left out."""
    longest = sum(len(body) + 1 + (case.bos_id is not None) for body in case.documents)
    return {"seq_len": min(seq_len, longest), "min_tail_fraction": 0.0}


ALL_TRAIN = {name: case for name, case in CASES.items() if not case.val}


@pytest.mark.parametrize("case", ALL_TRAIN.values(), ids=ALL_TRAIN)
def test_numpy_finds_rows_targets_masks_and_true_lengths(tmp_path: Path, case: Case) -> None:
    chosen = kept_tail(case, 16)
    view = RowView.of_store(case.make(tmp_path / "store"), batch_size=3, **chosen)
    plan = write_rows(view, "npz", tmp_path / "out")
    batches = load(tmp_path / "out")
    assert len(batches) == len(list((tmp_path / "out").iterdir())) == -(-view.rows // 3)
    assert [len(batch["lengths"]) for batch in batches[:-1]] == [3] * (len(batches) - 1)
    found = stacked(batches)
    assert list(found) == KEYS and {array.dtype for array in found.values()} == {np.dtype("<i4")}
    tokens, targets, lengths = rows_by_hand(case.stored, view.seq_len, case.eod_id, case.loss)
    assert found["input_tensor"].tolist() == tokens
    assert found["target_tensor"].tolist() == targets
    assert found["lengths"].tolist() == lengths
    mask = [[int(target != IGNORED) for target in row] for row in targets]  # nothing else may be learned
    assert found["attention_mask_tensor"].tolist() == mask
    assert plan.bytes == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_a_file_is_what_numpy_saves(tmp_path: Path) -> None:
    view = RowView.of_store(CASES["loss"].make(tmp_path / "store"), seq_len=24, batch_size=5)
    write_rows(view, "npz", tmp_path / "out")
    for number, batch in enumerate(load(tmp_path / "out"), 1):
        saved = io.BytesIO()
        np.savez(saved, **batch)
        assert (tmp_path / "out" / f"tokenized_batch_{number:04d}.npz").read_bytes() == saved.getvalue()


def test_options(tmp_path: Path) -> None:
    store = CASES["plain"].make(tmp_path / "store")
    view = RowView.of_store(store, seq_len=16, batch_size=100)
    plan = write_rows(
        view, "npz", tmp_path / "out", {"prefix": "books", "dtype": "uint16", "ignore_index": 65_535}
    )
    (batch,) = load(tmp_path / "out", "books")
    assert [batch[key].dtype.name for key in KEYS] == ["uint16", "uint16", "uint16", "int32"]
    wanted = view.read(0, view.rows, ("tokens", "targets"))
    assert np.array_equal(batch["input_tensor"], wanted["tokens"])
    assert np.array_equal(
        batch["target_tensor"], np.where(wanted["targets"] == IGNORED, 65_535, wanted["targets"])
    )
    assert np.array_equal(batch["attention_mask_tensor"], wanted["targets"] != IGNORED)
    assert "loss mask" not in [lost.what for lost in plan.lost]
    taken = write_rows(view, "npz", tmp_path / "zero", {"ignore_index": 0})
    assert "loss mask" in [lost.what for lost in taken.lost]


@pytest.mark.parametrize("name", ["plain", "loss"])
def test_a_mask_of_padding_changes_nothing_else(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    view = RowView.of_store(case.make(tmp_path / "store"), batch_size=3, **kept_tail(case, 16))
    for mask in ("loss", "padding"):
        write_rows(view, "npz", tmp_path / mask, {"mask": mask})
    loss, padding = stacked(load(tmp_path / "loss")), stacked(load(tmp_path / "padding"))
    assert [key for key in KEYS if not np.array_equal(loss[key], padding[key])] == [KEYS[2]]
    inside = np.arange(view.seq_len) < loss["lengths"][:, None]
    assert np.array_equal(padding[KEYS[2]], inside)


EOD, VOCAB = 7, 300
WRONG = VOCAB - 100
"""Token that the index -100 selects in the logits."""

# chuk-mlx's loss: the mean of cross_entropy where attention_mask is 1. The model is a table of logits.
CHUK_LOSS = f"""
import sys
import mlx.core as mx
import mlx.nn as nn
from pathlib import Path

def loss(table, batch):
    losses = nn.losses.cross_entropy(table[batch["input_tensor"]], batch["target_tensor"])
    mask = batch["attention_mask_tensor"]
    return (losses * mask).sum() / mask.sum()

batches = [mx.load(str(path)) for path in sorted(Path(arguments[0]).glob("*.npz"))]
mx.random.seed(1)
first = mx.random.normal(({VOCAB}, {VOCAB}))
step = mx.value_and_grad(loss)
answer = {{}}
for name in ("as written", "of padding"):
    if name == "of padding":
        for batch in batches:
            places = mx.arange(batch["input_tensor"].shape[1])
            batch["attention_mask_tensor"] = (places < batch["lengths"][:, None]).astype(mx.int32)
    begin = [loss(first, batch).item() for batch in batches]
    table = first
    for _ in range(30):
        for batch in batches:
            _, gradient = step(table, batch)
            table = table - 20.0 * gradient
    after = mx.softmax(table[{EOD}])[{WRONG}].item()
    answer[name] = {{"begin": begin, "after": after, "end": loss(table, batches[0]).item()}}
answer["table"] = first.tolist()
"""


def by_hand(table: np.ndarray, batch: dict[str, Any]) -> float:
    """The mean loss of a batch over the places that have a target."""
    logits = table[batch["input_tensor"]]
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = [
        -logits[row, place, target]
        for row, targets in enumerate(batch["target_tensor"].tolist())
        for place, target in enumerate(targets)
        if target >= 0
    ]
    return float(np.mean(losses))


def test_the_loss_of_chuk_mlx_learns_nothing_where_there_is_no_target(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    ids = np.setdiff1d(np.arange(VOCAB), [EOD, WRONG])
    documents = [generator.choice(ids, size).tolist() for size in (12, 3, 30, 9, 1, 17, 22, 5, 14)]
    masks = [generator.integers(0, 2, len(body) + 1).tolist() for body in documents]
    store = make_store(tmp_path / "store", documents, vocab_size=VOCAB, eod_id=EOD, loss=masks)
    view = RowView.of_store(store, seq_len=32, packing="best_fit", batch_size=2)
    write_rows(view, "npz", tmp_path / "out")
    answer = run_peer(CHUK_LOSS, tmp_path / "out", modules=("mlx",))

    table = np.array(answer["table"])
    wanted = [by_hand(table, dict(np.load(path))) for path in sorted((tmp_path / "out").glob("*.npz"))]
    assert np.allclose(answer["as written"]["begin"], wanted, atol=1e-4, rtol=0)
    assert answer["as written"]["end"] < wanted[0] / 2  # it does learn what there is
    at_first = np.exp(table[EOD, WRONG]) / np.exp(table[EOD]).sum()
    assert np.isclose(answer["as written"]["after"], at_first) and at_first < 0.01
    # With the mask of padding, the same loss teaches that token V-100 follows an end of document.
    assert not np.allclose(answer["of padding"]["begin"], wanted, atol=1e-2, rtol=0)
    assert answer["of padding"]["after"] > 0.5
