"""grain's own iterators over packline's sources: the loader's batches, every row once, and exact resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.formats.peers import run_peer

from packline.errors import RecipeError
from packline.facade import Store
from packline.grain import BatchSource, RowsSource
from packline.loading.loader import Loader
from packline.packing.batch import ALL_FIELDS
from packline.testing import make_store

BEGIN = """
del __file__  # worker processes need not run this program again
import hashlib, json, numpy as np, grain, packline, packline.grain
from absl import flags

flags.FLAGS.mark_as_parsed()  # as absl.app.run does; worker processes of grain read flags

def digest(batch):
    return {name: [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
            for name, array in batch.items()}

rows = packline.open(arguments[0]).rows(64, packing="best_fit")
"""
BATCHES = """
source = packline.grain.BatchSource(packline.Loader(rows, batch_size=8, seed=5))
assert isinstance(source, grain.sources.RandomAccessDataSource)

def iterate():
    dataset = grain.MapDataset.source(source).to_iter_dataset()
    if workers:
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
        dataset = dataset.mp_prefetch(options)
    return iter(dataset)

batches = iterate()
before = [digest(next(batches)) for _ in range(5)]
state = json.loads(json.dumps(batches.get_state()))
kept = [digest(batch) for batch in batches]
resumed = iterate()
resumed.set_state(state)
after = [digest(batch) for batch in resumed]
answer = [before + kept, after]
"""
ROWS = """
source = packline.grain.RowsSource(rows, fields=("tokens", "loss_mask"))
calls = []
whole = source._getitems
source._getitems = lambda places: calls.append(len(places)) or whole(places)
dataset = grain.MapDataset.source(source).shuffle(seed=3).batch(8)
batches = iter(dataset.to_iter_dataset())
found = [next(batches) for _ in range(3)]
state = batches.get_state()
kept = list(batches)
batches = iter(dataset.to_iter_dataset())
batches.set_state(state)
again = list(batches)
assert [digest(one) for one in kept] == [digest(one) for one in again]

def load(rows):
    source = packline.grain.RowsSource(rows)
    sampler = grain.samplers.IndexSampler(100, shuffle=True, seed=1, num_epochs=1)
    return iter(grain.DataLoader(data_source=source, sampler=sampler))

batches = load(rows)
next(batches)
state, refusal = batches.get_state(), ""
load(rows).set_state(state)
try:
    load(packline.open(arguments[0]).rows(64, packing="concat")).set_state(state)
except ValueError as error:
    refusal = str(error)
answer = [[batch["tokens"].tolist() for batch in found + kept], calls, refusal]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    lengths = np.random.default_rng(9).geometric(1 / 40, (2, 150))
    folder = tmp_path_factory.mktemp("grain") / "store"
    return make_store(folder, [[int(length) for length in shard] for shard in lengths])


def digest(batch: dict[str, np.ndarray]) -> dict[str, list[object]]:
    import hashlib

    return {
        name: [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
        for name, array in batch.items()
    }


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_grain_returns_the_loaders_batches_and_resumes_exactly(store: Store, workers: int) -> None:
    loader = Loader(store.rows(64, packing="best_fit"), batch_size=8, seed=5)
    expected = [digest(batch) for batch in loader]
    code = f"{BEGIN}workers = {workers}\n{BATCHES}"
    whole, rest = run_peer(code, store.path, modules=("grain",), with_packline=True)
    assert len(expected) > 10
    assert whole == expected and rest == expected[5:]


def test_grain_shuffles_rows_reads_a_batch_at_once_and_refuses_the_state_of_others(store: Store) -> None:
    batches, calls, refusal = run_peer(BEGIN + ROWS, store.path, modules=("grain",), with_packline=True)
    rows = store.rows(64, packing="best_fit")
    stored = rows.read(np.arange(len(rows)))["tokens"].tolist()
    found = [row for batch in batches for row in batch]
    assert found != stored[: len(found)]
    assert sorted(found) == sorted(stored) and set(calls) <= {8, len(rows) % 8}
    assert "RowsSource of rows" in refusal


def test_elements_are_those_of_the_loader_and_the_rows(store: Store) -> None:
    rows = store.rows(64)
    loader = Loader(rows, batch_size=6, rank=1, world_size=2, keys="huggingface")
    batches = BatchSource(loader)
    assert len(batches) == len(loader) and digest(batches[3]) == digest(loader.batch(3))
    assert loader.fingerprint in repr(batches) and "rank 1 of 2" in repr(batches)
    source = RowsSource(rows, fields=ALL_FIELDS)
    assert len(source) == len(rows)
    for one in (source[7], *source._getitems([7, 7])):
        for name in ALL_FIELDS:
            assert one[name].shape == (64,) and np.array_equal(one[name], getattr(rows[7], name))
    with pytest.raises(IndexError, match=f"row {len(rows):,} of {len(rows):,}"):
        source[len(rows)]
    with pytest.raises(RecipeError, match="wisdom"):
        RowsSource(rows, fields=("wisdom",))


def test_sources_survive_pickling(store: Store, tmp_path: Path) -> None:
    import pickle

    rows = store.rows(64)
    for source in (RowsSource(rows), BatchSource(Loader(rows, batch_size=4))):
        again = pickle.loads(pickle.dumps(source))
        assert repr(again) == repr(source) and digest(again[2]) == digest(source[2])
