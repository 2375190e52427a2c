"""Steps planned together: the same batches as one by one, in any order, and errors in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.stores import relist

from packline import Loader, Mixture
from packline.errors import CorruptStore
from packline.facade import Store
from packline.loading import read_ahead
from packline.packing import offsets
from packline.packing.batch import ALL_FIELDS
from packline.testing import make_store


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """Two stores of several shards; one shard of the second has a loss mask."""
    folder = tmp_path_factory.mktemp("stores")
    lengths = np.random.default_rng(3).integers(1, 90, (6, 40)).tolist()
    plain = make_store(folder / "plain", lengths[:3])
    masked = make_store(folder / "masked", lengths[3:]).shards[1].entry
    loss = np.random.default_rng(1).integers(0, 2, masked.tokens, np.uint8)
    loss.tofile(folder / "masked" / f"{masked.name}.loss")
    return plain, relist(folder / "masked")


SOURCES: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "concat", "shuffle_documents": 4},
    {"packing": "best_fit"},
    {"packing": "pad", "overflow": "split"},
    {"packing": "pad", "overflow": "split", "pad_id": 3},
]


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(), boundary_loss=st.booleans(), batch_size=st.integers(1, 7), world_size=st.integers(1, 2)
)
def test_batches_of_planned_steps_are_those_of_single_ones(
    stores: tuple[Store, Store], data: st.DataObject, boundary_loss: bool, batch_size: int, world_size: int
) -> None:
    chosen = data.draw(st.lists(st.integers(0, 2 * len(SOURCES) - 1), min_size=1, max_size=3, unique=True))
    length = data.draw(st.sampled_from((30, 64)))
    rows = [
        (stores[number % 2].rows(length, boundary_loss=boundary_loss, **SOURCES[number // 2]), weight + 1, 9)
        for weight, number in enumerate(chosen)
    ]
    loader = Loader(
        Mixture(rows),
        batch_size=batch_size * world_size,
        world_size=world_size,
        fields=ALL_FIELDS,
        prefetch=0,
    )
    step, stride = 0, data.draw(st.integers(1, 3))
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.integers(0, 9)) == 0:
            step = data.draw(st.integers(0, len(loader) - 1))
        if step >= len(loader):
            break
        expected = loader.batch(step)
        whole = data.draw(st.booleans())
        found = loader.next_batch(step) if whole else loader.compact_batch(step).arrays()
        assert list(found) == list(expected)
        for name, values in found.items():
            assert values.dtype == expected[name].dtype and np.array_equal(values, expected[name]), name
        step += stride


def test_steps_are_planned_together_and_only_once(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []
    plan = read_ahead.plan_steps

    def counted(loader: Loader, steps: range) -> Any:
        planned.extend(steps)
        return plan(loader, steps)

    monkeypatch.setattr(read_ahead, "plan_steps", counted)
    rows = [(store.rows(30), 1, 9) for store in stores]
    loader = Loader(Mixture(rows), batch_size=4, prefetch=2)
    assert len(list(loader)) == len(loader) > 3 * read_ahead.STEPS
    assert planned == list(range(1, len(loader)))  # the first is not known to have a next one


def test_a_damaged_index_stops_at_its_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "IN_MEMORY_BYTES", 0)  # so that indexes are read where they are used
    store = make_store(tmp_path / "store", [[40] * 50, [40] * 50])
    path = store.path / f"{store.shards[1].entry.name}.idx"
    index = bytearray(path.read_bytes())
    index[40] ^= 1
    path.write_bytes(index)
    loader = Loader(store.rows(40, packing="pad"), batch_size=4, shuffle=False, prefetch=0)
    with pytest.raises(CorruptStore):
        for number, batch in enumerate(loader):
            assert number < 50 // 4 and len(batch["tokens"]) == 4
    assert loader.step == 50 // 4
