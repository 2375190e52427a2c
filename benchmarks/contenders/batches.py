"""What every contender of `loading` shares: how long it makes batches, and what it prints.

Imports nothing of packline or of a peer. Batches are of 32 rows of 4,096 tokens, whoever makes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

ROWS, SEQ_LEN = 32, 4096
WARM_SECONDS, TIMED_SECONDS = 2.0, 3.0
"""Warm: files are mapped and in caches, allocators have settled, a second pass has begun."""


def report_rate(next_batch: Callable[[], object], seconds: float) -> None:
    """Make batches to get warm, then count them for some seconds, and print one JSON object.

    Args:
        next_batch: makes a batch of ROWS x SEQ_LEN tokens, and drops it.
        seconds: how long it is timed.
    """
    _run_for(next_batch, min(WARM_SECONDS, seconds))
    batches, took = _run_for(next_batch, seconds)
    print(json.dumps({"tokens": batches * ROWS * SEQ_LEN, "seconds": took}))


def _run_for(next_batch: Callable[[], object], seconds: float) -> tuple[int, float]:
    batches, started = 0, time.perf_counter()
    while True:
        next_batch()
        batches += 1
        took = time.perf_counter() - started
        if took >= seconds:
            return batches, took


def check_batch(tokens: object, targets: object) -> None:
    """Refuse to time anything else than 32 x 4,096 tokens, each with the one after it as its target."""
    import numpy as np

    x, y = np.asarray(tokens), np.asarray(targets)
    shapes = (ROWS, SEQ_LEN)
    if x.shape != shapes or y.shape != shapes:
        raise SystemExit(f"a batch has the shapes {x.shape} and {y.shape}: expected {shapes}")
    learned = y[:, :-1] != -100
    if not learned.mean() > 0.9 or not (x[:, 1:] == y[:, :-1])[learned].all():
        raise SystemExit("targets are not the next tokens")


def use_one_thread() -> None:
    """Hold torch to the thread that asks: batches are so small that sharing them out makes them slower."""
    import torch

    torch.set_num_threads(1)
