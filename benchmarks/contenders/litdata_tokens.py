"""litdata's StreamingDataset with its TokensLoader over chunks that its own `optimize` wrote.

    PEERS_PYTHON -m benchmarks.contenders.litdata_tokens FOLDER --prepare tokens.bin
    PEERS_PYTHON -m benchmarks.contenders.litdata_tokens FOLDER [--workers N]

Blocks of 4,097 tokens, shuffled, in this process, or batches from the workers of its StreamingDataLoader.
Each batch becomes tokens and targets as litgpt makes them: two contiguous int64 tensors. `--items` leaves out
batching, and only takes one block after another.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.contenders.batches import (
    ROWS,
    SEQ_LEN,
    TIMED_SECONDS,
    check_batch,
    report_rate,
    use_one_thread,
)

STRETCH = 1 << 20
"""Tokens that are given to `optimize` at a time."""


def main() -> None:
    """Write the chunks, or read batches for some seconds and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--prepare", metavar="TOKENS", help="write the chunks from a file of uint16 tokens")
    parser.add_argument("--items", action="store_true", help="blocks one by one, no batches")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=TIMED_SECONDS)
    arguments = parser.parse_args()
    if arguments.prepare:
        write_chunks(arguments.prepare, arguments.folder)
        print("{}")
        return
    use_one_thread()
    blocks = endless_blocks(arguments.folder)
    if arguments.items:
        report_rate(lambda: [next(blocks) for _ in range(ROWS)], arguments.seconds)
        return

    import torch

    batches = worker_batches(arguments.folder, arguments.workers) if arguments.workers else None

    def next_batch() -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(batches) if batches else torch.stack([next(blocks) for _ in range(ROWS)])
        return batch[:, :SEQ_LEN].contiguous().long(), batch[:, 1:].contiguous().long()

    check_batch(*next_batch())
    report_rate(next_batch, arguments.seconds)


def write_chunks(tokens: str, folder: str) -> None:
    """Chunks of 64 MB, by litdata's own writer."""
    import litdata

    count = len(np.memmap(tokens, np.uint16, "r"))
    litdata.optimize(
        fn=Stretches(tokens),
        inputs=list(range(0, count, STRETCH)),
        output_dir=folder,
        chunk_bytes="64MB",
        num_workers=1,
        item_loader=litdata.TokensLoader(),
    )


class Stretches:
    """Gives a stretch of the file as a tensor; a class, so that a worker process can be given it."""

    def __init__(self, tokens: str) -> None:
        self._tokens = tokens

    def __call__(self, start: int) -> Iterator[Any]:
        import torch

        data = np.memmap(self._tokens, np.uint16, "r")
        yield torch.from_numpy(data[start : start + STRETCH].astype(np.int32))


def endless_blocks(folder: str) -> Iterator[Any]:
    """Blocks of 4,097 tokens, one epoch after another."""
    return itertools.chain.from_iterable(itertools.repeat(_dataset(folder)))


def worker_batches(folder: str, workers: int) -> Iterator[Any]:
    """Batches `[32, 4097]` that worker processes make, one epoch after another."""
    import litdata

    loader = litdata.StreamingDataLoader(
        _dataset(folder), batch_size=ROWS, num_workers=workers, drop_last=True, persistent_workers=True
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _dataset(folder: str) -> Any:
    import litdata

    loader = litdata.TokensLoader(block_size=SEQ_LEN + 1)
    return litdata.StreamingDataset(folder, item_loader=loader, shuffle=True, drop_last=True)


if __name__ == "__main__":
    main()
