"""Workers of `DataLoader` send little, and the loader's batch arrives to the last bit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.stores import relist

torch = pytest.importorskip("torch", reason="the optional torch is not installed")

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, default_collate  # noqa: E402

from packline.errors import PacklineError  # noqa: E402
from packline.facade import Store  # noqa: E402
from packline.loading.loader import Loader  # noqa: E402
from packline.loading.mixture import Mixture, Stage  # noqa: E402
from packline.packing.batch import ALL_FIELDS, FIELDS, BatchPart, CompactBatch  # noqa: E402
from packline.testing import StoreShape, make_store, row_options, store_shapes  # noqa: E402
from packline.torch import LoaderDataset, RowsDataset, WorkerBatch, to_tensors  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*worker processes in total.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """Two stores; one shard of the second is not trained on throughout."""
    folder, random = tmp_path_factory.mktemp("workers"), np.random.default_rng(6)
    lengths = [[int(length) for length in random.geometric(1 / 40, 300)] for _ in range(3)]
    first, second = make_store(folder / "first", lengths[:2]), make_store(folder / "second", lengths[1:])
    shard = second.shards[1].entry
    random.integers(0, 2, shard.tokens, np.uint8).tofile(folder / "second" / f"{shard.name}.loss")
    return first, relist(folder / "second")


def mixed(stores: tuple[Store, Store], **settings: Any) -> Loader:
    """A loader over both stores, with settings that differ between them."""
    first, second = stores
    mixture = Mixture(
        [
            (first.rows(64, packing="best_fit"), 0.5, None),
            (second.rows(64, packing="concat", boundary_loss=True), 0.3, None),
            (second.rows(128, packing="pad", pad_id=7).split_to(64), 0.2, None),
        ]
    )
    return Loader([Stage(mixture, tokens=64 * 6 * 12)], **{"batch_size": 12, "seed": 2, **settings})


def same(found: Any, expected: dict[str, Any]) -> None:
    """The same names in the same order, types, shapes and values."""
    expected = to_tensors(expected)
    assert type(found) is dict and list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype and torch.equal(found[name], values), name


@pytest.mark.parametrize(
    ("keys", "method", "fields"),
    [
        ("huggingface", "spawn", ALL_FIELDS),
        ("packline", "fork", ALL_FIELDS),
        ("huggingface", "fork", None),
        ("packline", "fork", ("loss_mask", "position_ids")),
    ],
)
def test_batches_arrive_as_the_loader_makes_them(
    stores: tuple[Store, Store], keys: Any, method: str, fields: Any
) -> None:
    loader = mixed(stores, keys=keys, fields=fields)
    workers = {"num_workers": 2, "multiprocessing_context": method}
    found = list(DataLoader(LoaderDataset(loader), batch_size=None, **workers))
    assert len(found) == len(loader) == 6
    for step, batch in enumerate(found):
        same(batch, loader.batch(step))


@given(store_shapes(), row_options(), st.data())
def test_a_compact_batch_becomes_the_arrays_of_its_rows(
    shape: StoreShape, options: Any, data: st.DataObject
) -> None:
    with shape.opened() as store:
        settings = {name: getattr(options, name) for name in options.__struct_fields__}
        try:
            rows = store.rows(4, **settings)
        except PacklineError:  # no row of this length
            return
        count = len(rows)
        chosen = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=6)), np.int64)
        fields = tuple(data.draw(st.lists(st.sampled_from(ALL_FIELDS), unique=True)))
        sent = pickle.loads(pickle.dumps(CompactBatch.read([BatchPart(rows, chosen)], fields)))
        arrays, expected = sent.arrays(), rows.read(chosen, fields)
        assert list(arrays) == list(expected) == list(fields)
        for name in fields:
            assert arrays[name].dtype == expected[name].dtype
            assert np.array_equal(arrays[name], expected[name])


def test_two_bytes_for_a_token_are_sent(stores: tuple[Store, Store]) -> None:
    rows = stores[0].rows(1024)
    batch = CompactBatch.read([BatchPart(rows, np.arange(len(rows)))], FIELDS)
    sent = len(ForkingPickler.dumps(WorkerBatch(batch, "packline")))
    spans = int(rows.spans(np.arange(len(rows))).offsets[-1])
    assert sent < 2 * len(rows) * 1024 + 4 * spans + 16 * len(rows) + 1500


def test_a_batch_in_a_worker_can_be_used_like_a_dict(stores: tuple[Store, Store]) -> None:
    loader = mixed(stores)
    expected = to_tensors(loader.batch(0))
    batch = WorkerBatch(loader.compact_batch(0), "packline")
    assert list(batch) == list(expected) == list(batch.keys()) and len(batch) == 4
    assert "tokens" in batch and "labels" not in batch and batch.get("labels") is None
    same({**batch}, expected)
    same(dict(batch.items()), expected)
    same(pickle.loads(pickle.dumps(batch)), expected)
    with pytest.raises(AttributeError):
        _ = batch._fields
    del batch["segment_ids"]
    batch["ones"] = torch.ones(3)
    assert list(pickle.loads(pickle.dumps(batch))) == ["tokens", "targets", "position_ids", "ones"]


def drop_first_tokens(batch: Any) -> Any:
    batch["targets"][:, 0] = -100
    return batch


def only_targets(batch: Any) -> Any:
    return {"labels": batch["targets"].long()}


def test_a_collate_function_reads_and_changes_a_batch(stores: tuple[Store, Store]) -> None:
    loader = mixed(stores)
    for collate in (drop_first_tokens, only_targets):
        found = DataLoader(LoaderDataset(loader), batch_size=None, num_workers=2, collate_fn=collate)
        for step, batch in enumerate(found):
            same(batch, collate(to_tensors(loader.batch(step))))


def sampled(rows: Any, workers: int, **settings: Any) -> Iterator[dict[str, Any]]:
    sampler = BatchSampler(SequentialSampler(rows), 16, drop_last=False)
    yield from DataLoader(
        RowsDataset(rows, **settings), sampler=sampler, batch_size=None, num_workers=workers
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_batches_gets_whole_batches(stores: tuple[Store, Store], workers: int) -> None:
    rows = stores[1].rows(64)
    by_row = DataLoader(RowsDataset(rows, keys="huggingface"), batch_size=16)
    for ours, theirs in zip(sampled(rows, workers, keys="huggingface"), by_row, strict=True):
        same(ours, theirs)
    with pytest.raises(IndexError, match=f"of {len(rows):,}"):
        RowsDataset(rows)[[0, len(rows)]]


def untouched(batch: Any) -> Any:
    return default_collate(batch)


def masked_first(batch: Any) -> Any:
    for row in batch:
        row["targets"][:3] = -100  # in place
    return default_collate(batch)


def masked_through_numpy(batch: Any) -> Any:
    for row in batch:
        row["targets"].numpy()[:3] = -100
    return default_collate(batch)


def other_order(batch: Any) -> Any:
    return default_collate(batch[::-1])


def some(batch: Any) -> Any:
    return default_collate(batch[2:5])


def as_dicts(batch: Any) -> Any:
    return default_collate([{**row, "more": torch.ones(1)} for row in batch])


def without_targets(batch: Any) -> Any:
    for row in batch:
        del row["targets"]
    return default_collate(batch)


@pytest.mark.parametrize(
    ("workers", "collate"),
    [
        *((0, one) for one in (None, masked_through_numpy, other_order, some, as_dicts, without_targets)),
        *((2, one) for one in (None, untouched, masked_first, some)),
    ],
)
def test_rows_are_collated_as_dicts_would_be(
    stores: tuple[Store, Store], workers: int, collate: Callable[[Any], Any] | None
) -> None:
    rows = stores[1].rows(64)
    dataset, size = RowsDataset(rows), 16
    found = DataLoader(dataset, batch_size=size, num_workers=workers, collate_fn=collate)
    for number, batch in enumerate(found):
        numbers = range(number * size, min((number + 1) * size, len(rows)))
        plain = [dataset[index] for index in numbers]
        assert all(type(row) is dict for row in plain)
        same(batch, (collate or default_collate)(plain))


def test_a_row_of_a_batch_is_a_dict(stores: tuple[Store, Store]) -> None:
    dataset = RowsDataset(stores[1].rows(64))
    names = set(dataset[0])
    for look in (
        lambda row: set(row),
        lambda row: set(dict(row)),
        lambda row: set({**row}),
        lambda row: set(row.keys()),
        lambda row: {name for name, _ in row.items()},
        lambda row: set(row | {}),
        lambda row: set({} | row),
        lambda row: set(row.copy()),
        lambda row: set(pickle.loads(pickle.dumps(row))),
        lambda row: {name for name in names if name in row},
        lambda row: {name for name in names if row.get(name) is not None},
    ):
        row = dataset.__getitems__([3, 4])[1]
        assert look(row) == names and len(row) == len(names)
        assert torch.equal(row["tokens"], dataset[4]["tokens"])
