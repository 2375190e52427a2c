"""A loader over a store that is not in the page cache.

    python -m benchmarks.contenders.cold_rows STORE --order global|blocks|stored [--no-read-ahead]

The pages of all tokens are dropped before (`posix_fadvise`, DONTNEED), after they are synced. Batches of 32 x
4,096 are read through the Loader, in its order, for some seconds or to the end of the epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import packline
from benchmarks.contenders.batches import ROWS, SEQ_LEN
from packline.loading import ahead


def main() -> None:
    """Drop the cache, read batches, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--order", required=True, choices=("global", "blocks", "stored"))
    parser.add_argument("--block-rows", type=int, default=256)
    parser.add_argument("--window-blocks", type=int, default=32)
    parser.add_argument("--no-read-ahead", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    rows = packline.open(arguments.store).rows(seq_len=SEQ_LEN)
    rows.read(np.zeros(1, np.int64), ("tokens",))  # what is made on first use
    sizes = {}
    if arguments.order == "blocks":
        sizes = {"block_rows": arguments.block_rows, "window_blocks": arguments.window_blocks}
    if arguments.no_read_ahead:
        ahead.ReadAhead.announce = lambda *_: None  # type: ignore[method-assign]
    loader = packline.Loader(
        rows,
        batch_size=ROWS,
        order="blocks" if arguments.order == "blocks" else "global",
        shuffle=arguments.order != "stored",
        fields=("tokens",),
        **sizes,
    )
    drop_cache(arguments.store)
    tokens, start = 0, time.perf_counter()
    seconds = 0.0
    for batch in loader:
        tokens += batch["tokens"].size
        seconds = time.perf_counter() - start
        if seconds >= arguments.seconds:
            break
    print(json.dumps({"tokens": tokens, "seconds": seconds, "itemsize": rows.store.dtype.itemsize}))


def drop_cache(store: Path) -> None:
    """Drop the pages of all tokens of a store from the page cache."""
    for path in store.glob("*.bin"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    main()
