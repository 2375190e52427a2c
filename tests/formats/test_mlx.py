"""Batches of `npz` trained on with MLX and chuk-mlx's loss, which knows no ignored index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.formats.peers import run_peer
from tests.formats.steps import write_rows
from tests.formats.stores import make_store

from packline.formats.row_view import RowView

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
