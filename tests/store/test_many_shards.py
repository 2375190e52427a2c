"""Stores of many shards: read with few open files and few maps, from threads and other processes."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.stores import make_store

import packline
from packline.errors import StoreError
from packline.facade import Store
from packline.storage import requests
from packline.store import files
from packline.store.files import MAPS
from packline.store.report import MOST

SHARDS = 600
LENGTHS = (3, 400, 2100)
READS = """
import sys, numpy as np, packline
store = packline.open(sys.argv[1])
held = [store.documents[one] for one in range(0, len(store.documents), 2)]
print(sum(map(len, held)), store.text(5)[:0] == "", store.provenance(1500).position)
for settings in ({}, {"packing": "pad"}, {"packing": "best_fit"}, {"shuffle_documents": 1}):
    rows = store.rows(512, **settings)
    rows.read(np.random.default_rng(0).integers(0, len(rows), 400))
for _, batch in zip(range(5), packline.Loader(store.rows(512), batch_size=8, seed=1, prefetch=2)): pass
report = store.verify()
assert report.ok and report.documents == len(store.documents), report.problems
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    documents = [[1 + place % 200 for place in range(length - 1)] for length in LENGTHS]
    folder = tmp_path_factory.mktemp("many") / "store"
    make_store(folder, documents * SHARDS, vocab_size=1000, eod_id=0, shards=SHARDS)
    return folder


def few_files() -> None:
    """As under `ulimit -n 256`."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def test_every_way_of_reading_needs_few_files(many: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READS, str(many)], capture_output=True, text=True, preexec_fn=few_files
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(sum((LENGTHS * SHARDS)[::2]))


def test_no_more_maps_than_the_bound_and_arrays_outlive_them(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MAPS.clear()
    monkeypatch.setattr(MAPS, "most", 50)
    store = packline.open(many)
    first = store.documents[2]
    expected = first.tolist()
    for number in range(2, 3 * 400, 3):
        assert store.documents[number].tolist() == expected
    maps = sum(f"{many}/" in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert 0 < maps <= 51  # those that are open, and the one of `first`
    assert first.tolist() == expected
    assert not any(str(many) in os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.exists())


def total(store: Store, numbers: list[int]) -> int:
    return sum(int(store.documents[number].sum()) for number in numbers)


def answer(store: Store, numbers: list[int], pipe: Any) -> None:
    pipe.send(total(store, numbers))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_threads_and_processes_share_the_bound(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAPS, "most", 20)
    store = packline.open(many)
    numbers = np.random.default_rng(0).integers(0, len(store.documents), 600).tolist()
    expected = sum(total(store, [number % 3]) for number in numbers)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(total, store, numbers) for _ in range(4)]
        context: Any = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=answer, args=(store, numbers, theirs))
        process.start()
        assert ours.recv() == expected
        process.join()
        assert [one.result() for one in waiting] == [expected] * 4


def test_a_limit_of_files_is_named(many: Path) -> None:
    program = (
        "import sys, os, packline\n"
        "store = packline.open(sys.argv[1]); store.documents[0]\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "try: store.documents[-1]\n"
        "except packline.errors.StoreError as error: print(type(error).__name__, error, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(many)], capture_output=True, text=True, preexec_fn=few_files
    )
    assert "StoreError" in done.stdout and "ulimit -n" in done.stdout, done.stdout + done.stderr


def test_a_limit_of_maps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def refuse(path: Path) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    path = tmp_path / "a.bin"
    path.write_bytes(bytes(files.SMALL + 1))
    monkeypatch.setattr(files, "_map", refuse)
    with pytest.raises(StoreError, match="too many maps") as caught:
        files.map_file(path)
    assert "vm.max_map_count" in caught.value.hint


def test_the_report_of_verify_does_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    make_store(folder, [[1, 2, 3]] * 120, vocab_size=1000, eod_id=0, shards=40)
    for path in [*folder.glob("*.idx"), *folder.glob("*.bin"), *folder.glob("*7.docs.parquet")]:
        path.write_bytes(path.read_bytes()[:-1])
    reports = []
    for cores in (1, 5):
        monkeypatch.setattr(requests, "process_cores", lambda cores=cores: cores)
        reports.append(packline.verify(folder))
    assert reports[0] == reports[1]
    assert len(reports[0].problems) == MOST
    assert reports[0].problems_not_listed
