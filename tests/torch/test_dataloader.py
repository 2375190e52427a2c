"""Under torch's `DataLoader` every read is right and the order is the loader's.

Documents are known by construction: a token is a function of its document and its place there. So what a
worker sends back is compared with arithmetic, not with another read of the same store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the optional torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from packline.errors import PacklineError, RecipeError  # noqa: E402
from packline.facade import Store  # noqa: E402
from packline.loading.loader import Loader  # noqa: E402
from packline.packing import layout  # noqa: E402
from packline.packing.options import Packing  # noqa: E402
from packline.testing import document_tokens, make_store  # noqa: E402
from packline.torch import LoaderDataset, RowsDataset, block_mask, sdpa_mask, to_tensors, varlen  # noqa: E402

SHARDS, DOCUMENTS, LENGTH = 3, 700, 64
READS = 9_000
WORKERS = [(0, None), (2, "fork"), (4, "fork"), (2, "spawn")]

pytestmark = [
    # More workers than cores is the point here; torch advises against it.
    pytest.mark.filterwarnings("ignore:.*worker processes in total.*:UserWarning"),
    # A fork in a process that has threads is what a training script does, and only a warning to Python.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def lengths() -> list[list[int]]:
    found = np.random.default_rng(4).geometric(1 / 40, (SHARDS, DOCUMENTS))
    return [[int(length) for length in shard] for shard in found]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]]) -> Store:
    return make_store(tmp_path_factory.mktemp("dataloader") / "store", lengths)


@pytest.fixture(scope="module")
def right(lengths: list[list[int]]) -> np.ndarray:
    """Tokens of all documents back to back, from arithmetic: `[T]`."""
    flat = [length for shard in lengths for length in shard]
    return np.concatenate([document_tokens(number, length) for number, length in enumerate(flat)])


def right_rows(right: np.ndarray) -> np.ndarray:
    """The full rows of concat, `[R, L]`."""
    count = len(right) // LENGTH
    return right[: count * LENGTH].reshape(count, LENGTH)


def workers(count: int, method: str | None) -> dict[str, Any]:
    return {"num_workers": count, "multiprocessing_context": method}


def name(value: object) -> str:
    return "inline" if value == (0, None) else "-".join(map(str, value)) if isinstance(value, tuple) else ""


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return ours.keys() == theirs.keys() and all(
        np.array_equal(np.asarray(ours[key]), np.asarray(theirs[key])) for key in ours
    )


# ------------------------------------------------------------------------------------- random reads


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [*WORKERS[1:3], pytest.param(WORKERS[3], marks=pytest.mark.long(only=True))], ids=name
)
def test_random_reads(store: Store, right: np.ndarray, how: tuple[int, str]) -> None:
    expected = right_rows(right)
    places = np.random.default_rng(how[0]).integers(0, len(expected), READS)
    dataset = RowsDataset(store.rows(seq_len=LENGTH, packing="concat"))
    loader = DataLoader(dataset, batch_size=100, sampler=places.tolist(), **workers(*how))
    wrong, done = 0, 0
    for batch in loader:
        asked = places[done : done + len(batch["tokens"])]
        wrong += int((batch["tokens"].numpy() != expected[asked]).any(1).sum())
        inside = batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]
        wrong += int((batch["targets"][:, :-1].numpy()[inside] != expected[asked][:, 1:][inside]).sum())
        done += len(asked)
    assert (wrong, done) == (0, READS)


# ----------------------------------------------------------------------------------- rows by number


def test_a_row_by_any_integer(store: Store, right: np.ndarray) -> None:
    rows = store.rows(seq_len=LENGTH, packing="concat")
    dataset, expected = RowsDataset(rows), right_rows(right)
    count = len(dataset)
    assert count == len(rows)
    for index in (0, 5, np.int64(7), np.uint8(9), count - 2, -2, -count):
        row = dataset[index]
        assert row["tokens"].shape == (LENGTH,)
        assert row["tokens"].tolist() == expected[int(index) % count].tolist()
    for index in (count, -count - 1, 10**9):
        with pytest.raises(IndexError, match=f"of {count:,}"):
            dataset[index]


@pytest.mark.parametrize("settings", [{"keys": "keras"}, {"fields": ("tokens", "wisdom")}])
def test_wrong_settings_are_refused_before_the_first_row(store: Store, settings: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"keras|wisdom"):
        RowsDataset(store.rows(seq_len=LENGTH), **settings)


# --------------------------------------------------------------------------------- batches of a loader


def make_loader(store: Store, **settings: Any) -> Loader:
    rows = store.rows(seq_len=LENGTH, packing="concat")
    return Loader(rows, **{"batch_size": 40, "seed": 11, "epochs": 2, **settings})


@pytest.mark.parametrize(
    "how", [*WORKERS[:3], *(pytest.param(w, marks=pytest.mark.slow) for w in WORKERS[3:])]
)
def test_the_order_is_the_loaders(store: Store, how: tuple[int, str | None]) -> None:
    expected = [dict(batch) for batch in make_loader(store)]
    loader = make_loader(store)
    steps = len(loader)
    assert len(expected) == steps
    assert steps % 4  # the last turn is not a whole one
    dataset = LoaderDataset(loader)
    found = list(DataLoader(dataset, batch_size=None, **workers(*how)))
    assert len(found) == len(dataset) == steps
    assert all(equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    if how[0]:
        with pytest.raises(RecipeError, match="ahead of the trainer") as caught:
            loader.state_dict()
        assert "state_after(n)" in (caught.value.hint or "")
    else:
        assert loader.state_dict() == dataset.state_after(steps)


@pytest.mark.parametrize(("before", "after", "taken"), [(2, 3, 7), (3, 0, 1), (0, 2, 0), (2, 2, None)])
def test_plain_resume_with_other_workers(store: Store, before: int, after: int, taken: int | None) -> None:
    expected = [dict(batch) for batch in make_loader(store)]
    taken = len(expected) if taken is None else taken
    dataset = LoaderDataset(make_loader(store))
    batches = iter(DataLoader(dataset, batch_size=None, **workers(before, "fork" if before else None)))
    found = [next(batches) for _ in range(taken)]
    state = dataset.state_after(taken)
    del batches

    loader = make_loader(store)
    loader.load_state_dict(state)
    rest = LoaderDataset(loader)
    assert len(rest) == len(expected) - taken
    found += list(DataLoader(rest, batch_size=None, **workers(after, "fork" if after else None)))
    assert all(equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_the_state_without_workers_is_that_of_the_last_batch_handed_out(store: Store, taken: int) -> None:
    expected = [dict(batch) for batch in make_loader(store)]
    loader = make_loader(store)
    loader.load_state_dict(loader.state_at(3))
    dataset = LoaderDataset(loader)
    batches = iter(DataLoader(dataset, batch_size=None))
    found = [next(batches) for _ in range(taken)]
    state = loader.state_dict()
    assert (state["step"], loader.step, state) == (3 + taken, 3 + taken, dataset.state_after(taken))

    again = iter(DataLoader(dataset, batch_size=None))  # begins where the first one did
    assert loader.step == 3
    next(batches)  # the state follows the newest iterator
    assert loader.step == 3 and equal(next(again), expected[3])

    resumed = make_loader(store)
    resumed.load_state_dict(state)
    found += list(DataLoader(LoaderDataset(resumed), batch_size=None))
    assert all(equal(ours, theirs) for ours, theirs in zip(found, expected[3:], strict=True))


@pytest.mark.parametrize("how", [(1, "fork"), (2, "fork")])
def test_the_state_beside_workers_is_refused_until_another_is_known(
    store: Store, how: tuple[int, str]
) -> None:
    """Whatever a batch becomes on its way: this one is a number when it arrives."""
    loader = make_loader(store)
    dataset = LoaderDataset(loader)
    assert loader.state_dict()["step"] == 0
    batches = iter(DataLoader(dataset, batch_size=None, collate_fn=len, **workers(*how)))
    assert [next(batches) for _ in range(3)] == [4] * 3
    with pytest.raises(RecipeError, match="ahead of the trainer"):
        loader.state_dict()
    state = dataset.state_after(3)
    del batches
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert equal(next(iter(DataLoader(dataset, batch_size=None))), to_tensors(loader.batch(3)))
    assert loader.state_dict()["step"] == 4


def test_persistent_workers_begin_again(store: Store) -> None:
    loader = DataLoader(
        LoaderDataset(make_loader(store)), batch_size=None, persistent_workers=True, **workers(2, "fork")
    )
    first, second = list(loader), list(loader)
    assert len(first) == len(second) > 0
    assert all(equal(ours, theirs) for ours, theirs in zip(first, second, strict=True))


@pytest.mark.parametrize("taken", [-1, 10_000])
def test_more_than_is_left_was_never_taken(store: Store, taken: int) -> None:
    with pytest.raises(RecipeError, match=f"taken={taken}"):
        LoaderDataset(make_loader(store)).state_after(taken)


@pytest.mark.parametrize("how", WORKERS[:2], ids=name)
def test_an_error_comes_out_with_its_kind(tmp_path: Path, how: tuple[int, str | None]) -> None:
    """Tokens that are damaged after opening: a worker's error is the same error here."""
    store = make_store(tmp_path / "store", [[40] * 20])
    loader = Loader(store.rows(seq_len=LENGTH, packing="concat"), batch_size=2, seed=1)
    path = tmp_path / "store" / f"{store.manifest.shards[0].name}.bin"
    np.full(800, 65_000, "<u2").tofile(path)
    with pytest.raises(PacklineError, match=store.manifest.shards[0].name):
        list(DataLoader(LoaderDataset(loader), batch_size=None, **workers(*how)))


# ------------------------------------------------------------------------------------ tensors and masks


def test_tensors_share_memory_and_only_what_was_asked_is_widened() -> None:
    batch = {"tokens": np.arange(6, dtype=np.int32).reshape(2, 3), "targets": np.full((2, 3), -100, np.int32)}
    found = to_tensors(batch, int64=["targets"])
    assert (found["tokens"].dtype, found["targets"].dtype) == (torch.int32, torch.int64)
    batch["tokens"][0, 0] = 77
    assert found["tokens"][0, 0] == 77
    again = to_tensors(found, device="cpu", non_blocking=True)
    assert again["tokens"].data_ptr() == found["tokens"].data_ptr()
    with pytest.raises(RecipeError, match="no field 'labels' in the batch: it has tokens, targets"):
        to_tensors(batch, int64=["labels"])


def test_no_type_loses_a_value() -> None:
    for dtype, wanted in ((np.uint16, torch.int32), (np.uint32, torch.int64), (np.uint8, torch.uint8)):
        most = np.iinfo(dtype).max
        tensor = to_tensors({"tokens": np.array([0, 1, most], dtype)})["tokens"]
        assert (tensor.dtype, tensor.tolist()) == (wanted, [0, 1, most])


def test_a_read_only_array_stays_as_it_is(store: Store) -> None:
    frozen = np.arange(3, dtype=np.int32)
    frozen.flags.writeable = False
    to_tensors({"tokens": frozen})["tokens"][0] = 9
    assert frozen.tolist() == [0, 1, 2]
    document = store.documents[4]  # a view of the mapped file
    assert to_tensors({"tokens": document})["tokens"].tolist() == document.tolist()


def test_pinning_without_an_accelerator_changes_nothing() -> None:
    found = to_tensors({"tokens": np.arange(3)}, pin_memory=True)["tokens"]
    assert found.is_pinned() == torch.accelerator.is_available()
    assert found.tolist() == [0, 1, 2]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_masks_of_torch_are_those_of_numpy(store: Store, packing: Packing) -> None:
    from torch.nn.attention.flex_attention import create_mask

    rows = store.rows(seq_len=LENGTH, packing=packing)
    every = rows.read(np.arange(len(rows)))["segment_ids"]
    padded = np.flatnonzero(every[:, -1] == -1)
    segments = every[np.append(np.arange(0, len(rows), 9), padded[:5])]
    assert len(padded) or packing == "concat"
    tensor = torch.from_numpy(segments)
    right = layout.attention_mask(segments)
    assert np.array_equal(sdpa_mask(tensor).numpy(), right)
    boundaries, longest = varlen(tensor)
    assert boundaries.dtype == torch.int32
    assert boundaries.tolist() == layout.cu_seqlens(segments).tolist()
    assert longest == np.diff(layout.cu_seqlens(segments)).max()
    blocks = block_mask(tensor, block_size=16)
    dense = create_mask(blocks.mask_mod, len(segments), 1, LENGTH, LENGTH, device="cpu")
    assert np.array_equal(dense.numpy(), right)
    # Which blocks are looked into at all: those with something to see, and no others.
    some = right.reshape(len(segments), 1, LENGTH // 16, 16, LENGTH // 16, 16).any((3, 5))
    assert np.array_equal(blocks.to_dense().numpy().astype(bool), some)
