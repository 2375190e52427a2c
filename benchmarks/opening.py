"""Opening of a store of very many shards, local and from an object server, and its first rows and batches.

    python -m benchmarks.opening FOLDER --shards 100000

The shards are hard links to one; the server (`object_server`) reads them from the folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.remote import serve
from packline.testing import make_store

READ = """
import os, resource, sys, time
import numpy as np, packline

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def report(what):
    global began, before
    print(f"{what:24} {time.perf_counter() - began:7.2f} s {cpu() - before:7.2f} s of CPU", flush=True)
    began, before = time.perf_counter(), cpu()

remote = len(sys.argv) > 2
began, before = time.perf_counter(), cpu()
store = packline.open(sys.argv[1], **({"cache": sys.argv[2]} if remote else {}))
report("open")
rows = store.rows(64)
report("rows")
rows.read(np.arange(32))
report("first batch")
rows.read(np.random.default_rng(1).integers(0, len(rows), 32))
report("batch of random rows")
for number, _ in zip(range(20), packline.Loader(rows, batch_size=32, seed=1)): pass
report("20 batches of a loader")
files, maps = len(os.listdir("/proc/self/fd")), sum(1 for _ in open("/proc/self/maps"))
print(f"{files} open files, {maps:,} maps")
if remote: print(store.files.traffic)
"""


def measure_opening(folder: Path, shards: int) -> None:
    """Make the store, and print what it takes to open and read it in fresh processes."""
    from tests.store.many import multiply

    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    one = make_store(folder / "one", [[8, 13, 18, 23]])
    place = multiply(one, folder / "bucket" / "many", shards)
    print(f"made {shards:,} shards in {time.perf_counter() - began:.1f} s", flush=True)
    print("local", flush=True)
    subprocess.run([sys.executable, "-c", READ, str(place)], check=True)
    with serve(folder) as environment:
        print("object server", flush=True)
        command = [sys.executable, "-c", READ, "s3://bucket/many", str(folder / "cache")]
        subprocess.run(command, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=100_000)
    given = parser.parse_args()
    measure_opening(given.folder / "opening", given.shards)
