"""packline's Loader over a store on the disk or in an object store: processor and elapsed time of batches.

    python -m benchmarks.contenders.remote_batches STORE STEPS [--cache DIR] [--order blocks]

Batches of 32 x 4,096, all four arrays. Nothing is read before the time begins but the manifest.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import xxhash

import packline
from benchmarks.contenders.batches import ROWS, SEQ_LEN


def main() -> None:
    """Read batches and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("steps", type=int)
    parser.add_argument("--cache")
    parser.add_argument("--order", choices=("global", "blocks"), default="global")
    arguments = parser.parse_args()
    cache = {} if arguments.cache is None else {"cache": arguments.cache}
    rows = packline.open(arguments.store, **cache).rows(seq_len=SEQ_LEN)
    loader = packline.Loader(rows, batch_size=ROWS, epochs=1000, order=arguments.order)
    batches, seen = iter(loader), xxhash.xxh3_64()
    used, started = time.process_time(), time.perf_counter()
    for _ in range(arguments.steps):
        seen.update(next(batches)["targets"][:, ::512].tobytes())
    report = {
        "cpu_seconds": time.process_time() - used,
        "seconds": time.perf_counter() - started,
        "stalls": 0 if loader.traffic is None else loader.traffic.stalls,
        "bytes": 0 if loader.traffic is None else loader.traffic.bytes,
        "checksum": seen.hexdigest(),
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # without waiting for what is being fetched for later steps


if __name__ == "__main__":
    main()
