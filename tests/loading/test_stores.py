"""Loaders over real stores: batches hold the tokens of their rows, in this process and in others."""

from __future__ import annotations

import multiprocessing
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packline.facade import Store
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.packing.batch import ALL_FIELDS
from packline.packing.options import RowOptions
from packline.packing.rows import Rows
from packline.testing import make_store

LENGTHS = [int(length) for length in np.random.default_rng(3).integers(1, 60, 400)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    folder = tmp_path_factory.mktemp("stores")
    return [
        make_store(folder / "a", [LENGTHS[:150], LENGTHS[150:250]]),
        make_store(folder / "b", [LENGTHS[250:]]),
    ]


def run(stores: list[Store], **settings: Any) -> Loader:
    """A mixture, and then longer rows cut to the same length."""
    mixture = Mixture(
        [
            (Rows(stores[0], 16), 0.6, None),
            (Rows(stores[1], 16, RowOptions(packing="pad", overflow="split")), 0.4, None),
        ]
    )
    stages = [Stage(mixture, tokens=16 * 8 * 20), Stage(Rows(stores[0], 64), seq_len=16, tokens=16 * 8 * 10)]
    return Loader(stages, batch_size=8, seed=2, **settings)


def test_every_row_of_a_batch_is_the_row_that_the_schedule_names(stores: list[Store]) -> None:
    loader = run(stores, fields=ALL_FIELDS)
    for step, batch in enumerate(loader):
        drawn = loader.rows_of_step(step)
        sources = loader.schedule.stages[drawn.stage].mixture.rows
        for place, (source, row) in enumerate(zip(drawn.sources, drawn.rows, strict=True)):
            alone = sources[source].read(np.array([row]), ALL_FIELDS)
            for name in ALL_FIELDS:
                assert np.array_equal(batch[name][place], alone[name][0]), (step, place, name)
                assert batch[name].dtype == alone[name].dtype


def tokens_of(loader: Loader, steps: list[int]) -> list[list[list[int]]]:
    return [loader.batch(step)["tokens"].tolist() for step in steps]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_are_the_same_in_another_process(stores: list[Store], method: str) -> None:
    loader = run(stores, prefetch=2)
    batches = iter(loader)
    first = [batch["tokens"].tolist() for batch in islice(batches, 3)]  # a thread is at work
    steps = [0, 1, 2, 25, 7]
    expected = tokens_of(loader, steps)
    assert expected[:3] == first
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads: the case that is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(tokens_of, (loader, steps)) == expected
    assert next(batches)["tokens"].tolist() == tokens_of(loader, [3])[0]


def test_a_store_that_moved_is_the_same_run(stores: list[Store], tmp_path: Path) -> None:
    import shutil

    state = run(stores).state_dict() | {"step": 3}
    moved = []
    for store in stores:
        shutil.copytree(store.path, tmp_path / store.path.name)
        moved.append(Store(tmp_path / store.path.name))
    loader = run(moved)
    loader.load_state_dict(state)
    assert next(iter(loader))["tokens"].tolist() == tokens_of(run(stores), [3])[0]
