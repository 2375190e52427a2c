"""Laws of the cache of remote stores, for any size of it, any order of access, and faults."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.remote import PLACE, Faults, Flip, lengths_of, refuse, same_arrays, standing_for_bucket
from tests.store.stores import relist

from packline.errors import CorruptStore, OutOfSpace, StoreError
from packline.facade import Store
from packline.storage.cache import CacheFolder, CacheMemory
from packline.store import fetching
from packline.store import shard as shard_module
from packline.store.files import CacheSettings
from packline.store.pieces import Ranges
from packline.store.provenance import documents_schema
from packline.testing import make_store

MIB = 1 << 20


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Store:
    lengths = [lengths_of(900, 1), lengths_of(20, 2), lengths_of(600, 3)]
    return make_store(tmp_path_factory.mktemp("local") / "store", lengths)


def pieces_in(folder: Path) -> list[Path]:
    return [file for file in (folder / "pieces-1").glob("??/*") if not file.name.startswith(".")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(
    most=st.integers(2 * MIB, 8 * MIB),  # a document may be in two pieces
    reads=st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), min_size=1, max_size=30),
    folder=st.booleans(),
    long=st.booleans(),
)
def test_reads_of_any_order_equal_the_local_store_within_any_cache(
    local: Store,
    tmp_path_factory: pytest.TempPathFactory,
    most: int,
    reads: list[tuple[bool, int]],
    folder: bool,
    long: bool,
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch, standing_for_bucket(Faults(local.path)):
        if long:
            patch.setattr(shard_module, "RANGED_BYTES", 1000)
        patch.setattr("packline.store.pieces.LEAST_HELD", MIB)
        remote = Store(PLACE, CacheSettings(str(cache) if folder else False, most))
        rows = [one.rows(512) for one in (local, remote)]
        for whole, number in reads:
            if whole:
                document = number % len(local.documents)
                assert np.array_equal(remote.documents[document], local.documents[document])
            else:
                chosen = np.array([number % len(rows[0])])
                assert same_arrays(rows[0].read(chosen), rows[1].read(chosen))
            if folder:
                # A file that is brought whole may be larger than the cache; then it is alone.
                sizes = sorted(file.stat().st_size for file in pieces_in(cache))
                assert sum(sizes) <= most or len(sizes) == 1


def test_damage_is_fetched_again_and_named_if_it_stays(local: Store, tmp_path: Path) -> None:
    name = f"{local.shards[0].entry.name}.bin"
    with standing_for_bucket(Faults(local.path, Flip(".bin", 2))) as storage:
        remote = Store(PLACE, CacheSettings(str(tmp_path / "1")))
        assert np.array_equal(remote.documents[0], local.documents[0])
        assert storage.requests[name] == 3
    with standing_for_bucket(Faults(local.path, Flip(".bin", -1))):
        remote = Store(PLACE, CacheSettings(str(tmp_path / "2")))
        with pytest.raises(
            CorruptStore, match=r"000.bin: bytes 524,288 to 589,824 .* checksum \w{16}, found"
        ):
            remote.documents[0]
        with pytest.raises(CorruptStore, match=r"byte range 1,728 KiB .*expected the checksum \w{32}, found"):
            remote.shards[0].tokens  # noqa: B018
    with standing_for_bucket(Faults(local.path, Flip("shards.parquet", -1))):
        with pytest.raises(CorruptStore, match="shards"):
            Store(PLACE, CacheSettings(str(tmp_path / "3")))


def test_pieces_of_the_cache_that_are_broken_are_noticed(local: Store, tmp_path: Path) -> None:
    settings = CacheSettings(str(tmp_path))
    with standing_for_bucket(Faults(local.path)) as storage:
        first = Store(PLACE, settings).documents[0].copy()
        # As after a loss of power: the name is there, the bytes are not.
        for file in pieces_in(tmp_path):
            os.truncate(file, 0)
            os.truncate(file, MIB)
        before = storage.requests.total()
        assert np.array_equal(Store(PLACE, settings).documents[0], first)
        assert storage.requests.total() > before


def test_a_batch_larger_than_the_cache_is_refused_with_the_bytes(local: Store) -> None:
    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(False, 2 * MIB))
        rows = remote.rows(512)
        with pytest.raises(StoreError, match=r"needs [\d,]+ bytes .* found 2,097,152"):
            rows.read(np.arange(0, len(rows), 100))


def test_a_full_disk_of_the_cache_is_an_error(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        monkeypatch.setattr("packline.storage.cache.os.pwrite", full)
        with pytest.raises(OutOfSpace, match=str(tmp_path)):
            remote.documents[0]
        monkeypatch.undo()
        assert np.array_equal(remote.documents[0], local.documents[0])


def test_other_files_and_open_maps_outlive_eviction(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    cache = CacheFolder(tmp_path, 10)
    held = cache.add("a" * 32, 8, [b"12345678"])
    (tmp_path / "pieces-1" / "aa" / "notes.txt").write_text("kept too")
    cache.add("b" * 32, 8, [b"abcdefgh"])
    assert cache.find("a" * 32) is None and bytes(held) == b"12345678"
    assert (tmp_path / "mine").exists() and (tmp_path / "pieces-1" / "aa" / "notes.txt").exists()


def test_what_is_due_late_is_evicted_before_what_is_due_soon(tmp_path: Path) -> None:
    cache, now = CacheFolder(tmp_path, 40), time.time()
    for letter, due in (("a", 900.0), ("b", 100.0), ("c", 0.0), ("d", 500.0)):
        cache.add(letter * 32, 10, [bytes(10)], now + due if due else 0.0)
    left = []
    for letter in "efgh":
        cache.add(letter * 32, 4, [bytes(4)], now + 50)
        left.append("".join(one for one in "abcd" if cache.path(one * 32) is not None))
    assert left == ["abd", "bd", "bd", "bd"] or left == ["abd", "abd", "bd", "bd"], left


@given(uses=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 30)), max_size=40))
def test_memory_keeps_what_was_used_last_within_its_bytes(uses: list[tuple[str, int]]) -> None:
    cache, model = CacheMemory(40), dict[str, bytes]()
    for key, size in uses:
        if (found := cache.find(key)) is not None:
            assert bytes(found) == model[key]
            model[key] = model.pop(key)
        else:
            cache.add(key, size, [bytes(size)])
            model[key] = bytes(size)
            while sum(map(len, model.values())) > 40:
                del model[next(iter(model))]
        assert {one for one in "abcdefgh" if cache.find(one) is not None} == set(model)
        for one in model:
            cache.find(one)


def test_room_is_kept_for_pieces_that_are_being_written(tmp_path: Path) -> None:
    cache = CacheFolder(tmp_path, 30)

    def others() -> Iterator[bytes]:
        for letter in "bcde":
            cache.add(letter * 32, 10, [bytes(10)])
        yield bytes(10)

    cache.add("a" * 32, 10, others())
    assert sum(file.stat().st_size for file in pieces_in(tmp_path)) == 30


def test_threads_and_stores_share_one_cache(local: Store, tmp_path: Path) -> None:
    def read(seed: int) -> None:
        remote = Store(PLACE, CacheSettings(str(tmp_path), 3 * MIB))
        for number in np.random.default_rng(seed).integers(0, len(local.documents), 60).tolist():
            assert np.array_equal(remote.documents[number], local.documents[number])

    with standing_for_bucket(Faults(local.path, seconds=0.001)), ThreadPoolExecutor(3) as threads:
        list(threads.map(read, range(3)))


def test_a_slow_request_is_made_again(local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    times = iter([True])

    def once(name: str, start: int, data: bytes) -> bytes:
        if name.endswith(".bin") and next(times, False):
            stuck.wait(20)
        return data

    monkeypatch.setattr(fetching, "HEDGE_SECONDS", 0.05)
    with standing_for_bucket(Faults(local.path, once)):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        assert np.array_equal(remote.documents[0], local.documents[0])
        stuck.set()
        assert remote.files.traffic is not None and remote.files.traffic.repeated == 1


def test_an_error_of_the_store_is_raised_where_it_is_needed(local: Store, tmp_path: Path) -> None:
    with standing_for_bucket(Faults(local.path, refuse(".idx"))):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        with pytest.raises(StoreError, match="no access"):
            remote.documents[0]


def test_opening_makes_no_request_for_a_shard(local: Store, tmp_path: Path) -> None:
    with standing_for_bucket(Faults(local.path)) as storage:
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        assert len(remote.rows(512)) and len(remote.documents)
        assert set(storage.requests) == {"manifest.json", "shards.parquet", "inputs.parquet", "units.parquet"}
        assert isinstance(remote.shards[0].token_ranges, Ranges)


def test_of_long_provenance_only_what_is_used_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    (entry,) = (shard.entry for shard in make_store(folder, [[2] * 60_000]).shards)
    path = folder / f"{entry.name}.docs.parquet"
    noise = np.random.default_rng(0).bytes(60_000 * 64).hex()
    urls = [noise[start : start + 128] for start in range(0, len(noise), 128)]
    columns = pq.read_table(path).append_column("url", pa.array(urls)).columns
    schema = documents_schema((("url", "string"),))
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, row_group_size=10_000)
    (shard,), size = relist(folder).shards, path.stat().st_size
    assert size > 3 * MIB and len(shard.open_provenance().rows) == 6
    local = Store(folder)
    fetched: list[int] = []

    def arrive(name: str, start: int, data: bytes) -> bytes:
        fetched.append(len(data) if name.endswith(".docs.parquet") else 0)
        return data

    monkeypatch.setattr(shard_module, "RANGED_BYTES", MIB)
    with standing_for_bucket(Faults(local.path, arrive)):
        remote = Store(PLACE, CacheSettings(str(tmp_path / "cache")))
        assert remote.provenance(25_000) == local.provenance(25_000)
        assert 0 < sum(fetched) < size
        for number in (0, 30_000, 59_999):
            assert remote.provenance(number) == local.provenance(number)
        fetched.clear()
        remote = Store(PLACE, CacheSettings(False))
        mine, theirs = (store.shards[0].open_provenance().groups(["position"]) for store in (local, remote))
        for one, other in zip(mine, theirs, strict=True):
            assert one[0] == other[0] and one[1].equals(other[1])
        assert 0 < sum(fetched) < size
    with standing_for_bucket(Faults(local.path, Flip(".docs.parquet", -1))):
        with pytest.raises(CorruptStore, match=r"docs.parquet: bytes .* arrived damaged"):
            Store(PLACE, CacheSettings(str(tmp_path / "damaged"))).provenance(5)
