"""Reading of remote stores: what a plan needs is brought at once, for several batches together."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.remote import PLACE, Faults, lengths_of, standing_for_bucket
from tests.store.stores import relist

from packline import Loader
from packline.facade import Store
from packline.packing.batch import ALL_FIELDS, CompactBatch, PlannedRows
from packline.packing.rows import Rows
from packline.store.files import CacheSettings
from packline.testing import make_store

ROW_LENGTHS = {"concat": (700, 300_000), "best_fit": (6000,), "pad": (2000,)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    """A store on the disk, and the same in an object store: four bytes a token, a loss mask in one shard."""
    folder = tmp_path_factory.mktemp("store") / "store"
    lengths = [[*lengths_of(700, 1), 600_000], lengths_of(150, 2)]
    masked = make_store(folder, lengths, dtype="int32").shards[0].entry
    np.random.default_rng(1).integers(0, 2, masked.tokens, np.uint8).tofile(folder / f"{masked.name}.loss")
    local = relist(folder)
    with standing_for_bucket(Faults(folder)):
        yield local, Store(PLACE, CacheSettings(str(tmp_path_factory.mktemp("cache"))))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), packing=st.sampled_from(("concat", "best_fit", "pad")))
def test_parts_of_a_joint_plan_are_the_batches_of_their_rows(
    stores: tuple[Store, Store], data: st.DataObject, packing: Any
) -> None:
    length = data.draw(st.sampled_from(ROW_LENGTHS[packing]))
    local, remote = (store.rows(length, packing=packing) for store in stores)
    most = 12 if length < 10_000 else 3
    numbers = np.array(
        data.draw(st.lists(st.integers(0, len(local) - 1), min_size=1, max_size=most)), np.int64
    )
    cuts = sorted({0, len(numbers), *data.draw(st.lists(st.integers(0, len(numbers)), max_size=3))})
    whole = remote.plan(numbers)
    for first, last in itertools.pairwise(cuts):
        rows, places = numbers[first:last], None
        if data.draw(st.booleans()):
            places = np.array(data.draw(st.permutations(range(last - first))), np.int64)
        (planned,) = whole.parts([first, last])
        if places is not None:
            planned = PlannedRows.join([planned], [places])
        found = CompactBatch.of(planned, ALL_FIELDS).arrays()
        expected = local.read(rows, ALL_FIELDS)
        for name, values in found.items():
            assert np.array_equal(values if places is None else values[places], expected[name]), name


def test_steps_are_planned_once_and_no_byte_is_fetched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = make_store(tmp_path / "store", [lengths_of(900, 1), lengths_of(600, 3)])
    drawn: list[int] = []
    spans = Rows.spans
    fetched: list[int] = []

    def arrive(name: str, start: int, data: bytes) -> bytes:
        fetched.append(len(data) if name.endswith(".bin") else 0)
        return data

    with standing_for_bucket(Faults(local.path, arrive, seconds=0.002)):
        remote = Store(PLACE, CacheSettings(str(tmp_path / "cache")))
        loader = Loader(remote.rows(256), batch_size=8, prefetch=0)

        def counted(rows: Rows, indices: np.ndarray) -> object:
            drawn.extend(indices.tolist())
            return spans(rows, indices)

        monkeypatch.setattr(Rows, "spans", counted)
        for step in range(300):
            loader.next_batch(step)
            for thread in threading.enumerate():
                if thread.name == "packline-fetch-ahead":
                    thread.join()
    assert len(drawn) == len(set(drawn)) >= 300 * 8
    assert sum(fetched) <= sum(shard.entry.tokens for shard in local.shards) * local.dtype.itemsize


def test_what_a_plan_needs_is_all_that_its_batch_reads(stores: tuple[Store, Store], tmp_path: Path) -> None:
    length, per_piece = 2048, (1 << 20) // 4
    local = stores[0].rows(length)
    assert stores[0].shards[0].entry.tokens > 3 * per_piece
    for last in range(per_piece // length - 1, 3 * per_piece // length, per_piece // length):
        rows = Store(PLACE, CacheSettings(str(tmp_path / str(last)))).rows(length)
        planned = rows.plan(np.array([last]))  # its last target is in the next piece
        files = rows.store.files
        files.bring_ranges(planned.shards, planned.starts, planned.stops)
        assert files.traffic is not None
        before = files.traffic.requests
        found = CompactBatch.of(planned, ALL_FIELDS).arrays()
        assert files.traffic.requests == before > 0
        for name, values in local.read(last, ALL_FIELDS).items():
            assert np.array_equal(found[name], values), name
