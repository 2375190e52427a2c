"""Steps of training on packed rows: how long each takes, and how long it waits for its batch.

    python -m benchmarks.contenders.training_steps STORE --model tiny --steps 50

A GPT of the given size learns from rows that best_fit packed; documents of a row do not see
each other. Runs on an accelerator where torch has one, else on the processor. Every step ends when the device
has finished, so a wait is time in which the device has nothing to do. The first steps are not counted: they
load kernels and map files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from examples.tiny_gpt import TinyGPT
from torch import nn

import packline
from packline.torch import to_tensors

UNCOUNTED = 3
SIZES = {
    "tiny": {"layers": 4, "width": 128, "heads": 4},
    "124m": {"layers": 12, "width": 768, "heads": 12},
}


def main() -> None:
    """Train, and print one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("--model", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1, help="rows per batch")
    parser.add_argument("--seq-len", type=int, default=8192)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    accelerator = torch.accelerator.current_accelerator()
    device = torch.device("cpu") if accelerator is None else accelerator
    store = packline.open(arguments.store)
    rows = store.rows(seq_len=arguments.seq_len, packing="best_fit")
    model = TinyGPT(store.manifest.tokenizer.vocab_size, **SIZES[arguments.model]).to(device)
    loader = packline.Loader(rows, batch_size=arguments.rows, epochs=1000)
    waits, steps = train(model, iter(loader), device, arguments.steps)
    report = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        "parameters": sum(one.numel() for one in model.parameters()),
        "tokens_per_step": arguments.rows * arguments.seq_len,
        "step_seconds": statistics.median(steps),
        "wait_seconds": statistics.median(waits),
        "longest_wait_seconds": max(waits),
        "share_waiting": sum(waits) / sum(steps),
    }
    print(json.dumps(report), flush=True)


def train(
    model: nn.Module, batches: Iterator[Mapping[str, Any]], device: torch.device, count: int
) -> tuple[list[float], list[float]]:
    """Train for some steps.

    Returns:
        Seconds that each counted step waited for its batch, and its seconds with the wait.
    """
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    waits, steps = [], []
    for _ in range(UNCOUNTED + count):
        began = time.perf_counter()
        batch = next(batches)
        received = time.perf_counter()
        tensors = to_tensors(batch, device=device, pin_memory=True, non_blocking=True, int64=["targets"])
        loss = F.cross_entropy(model(tensors).flatten(0, 1), tensors["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device
        waits.append(received - began)
        steps.append(time.perf_counter() - began)
    return waits[UNCOUNTED:], steps[UNCOUNTED:]


if __name__ == "__main__":
    main()
