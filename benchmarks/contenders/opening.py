"""How long it takes to open a store, to make rows over it, and to read one batch; or to permute indices.

    python -m benchmarks.contenders.opening STORE
    python -m benchmarks.contenders.opening --permute 100000000

After the imports. `resident_bytes` is by how much the process grew: whoever reads an index has it in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import packline
import packline.packing.rows
from packline.permutation import Permutation


def main() -> None:
    """Open a store or permute, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store", nargs="?")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--permute", type=int, metavar="SIZE")
    parser.add_argument("--indices", type=int, default=10_000_000)
    arguments = parser.parse_args()
    if arguments.permute:
        report = permuted(arguments.permute, arguments.indices)
    else:
        report = opened(arguments.store, arguments.seq_len)
    print(json.dumps(report))


def opened(path: str, seq_len: int) -> dict[str, float]:
    """Open, make rows, read the last rows."""
    before = resident()
    started = time.perf_counter()
    store = packline.open(path)
    open_seconds = time.perf_counter() - started
    rows = store.rows(seq_len=seq_len)
    count = len(rows)
    rows_seconds = time.perf_counter() - started - open_seconds
    grown = resident() - before
    rows.read(np.linspace(0, count - 1, 32).astype(np.int64))
    batch_seconds = time.perf_counter() - started - open_seconds - rows_seconds
    return {
        "documents": len(store.documents),
        "rows": count,
        "open_seconds": open_seconds,
        "rows_seconds": rows_seconds,
        "batch_seconds": batch_seconds,
        "resident_bytes": grown,
    }


def permuted(size: int, count: int) -> dict[str, float]:
    """Permute the first `count` indices on one core, a million at a time."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    permutation = Permutation(size, 1)
    step = min(count, 1_000_000)
    blocks = [np.arange(start, start + step) % size for start in range(0, count - step + 1, step)]
    permutation(blocks[0])
    started = time.perf_counter()
    for block in blocks:
        permutation(block)
    return {"size": size, "indices": len(blocks) * step, "seconds": time.perf_counter() - started}


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
