"""packline's Loader over a store on the disk or in an object store: processor and elapsed time of batches.

    python -m benchmarks.contenders.remote_batches STORE STEPS [--cache DIR] [--cache-bytes N]
        [--order blocks] [--packing best_fit] [--pause SECONDS]

Batches of 32 x 4,096, all four arrays. Nothing is read before the time begins but the manifest; with pauses,
which stand for steps of training, the first of the steps are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import xxhash

import packline
from benchmarks.contenders.batches import ROWS, SEQ_LEN
from packline.store.fetching import Traffic

FIRST = 5
"""Steps after which reading ahead is under way."""


def main() -> None:
    """Read batches and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("store")
    parser.add_argument("steps", type=int)
    parser.add_argument("--cache")
    parser.add_argument("--cache-bytes", type=int)
    parser.add_argument("--order", choices=("global", "blocks"), default="global")
    parser.add_argument("--packing", choices=("concat", "best_fit"), default="concat")
    parser.add_argument("--pause", type=float, default=0.0)
    arguments = parser.parse_args()
    given = {"cache": arguments.cache, "cache_bytes": arguments.cache_bytes}
    cache = {name: value for name, value in given.items() if value is not None}
    rows = packline.open(arguments.store, **cache).rows(seq_len=SEQ_LEN, packing=arguments.packing)
    loader = packline.Loader(rows, batch_size=ROWS, epochs=1000, order=arguments.order)
    batches, seen, waited = iter(loader), xxhash.xxh3_64(), 0.0
    for _ in range(FIRST if arguments.pause else 0):
        next(batches)
        time.sleep(arguments.pause)
    before = loader.traffic or Traffic()
    used, started = time.process_time(), time.perf_counter()
    for _ in range(arguments.steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        seen.update(batch["targets"][:, ::512].tobytes())
        time.sleep(arguments.pause)
    after = loader.traffic or Traffic()
    report = {
        "cpu_seconds": time.process_time() - used,
        "seconds": time.perf_counter() - started,
        "waited": waited,
        "requests": after.requests - before.requests,
        "stalls": after.stalls - before.stalls,
        "bytes": after.bytes - before.bytes,
        "checksum": seen.hexdigest(),
    }
    print(json.dumps(report), flush=True)
    os._exit(0)  # without waiting for what is being fetched for later steps


if __name__ == "__main__":
    main()
