"""Rows without a token in the loss: counted everywhere, and left out of exports unless they are wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.stores import make_store

import packline
from packline.errors import StoreError
from packline.facade import Store
from packline.formats.check import check_dataset
from packline.formats.export import Exported
from packline.formats.format import ROW_FORMATS
from packline.formats.row_view import RowView
from packline.packing.batch import FIELDS
from packline.packing.options import DocumentFilter
from packline.packing.row import untrained_rows
from packline.packing.selection import Selection
from packline.packing.stats import compare_packings

LENGTH = 10
REPLY = 3


def long_prompts(folder: Path, prompts: list[int], **more: Any) -> Store:
    """A store of conversations with prompts of these lengths, of which only a short reply is trained on."""
    documents = [[9] * (prompt + REPLY - 1) for prompt in prompts]  # and an end each
    loss = [[0] * prompt + [1] * REPLY for prompt in prompts]
    return make_store(folder, documents, vocab_size=300, eod_id=7, loss=loss, **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Rows of 10 tokens: 4 full rows of the prompt of 46, and more."""
    return long_prompts(tmp_path_factory.mktemp("made") / "store", [2, 46, 4, 5, 1])


def export(store: Store, name: str, out: Path, **more: Any) -> Exported:
    return packline.export(store, out=out, to=name, seq_len=LENGTH, packing="best_fit", workers=0, **more)


@pytest.mark.parametrize("name", ROW_FORMATS)
def test_rows_without_a_learned_token_are_left_out_and_the_ledger_balances(
    store: Store, tmp_path: Path, name: str
) -> None:
    rows = store.rows(LENGTH, packing="best_fit")
    learned = rows.read(range(len(rows)), ["loss_mask"])["loss_mask"].any(axis=1)
    assert (~learned).sum() == 4
    done = export(store, name, tmp_path / "rows")
    lost = {one.what: one.count for one in done.lost}
    if name in ("pt", "litdata"):  # a trainer learns every token of these
        assert "untrained rows" not in lost and done.rows == len(rows)
        return
    assert done.rows is not None and done.rows == learned.sum()
    assert done.rows + lost["untrained rows"] == len(rows)
    assert done.tokens + lost["untrained tokens"] == store.manifest.tokens
    assert done.documents == len(store)
    assert str(check_notes(tmp_path / "rows", name)).count("untrained rows: 4 rows") == 1
    every = export(store, name, tmp_path / "every", keep_untrained=True)
    assert every.rows == len(rows) and "untrained rows" not in {one.what for one in every.lost}
    (warning,) = every.warnings
    assert warning.startswith(f"4 of {len(rows)} rows are untrained: no token of theirs is in the loss")
    assert warning in check_notes(tmp_path / "every", name)


def check_notes(folder: Path, name: str) -> list[str]:
    report = check_dataset(folder, name)
    assert report.ok
    return report.notes


def test_trl_and_levanter_count_without_the_target_of_the_last_token(tmp_path: Path) -> None:
    store = make_store(
        tmp_path / "store", [[9] * 15, [8] * 9], vocab_size=300, eod_id=7,
        loss=[[0] * 10 + [1] + [0] * 5, [0] * 5 + [1] * 5],
    )  # fmt: skip
    labels: dict[bool, list[list[int]]] = {}
    for keep in (False, True):
        export(store, "trl", out := tmp_path / f"trl {keep}", keep_untrained=keep or None, in_order=True)
        with pa.memory_map(str(next(out.glob("*.arrow")))) as file:
            labels[keep] = pa.ipc.open_stream(file).read_all()["labels"].to_pylist()
    # The target of the last token of row 0 is the first token of the next one: in no label.
    assert [any(label != -100 for label in row[1:]) for row in labels[True]] == [False, True, False]
    assert labels[False] == labels[True][1:2]
    assert export(store, "baked", tmp_path / "baked").rows == 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.sampled_from(["concat", "best_fit", "pad"]),
    st.none() | st.integers(0, 3),
    st.integers(1, 2),
    st.data(),
)
def test_any_rows_are_those_of_the_view_without_the_untrained_ones(
    tmp_path_factory: pytest.TempPathFactory,
    prompts: list[int],
    packing: str,
    seed: int | None,
    epochs: int,
    data: st.DataObject,
) -> None:
    store = long_prompts(tmp_path_factory.mktemp("any") / "store", [10, *prompts])
    chosen: dict[str, Any] = {"seq_len": 5, "packing": packing, "seed": seed, "epochs": epochs}
    every, view = RowView.of_store(store, **chosen), RowView.of_store(store, **chosen)
    whole = every.read(0, every.rows, FIELDS)
    kept = (whole["targets"] != -100).any(axis=1)
    view.find_untrained()
    assert np.array_equal(view.untrained, np.flatnonzero(~kept))
    view.leave_out_untrained()
    assert (view.fingerprint == every.fingerprint) == bool(kept.all())
    start = data.draw(st.integers(0, view.rows))
    stop = data.draw(st.integers(start, view.rows))
    found = view.read(start, stop, FIELDS)
    for name in FIELDS:
        assert np.array_equal(found[name], whole[name][kept][start:stop]), name
    assert np.array_equal(view.lengths(start, stop), every.lengths(0, every.rows)[kept][start:stop])


def test_rows_of_single_tokens_are_untrained_without_a_mask_too(tmp_path: Path) -> None:
    documents = [[], [5] * 9, [6] * 10]  # and an end each
    store = make_store(tmp_path / "store", documents, vocab_size=300, eod_id=7)
    rows = store.rows(LENGTH, packing="pad", overflow="split")
    assert untrained_rows(rows).tolist() == [0, 3]
    done = packline.export(
        store, out=tmp_path / "a", to="npz", seq_len=LENGTH, packing="pad", overflow="split", workers=0
    )
    assert (done.rows, done.documents) == (2, 2)


def test_a_store_of_which_nothing_is_learned_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5] * 20], vocab_size=300, eod_id=7, loss=[[0] * 21])
    with pytest.raises(StoreError, match="all rows are untrained"):
        export(store, "trl", tmp_path / "rows")


def test_pack_counts_them_for_every_packing(store: Store) -> None:
    for price in compare_packings(Selection(store, DocumentFilter()), LENGTH):
        overflow = {} if price.overflow is None else {"overflow": price.overflow}
        rows = store.rows(LENGTH, packing=price.packing, **overflow)  # type: ignore[arg-type]
        learned = rows.read(range(len(rows)), ["loss_mask"])["loss_mask"].any(axis=1)
        assert price.untrained_rows == (~learned).sum(), price.name
