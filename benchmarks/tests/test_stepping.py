"""Waits of training steps: what is counted as one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from packline.testing import make_store

pytest.importorskip("torch", reason="the optional torch is not installed")


def test_slow_batches_are_waits_and_the_rest_of_a_step_is_not(tmp_path: Path) -> None:
    import torch
    from examples.tiny_gpt import TinyGPT

    import packline
    from benchmarks.contenders.training_steps import UNCOUNTED, train

    rows = make_store(tmp_path / "store", [[40] * 30]).rows(seq_len=64, packing="best_fit")
    loader = packline.Loader(rows, batch_size=1, epochs=1000)
    pauses = iter([0.0] * UNCOUNTED + [0.05, 0.0, 0.05, 0.0])

    def slow() -> Iterator[dict[str, np.ndarray]]:
        for batch in loader:
            time.sleep(next(pauses))
            yield batch

    model = TinyGPT(rows.store.manifest.tokenizer.vocab_size, layers=1, width=16, heads=2)
    before = model.tokens.weight.detach().clone()
    waits, steps = train(model, slow(), torch.device("cpu"), 4)
    assert len(waits) == len(steps) == 4
    assert min(waits[0], waits[2]) >= 0.05
    assert all(wait < step for wait, step in zip(waits, steps, strict=True))
    assert not torch.equal(before, model.tokens.weight)
