from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.stores import make_store, random_documents, random_loss

from packline.errors import InputError, RecipeError
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.export import Exported, run_export
from packline.formats.row_view import RowView
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture, Stage
from packline.packing.batch import ALL_FIELDS
from packline.packing.options import ExportChoice

PACKINGS: list[dict[str, Any]] = [
    {"packing": "concat"},
    {"packing": "concat", "boundary_loss": True, "shuffle_documents": 4},
    {"packing": "best_fit"},
    {"packing": "pad", "overflow": "split", "pad_id": 7},
    {"packing": "pad", "min_tokens": 5},
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    folder = tmp_path_factory.mktemp("rows")
    found = []
    for number in range(2):
        documents = random_documents(50, 1000, longest=20, seed=number)
        found.append(
            make_store(
                folder / str(number),
                documents,
                vocab_size=1000,
                eod_id=0,
                loss=random_loss(documents) if number else None,
                shards=2,
            )
        )
    return found


def joined(batches: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    return np.concatenate([batch[name] for batch in batches])


@settings(max_examples=40)
@given(data=st.data())
def test_rows_of_a_store_are_those_of_the_loader(stores: list[Store], data: st.DataObject) -> None:
    store = data.draw(st.sampled_from(stores))
    packing = data.draw(st.sampled_from(PACKINGS))
    seed = data.draw(st.none() | st.integers(0, 5))
    epochs = data.draw(st.integers(1, 2))
    order: dict[str, Any] = {}
    if seed is not None and data.draw(st.booleans()):
        order = {"order": "blocks", "block_rows": 2, "window_blocks": 4}
    view = RowView.of_store(store, seq_len=16, seed=seed, epochs=epochs, batch_size=3, **packing, **order)
    rows = store.rows(16, **packing)
    loader = Loader(
        rows,
        batch_size=3,
        seed=seed or 0,
        shuffle=seed is not None,
        epochs=epochs,
        fields=ALL_FIELDS,
        **order,
    )
    assert view.rows == len(rows) * epochs and view.batch_size == 3
    batches = [loader.batch(step) for step in range(len(loader))]
    start = data.draw(st.integers(0, len(loader) * 3))
    stop = data.draw(st.integers(start, len(loader) * 3))
    found = view.read(start, stop, ALL_FIELDS)
    for name in ALL_FIELDS:
        assert np.array_equal(found[name], joined(batches, name)[start:stop]), name
        assert found[name].dtype == batches[0][name].dtype
    # Those that no batch would have come behind: every row is there as often as there are epochs.
    whole = view.read(0, view.rows, ["tokens"])["tokens"]
    expected = np.concatenate([rows.read(np.arange(len(rows)), ["tokens"])["tokens"]] * epochs)
    assert sorted(map(bytes, whole)) == sorted(map(bytes, expected))


def test_what_rows_hold_is_said_by_their_spans(stores: list[Store]) -> None:
    mixture = Mixture([(stores[0].rows(16), 2), (stores[1].rows(16, packing="best_fit"), 1)])
    view = RowView.of_loader(Loader(mixture, batch_size=3, seed=2))
    spans = view.spans(2, view.rows)
    tokens = view.read(0, view.rows, ["tokens"])["tokens"]
    lengths = view.lengths(0, view.rows)
    assert set(spans.stores.tolist()) == {0, 1} and spans.rows.tolist() == sorted(spans.rows.tolist())
    for row in range(2, view.rows):
        held = np.flatnonzero(spans.rows == row)
        parts = [
            view.stores[spans.stores[n]].documents[int(spans.documents[n])][
                spans.starts[n] : spans.starts[n] + spans.lengths[n]
            ]
            for n in held
        ]
        text = np.concatenate(parts)
        assert len(text) == lengths[row] and np.array_equal(tokens[row, : len(text)], text)
    assert view.tokens == int(lengths.sum()) and view.padding_tokens == view.rows * 16 - view.tokens


def test_a_run_of_several_stages(stores: list[Store]) -> None:
    rows = [stores[0].rows(16), stores[1].rows(16)]
    stages = [
        Stage(Mixture([(rows[0], 1), (rows[1], 3)]), tokens=16 * 4 * 2),
        Stage(Mixture([(rows[1], 1), (rows[0], 1)])),
    ]
    loader = Loader(stages, batch_size=4, seed=5, fields=ALL_FIELDS)
    batches = [loader.batch(step) for step in range(len(loader))]
    view = RowView.of_loader(loader)
    assert view.rows == 4 * len(loader)
    assert np.array_equal(view.read(3, 11)["targets"], joined(batches, "targets")[3:11])
    second = RowView.of_loader(loader, 1)
    assert np.array_equal(second.read(0, 4)["tokens"], batches[2]["tokens"])
    with pytest.raises(RecipeError, match="expected 0 to 1"):
        RowView.of_loader(loader, 2)


def test_rows_that_fill_no_batch_are_lost_in_a_run(stores: list[Store]) -> None:
    loader = Loader(stores[0].rows(16), batch_size=5)
    assert loader.left_over_rows
    view = RowView.of_loader(loader)
    assert view.rows == 5 * len(loader)
    assert [(lost.what, lost.count) for lost in view.lost if lost.unit == "rows"] == [
        ("left-over rows", loader.left_over_rows)
    ]


def test_stages_that_differ_are_exported_one_at_a_time(stores: list[Store]) -> None:
    rows = stores[0].rows(16)
    loader = Loader([Stage(rows, tokens=160), Stage(stores[1].rows(8))], batch_size=2)
    with pytest.raises(RecipeError, match="have different batches"):
        RowView.of_loader(loader)
    assert RowView.of_loader(loader, 1).seq_len == 8


def test_what_is_lost_is_counted(stores: list[Store]) -> None:
    store = stores[0]
    tail = store.manifest.tokens % 16
    assert tail, "the store must have a tail for this"
    view = RowView.of_store(store, seq_len=16, min_tail_fraction=1.0)
    assert [(lost.count, lost.unit) for lost in view.lost] == [(tail, "tokens")]
    cut = RowView.of_store(store, seq_len=8, packing="pad")
    assert sum(lost.count for lost in cut.lost) == store.manifest.tokens - cut.tokens > 0
    assert cut.documents == store.manifest.documents


def test_rows_that_are_not_there(stores: list[Store]) -> None:
    view = RowView.of_store(stores[0], seq_len=16)
    with pytest.raises(IndexError, match="rows 0 to"):
        view.read(0, view.rows + 1)
    assert view.read(3, 3, ["tokens"])["tokens"].shape == (0, 16)
    refused: list[dict[str, Any]] = [{"epochs": 0}, {"batch_size": 0}]
    for wrong in refused:
        with pytest.raises(RecipeError, match="above 0"):
            RowView.of_store(stores[0], seq_len=16, **wrong)


def test_sources_that_pad_differently_are_refused(stores: list[Store]) -> None:
    mixture = Mixture([(stores[0].rows(16, pad_id=5), 1), (stores[1].rows(16), 1)])
    with pytest.raises(RecipeError, match="pad with 0 and 5"):
        RowView.of_loader(Loader(mixture, batch_size=2))


def test_a_fingerprint_for_each_order(stores: list[Store], tmp_path: Path) -> None:
    choices: list[dict[str, Any]] = [{}, {"seed": 0}, {"seed": 1}, {"epochs": 2}, {"batch_size": 3}]
    choices.append({"packing": "pad"})
    made = [RowView.of_store(stores[0], seq_len=16, **chosen).fingerprint for chosen in choices]
    assert len(set(made)) == len(made)
    assert made[1] == RowView.of_store(stores[0], seq_len=16, seed=0).fingerprint


LENGTH = 16


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 300, longest=30, seed=3)
    folder = tmp_path_factory.mktemp("stores") / "store"
    return make_store(folder, documents, vocab_size=300, eod_id=0, shards=2, val=(3, 20, 21, 50))


def write(store: Store, name: str, out: Path, split: str | None = None, seq_len: int = LENGTH) -> Exported:
    choice = ExportChoice(seq_len=seq_len, packing="concat", seed=4, split=split)
    return run_export(store.path, to=name, out=out, choice=choice, workers=0)


def test_a_split_too_small_for_a_row_is_reported(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", [range(2, 90), [5, 6], [7]] * 3, vocab_size=300, eod_id=0, val=(1, 2))
    done = write(store, "litdata", tmp_path / "out", seq_len=32)
    assert done.folders == () and (tmp_path / "out" / "index.json").is_file()
    (lost,) = [lost for lost in done.lost if lost.what == "split val"]
    assert lost.count == 2 and "no row of 32" in lost.why


def test_baked_rows_are_opened_split_by_split(store: Store, tmp_path: Path) -> None:
    write(store, "baked", out := tmp_path / "out")
    for split in ("train", "val"):
        assert len(BakedRows(out / split)) == len(store.rows(LENGTH, split=split))
    with pytest.raises(InputError, match="holds several splits"):
        BakedRows(out)
