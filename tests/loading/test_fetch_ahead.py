"""Loaders of remote stores: the batches of local ones, and no waits where the bandwidth suffices."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.remote import PLACE, Faults, Flip, lengths_of, same_arrays, standing_for_bucket

from packline import Loader, Mixture
from packline.errors import CorruptStore, StoreError
from packline.facade import Store
from packline.loading import ahead
from packline.loading.ahead import FetchAhead, window_steps
from packline.store import fetching
from packline.store.files import CacheSettings
from packline.store.pieces import Ranges
from packline.testing import make_store

MIB = 1 << 20


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Store:
    lengths = [lengths_of(900, 1), lengths_of(20, 2), lengths_of(600, 3), lengths_of(5, 4)]
    sources = ["a", "b", "a", "b"]
    return make_store(tmp_path_factory.mktemp("local") / "store", lengths, sources=sources)


def mixture(store: Store) -> Mixture:
    return Mixture([(store.rows(256, sources="a"), 3, 2), (store.rows(256, sources="b"), 1, 20)])


ORDERS: list[dict[str, Any]] = [
    {},
    {"shuffle": False},
    {"order": "blocks", "block_rows": 16, "window_blocks": 4},
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("most", [6 * MIB, 1 << 30])
def test_batches_equal_local_ones_for_every_order_world_and_cache(
    local: Store, tmp_path: Path, order: dict[str, Any], most: int
) -> None:
    with standing_for_bucket(Faults(local.path, Flip(".bin", 2))):
        remote = Store(PLACE, CacheSettings(str(tmp_path), most))
        loaders: list[Loader] = []
        for world in (1, 2):
            loaders = [
                Loader(mixture(one), batch_size=4, seed=3, rank=world - 1, world_size=world, **order)
                for one in (local, remote)
            ]
            for mine, theirs in itertools.islice(zip(*loaders, strict=True), 60):
                assert same_arrays(mine, theirs)
            assert loaders[0].state_dict() == loaders[1].state_dict()
        resumed = [Loader(mixture(one), batch_size=4, seed=3, **order) for one in (local, remote)]
        state = loaders[0].state_dict()
        for loader in resumed:
            loader.load_state_dict(state)
        for mine, theirs in itertools.islice(zip(*resumed, strict=True), 20):
            assert same_arrays(mine, theirs)
        assert resumed[0].traffic is None and resumed[1].traffic is not None


def test_sources_of_several_places_are_read_together(local: Store, tmp_path: Path) -> None:
    with standing_for_bucket(Faults(local.path)):
        settings = CacheSettings(str(tmp_path))
        one, other = Store(PLACE, settings), Store("s3://bucket/other", settings)
        loaders = []
        for pair in ((local, local), (one, other), (one, local), (local, other)):
            rows = [store.rows(256, sources=name) for store, name in zip(pair, "ab", strict=True)]
            mixed = Mixture([(rows[0], 1, 2), (rows[1], 1, 20)])
            loaders.append(Loader(mixed, batch_size=6, seed=3, prefetch=0))
        for expected, *found in itertools.islice(zip(*loaders, strict=True), 80):
            assert all(same_arrays(expected, batch) for batch in found)


def test_what_is_due_is_there_and_waits_are_counted(local: Store, tmp_path: Path) -> None:
    with standing_for_bucket(Faults(local.path, seconds=0.02)):
        waits = {}
        for ahead in (True, False):
            remote = Store(PLACE, CacheSettings(str(tmp_path / str(ahead))))
            loader = Loader(remote.rows(256), batch_size=4, prefetch=0)
            for step in range(40):
                (loader.next_batch if ahead else loader.batch)(step)
                time.sleep(0.02)
            assert loader.traffic is not None and loader.traffic.requests > 3
            waits[ahead] = loader.traffic.stalls
        assert waits[True] < waits[False]


@pytest.fixture
def few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen requests at a time."""
    monkeypatch.setattr(fetching, "THREADS", 16)


def many_shards(folder: Path, documents: int) -> Store:
    """More shards than sixteen requests at a time."""
    return make_store(folder / "store", [lengths_of(documents, seed) for seed in range(64)])


def in_a_thread(read: Callable[[], object], seconds: float = 60) -> list[object]:
    """Result of a function, or the error that it raises; empty if it is not over in time."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(read())
        except CorruptStore as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return found


@pytest.mark.usefixtures("few_threads")
def test_more_shards_than_requests_at_a_time_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread that fetches waits for checksums that another one has still to fetch."""
    monkeypatch.setattr("packline.store.mirror.PIECE_BYTES", 1 << 16)
    local = many_shards(tmp_path, 30)
    assert sum(len(shard.tokens) > 1 << 15 for shard in local.shards) > 32  # they have several pieces
    with standing_for_bucket(Faults(local.path, seconds=0.02)):
        remote = Store(PLACE, CacheSettings(str(tmp_path / "cache")))
        loaders = [Loader(store.rows(256), batch_size=1, prefetch=0) for store in (local, remote)]

        def read() -> list[bool]:
            same = []
            for step in range(3):
                same.append(same_arrays(*(loader.next_batch(step) for loader in loaders)))
                time.sleep(0.5)  # all that is expected is requested
            return same

        assert in_a_thread(read) == [[True, True, True]]


@pytest.mark.usefixtures("few_threads")
def test_damage_of_everything_that_arrives_is_an_error(tmp_path: Path) -> None:
    """No thread that fetches waits for checksums in order to locate damage."""
    local = many_shards(tmp_path, 3)
    with standing_for_bucket(Faults(local.path, Flip(".bin", 10**9), seconds=0.02)):
        remote = Store(PLACE, CacheSettings(str(tmp_path / "cache")))
        rows = remote.rows(256)
        (found,) = in_a_thread(lambda: rows.read(np.arange(0, len(rows), 3)))
        assert isinstance(found, CorruptStore) and "arrived damaged: expected the checksum" in str(found)


def test_small_pieces_of_a_store_larger_than_the_cache_are_not_in_its_folder(tmp_path: Path) -> None:
    local, cache = (
        make_store(tmp_path / "store", [lengths_of(100, seed) for seed in range(10)]),
        tmp_path / "cache",
    )
    assert local.manifest.store_bytes > 2 << 20
    with standing_for_bucket(Faults(local.path)) as storage:
        rows = [store.rows(256) for store in (local, Store(PLACE, CacheSettings(str(cache), 1 << 20)))]
        for batch in zip(*(Loader(one, batch_size=8, epochs=1) for one in rows), strict=True):
            assert same_arrays(*batch)
        assert storage.bytes > 2 << 20 and not list(cache.rglob("*-64"))


def test_what_is_expected_and_evicted_is_held_until_it_is_read(local: Store, tmp_path: Path) -> None:
    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        ranges = remote.shards[0].token_ranges
        assert isinstance(ranges, Ranges)
        pieces = ranges.pieces
        first, count = ranges.first, -(-len(ranges) // ranges.per_piece)
        assert count >= 3
        pieces.bring(range(first, first + 2))
        for path in (tmp_path / "pieces-1").glob("??/*"):
            path.unlink()
        pieces.expect([first], time.time() + 60)
        pieces._most_held = 2
        pieces.bring([first + 2])
        assert first in pieces.held and first + 1 not in pieces.held


def test_with_a_full_cache_the_reader_makes_its_plans_itself(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    plan = FetchAhead._plan

    def noted(self: FetchAhead, loader: Loader, step: int) -> None:
        threads.append(threading.current_thread().name)
        plan(self, loader, step)

    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        for shard in remote.shards:
            shard.token_ranges[0:]
        monkeypatch.setattr(FetchAhead, "_plan", noted)
        monkeypatch.setattr(ahead, "window_steps", lambda *_: 2 * ahead.STEPS)
        loaders = [Loader(store.rows(256), batch_size=4, prefetch=0) for store in (local, remote)]
        for step in range(300):
            assert same_arrays(*(loader.next_batch(step) for loader in loaders))
    assert threads[0] == "packline-fetch-ahead" and "MainThread" in threads
    assert set(threads[threads.index("MainThread") :]) == {"MainThread"}


def test_a_loader_that_waits_for_its_bytes_reports_it(
    local: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead, "REPORT_SECONDS", 0.0)
    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(str(tmp_path)))
        assert remote.files.traffic is not None and "stalls" not in repr(
            Loader(local.rows(256), batch_size=4)
        )
        loader = Loader(remote.rows(256), batch_size=4, prefetch=0)
        loader.next_batch(0)
        caplog.clear()
        remote.files.traffic.stall_seconds += 300  # as after waits that are longer than a test may take
        loader.next_batch(1)
        (found,) = (record.getMessage() for record in caplog.records if record.name == "packline.loading")
        assert found.startswith(f"reading waited for bytes of {PLACE} in ")
        assert "stalls of 30" in repr(loader)


@pytest.mark.parametrize("ahead", [True, False])
def test_damage_in_the_store_is_named_where_it_is(local: Store, tmp_path: Path, ahead: bool) -> None:
    """Whichever pieces a request brought beside the damaged one."""
    name = max(local.manifest.shards, key=lambda one: one.tokens).name

    def flip(file: str, start: int, data: bytes) -> bytes:
        place = 2 * MIB + 100 - start  # in the third MiB of the file
        if file != f"{name}.bin" or not 0 <= place < len(data):
            return data
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    with standing_for_bucket(Faults(local.path, flip, seconds=0.05)):
        rows = Store(PLACE, CacheSettings(str(tmp_path))).rows(256)
        loader = Loader(rows, batch_size=512, shuffle=False, prefetch=0)  # steps meet requests in flight
        with pytest.raises(CorruptStore, match=rf"{name}\.bin: bytes 2,097,152 to 2,162,688 arrived damaged"):
            for step in range(len(loader)):
                (loader.next_batch if ahead else loader.batch)(step)


def test_a_cache_without_room_for_a_batch_is_refused_at_the_start(local: Store) -> None:
    with standing_for_bucket(Faults(local.path)):
        remote = Store(PLACE, CacheSettings(False, MIB))
        loader = Loader(remote.rows(256), batch_size=64)
        with pytest.raises(StoreError, match="cache_bytes of at least") as found:
            next(iter(loader))
        assert "cache_bytes=" in found.value.hint


@settings(max_examples=25)
@given(
    latency=st.floats(0.001, 2.0),
    step_seconds=st.floats(0.005, 1.0),
    pieces=st.integers(1, 40),
    share=st.floats(0.1, 0.9),
    seed=st.integers(0, 1000),
)
def test_there_are_no_stalls_when_the_bandwidth_suffices(
    latency: float, step_seconds: float, pieces: int, share: float, seed: int
) -> None:
    """On a simulated clock: requests of up to ten latencies, as many at once as the mean rate needs."""
    rng = np.random.default_rng(seed)
    workers = int(np.ceil(pieces * latency / (share * step_seconds))) + 1
    ahead = window_steps(latency, step_seconds, pieces * MIB, 1 << 50)
    free = [0.0] * workers
    heapq.heapify(free)
    ready: dict[int, float] = {}
    steps, clock, stalls = 3 * ahead + 20, 0.0, 0
    for step in range(min(steps, 200)):
        for coming in range(step, step + ahead + 1):
            if coming not in ready:
                ends = []
                for _ in range(pieces):
                    begin = max(heapq.heappop(free), clock)
                    ends.append(begin + latency * float(rng.uniform(0.2, 1.0)))
                    heapq.heappush(free, ends[-1])
                ready[coming] = max(ends)
        if step > ahead and ready[step] > clock:
            stalls += 1
        clock = max(clock, ready.pop(step)) + step_seconds
    assert not stalls
