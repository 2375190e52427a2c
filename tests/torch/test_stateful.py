"""torchdata's `StatefulDataLoader`: stopped in mid-epoch, it goes on with the very next batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the optional torch is not installed")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="torchdata, a peer of the tests, is not installed"
)

from packline.errors import PacklineError  # noqa: E402
from packline.facade import Store  # noqa: E402
from packline.loading.loader import Loader  # noqa: E402
from packline.testing import make_store  # noqa: E402
from packline.torch import LoaderDataset  # noqa: E402

pytestmark = [
    # torchdata asks torch for something that torch would rather not be asked for.
    pytest.mark.filterwarnings("ignore:.*set_vital.*is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    lengths = np.random.default_rng(3).geometric(1 / 40, 600)
    return make_store(tmp_path_factory.mktemp("stateful") / "store", [[int(length) for length in lengths]])


def make_loader(store: Store, **settings: Any) -> Loader:
    rows = store.rows(seq_len=64, packing="concat")
    return Loader(rows, **{"batch_size": 24, "seed": 4, **settings})


def wrap(loader: Loader, workers: int, method: str = "fork") -> Any:
    context = method if workers else None
    return stateful.StatefulDataLoader(
        LoaderDataset(loader), batch_size=None, num_workers=workers, multiprocessing_context=context
    )


def tokens(batches: Any) -> list[list[list[int]]]:
    return [batch["tokens"].tolist() for batch in batches]


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, ""), (2, "fork"), (4, "fork"), pytest.param(2, "spawn", marks=pytest.mark.long(only=True))],
)
def test_interrupted_again_and_again(store: Store, workers: int, method: str) -> None:
    expected = [batch["tokens"].tolist() for batch in make_loader(store)]
    found: list[list[list[int]]] = []
    state: dict[str, Any] = {}
    while len(found) < len(expected):
        running = wrap(make_loader(store), workers, method)
        running.load_state_dict(state)
        batches = iter(running)
        found += tokens(next(batches) for _ in range(min(5, len(expected) - len(found))))
        state = json.loads(json.dumps(running.state_dict()))  # as a checkpoint in JSON would keep it
    assert found == expected


def test_on_a_loader_that_was_itself_resumed(store: Store) -> None:
    """The state holds steps of the loader, not a count from wherever iteration began."""
    expected = [batch["tokens"].tolist() for batch in make_loader(store)]
    loader = make_loader(store)
    loader.load_state_dict({**loader.state_dict(), "step": 3})
    running = wrap(loader, 2)
    batches = iter(running)
    found = tokens(next(batches) for _ in range(3))
    state = running.state_dict()
    with pytest.raises(PacklineError, match="ahead of the trainer"):
        loader.state_dict()
    del batches
    resumed = wrap(loader, 2)
    resumed.load_state_dict(state)
    assert expected[:3] + found + tokens(resumed) == expected
    assert tokens(resumed) == expected[3:]  # the next iteration begins where the first one did


# An error while workers start costs torchdata five seconds each time.
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_state_of_another_dataset_is_refused(store: Store, tmp_path: Path, workers: int) -> None:
    running = wrap(make_loader(store), workers)
    next(iter(running))
    state = running.state_dict()
    others = [make_loader(make_store(tmp_path / "other", [[50] * 300])), make_loader(store, seed=5)]
    for loader in others[: 1 if workers else 2]:
        resumed = wrap(loader, workers)
        resumed.load_state_dict(state)
        with pytest.raises(PacklineError):
            next(iter(resumed))
