"""Offsets of documents, held or mapped: damage of an index is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.store.stores import relist

from packline.errors import CorruptStore
from packline.facade import Store
from packline.packing import offsets
from packline.packing.offsets import ShardRange
from packline.testing import make_store


@pytest.mark.parametrize("held", [0, 32 << 20])
def test_no_wrong_place_comes_out_of_any_damaged_number_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", held)
    lengths = [3, 9, 1, 7]
    store = make_store(tmp_path / "store", [lengths])
    path = store.path / "train-made-000000.idx"
    data = path.read_bytes()
    owners = [place for place, length in enumerate(lengths) for _ in range(length)]
    refused = 0
    numbers = [(34 + 4 * one, "<i") for one in range(4)] + [(50 + 8 * one, "<q") for one in range(4)]
    for at, form in numbers:
        for change in (-(2**20), -2, 2, 2**20):
            damaged = bytearray(data)
            struct.pack_into(form, damaged, at, struct.unpack_from(form, data, at)[0] + change)
            path.write_bytes(damaged)
            found = ShardRange(relist(store.path), [0])
            try:
                where, before = found.find(np.arange(20))
            except CorruptStore:
                refused += 1
                continue
            assert where.tolist() == owners
            assert before.tolist() == [sum(lengths[:place]) for place in owners]
    assert refused == 4 * len(numbers)


def test_the_sizes_of_the_shards_decide_whether_starts_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = make_store(tmp_path / "store", [[5, 1], [2, 2, 2]])
    for most, held in ((8 * 5, True), (8 * 5 - 1, False)):
        monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", most)
        found = ShardRange(store, [0, 1])
        found.at(np.array([4, 0]))
        assert ("_begins" in vars(found)) is held
