"""A store on an S3 server, larger than the cache: ranks with workers, resumed, the server gone for a time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import xxhash
from tests.storage.fault_proxy import FaultProxy, Schedule, fault_proxy
from tests.storage.servers import Bucket
from tests.store.remote import lengths_of, upload

from packline import Loader
from packline.facade import Store
from packline.testing import make_store

RANK = """
import json, sys, time
from pathlib import Path
import packline, xxhash
from packline.torch import LoaderDataset
from torch.utils.data import DataLoader

place, cache, rank, first, stop = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
store = packline.open(place, cache=cache, cache_bytes=12_000_000)
assert store.manifest.store_bytes > 24_000_000
Path(f"{cache}-{rank}").touch()  # the outage is to meet two ranks that have opened the store
while not Path(f"{cache}-{1 - rank}").exists():
    time.sleep(0.01)
loader = packline.Loader(store.rows(1024), batch_size=8, seed=1, rank=rank, world_size=2)
if first:
    loader.load_state_dict(loader.state_at(first))
batches = DataLoader(LoaderDataset(loader), batch_size=None, num_workers=2, multiprocessing_context="fork")
found = []
for step, batch in zip(range(first, stop), batches):
    found.append(xxhash.xxh3_64_hexdigest(batch["tokens"].numpy().tobytes()))
    print(step, flush=True)
print(json.dumps(found))
"""
STEPS = 40


def run_ranks(place: str, cache: Path, first: int, stop: int) -> list[list[str]]:
    """Checksums of the batches of both ranks, from a step on."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, place, str(cache), *map(str, (rank, first, stop))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], [errors[-3000:] for _, errors in printed]
    return [json.loads(text.splitlines()[-1]) for text, _ in printed]


@pytest.mark.slow
def test_ranks_with_workers_get_the_local_batches(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    local = make_store(tmp_path / "store", [lengths_of(500, seed) for seed in range(14)])
    upload(local.path, bucket.place("store"))
    gone, requests = threading.Event(), 0

    def at(method: str, path: str, number: int) -> str | None:
        nonlocal requests
        requests += path.endswith(".bin")
        if requests == 150:  # in the midst of the first steps
            gone.set()
            threading.Timer(3, gone.clear).start()
            requests += 1
        return "reset" if gone.is_set() else None

    with fault_proxy(bucket.endpoint, Schedule(at=at)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        halves = [
            run_ranks(bucket.place("store"), tmp_path / "cache", first, first + STEPS // 2)
            for first in (0, STEPS // 2)
        ]
        assert was_gone(proxy)
    for rank in range(2):
        loader = Loader(Store(local.path).rows(1024), batch_size=8, seed=1, rank=rank, world_size=2)
        expected = [xxhash.xxh3_64_hexdigest(loader.batch(step)["tokens"].tobytes()) for step in range(STEPS)]
        assert halves[0][rank] + halves[1][rank] == expected
    used = sum(file.stat().st_size for file in (tmp_path / "cache/pieces-1").glob("??/*"))
    assert used <= 12_000_000


def was_gone(proxy: FaultProxy) -> bool:
    """True if requests for tokens were answered before and after some that were not."""
    answered = [fault is None for _, path, fault in proxy.requests if path.endswith(".bin")]
    first = answered.index(False)
    return any(answered[:first]) and any(answered[first:])
