"""Choices of an export: every setting arrives, in one form, and applies to the right kind of source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.engines import files_of
from tests.formats.stores import make_store, random_documents

import packline
from packline.errors import RecipeError, StoreError, StoreNotFound
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.choice import document_view, is_store, make_choice, row_view
from packline.formats.export import ExportPlanned
from packline.packing.options import DocumentFilter, ExportChoice
from packline.testing import make_store as make_packed

names = st.lists(st.text("ab", max_size=2), min_size=1, max_size=4)
settings = st.fixed_dictionaries(
    {},
    optional={
        "split": st.sampled_from(["train", "val", None]),
        "labels": names,
        "sources": names.map(tuple) | st.text("ab", max_size=2),
        "min_tokens": st.none() | st.integers(0, 9),
        "boundary_loss": st.booleans(),
        "eod": st.text(max_size=2),
        "workers": st.integers(0, 3),
    },
)


@given(settings, st.randoms(use_true_random=False))
def test_every_setting_arrives_once_and_order_and_repetition_do_not_count(
    settings: dict[str, Any], random: Any
) -> None:
    choice, rest = make_choice(settings)
    assert rest == {name: settings[name] for name in ("eod", "workers") if name in settings}
    known = set(ExportChoice.__struct_fields__)
    for name in known:
        found, value = getattr(choice, name), settings.get(name)
        if name in ("labels", "sources") and value is not None:
            assert found == tuple(sorted({value} if isinstance(value, str) else set(value)))
        else:
            assert found == value
    assert msgspec.convert(msgspec.to_builtins(choice), ExportChoice) == choice  # as a worker receives it
    shuffled = list(settings.items())
    random.shuffle(shuffled)
    again = {name: [*value, *value] if isinstance(value, list) else value for name, value in shuffled}
    assert make_choice(again)[0] == choice


@pytest.mark.parametrize("wrong", [{"min_tokens": "many"}, {"labels": [1]}, {"boundary_loss": 2}])
def test_a_value_of_the_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=f"^{next(iter(wrong))}.* is .*: expected "):
        make_choice(wrong)


def test_settings_of_rows_are_refused_for_documents_and_those_of_runs_for_stores(tmp_path: Path) -> None:
    store = make_packed(tmp_path / "store", [[5, 1, 9]])
    path = str(store.path)
    for name in set(ExportChoice.__struct_fields__) - set(DocumentFilter.__struct_fields__):
        one = msgspec.structs.replace(ExportChoice(), **{name: 1})
        with pytest.raises(RecipeError, match=f"--{name.replace('_', '-')} is for rows"):
            document_view(path, "eod", one)
        if name not in ("stage", "keep_untrained"):
            with pytest.raises(RecipeError, match=f"--{name.replace('_', '-')} is set by the run file"):
                row_view("run.toml", one)
    assert document_view(path, "eod", ExportChoice(min_tokens=5)).documents == 2
    assert row_view(path, ExportChoice(seq_len=5, min_tokens=5)).rows
    for choice, words in ((ExportChoice(), "no row length"), (ExportChoice(seq_len=5, stage=0), "--stage")):
        with pytest.raises(RecipeError, match=words):
            row_view(path, choice)
    with pytest.raises(RecipeError, match="is a run file, and this format holds documents"):
        document_view("run.toml", "eod", ExportChoice())


def test_a_store_is_told_from_other_folders_and_from_files(tmp_path: Path) -> None:
    make_packed(tmp_path / "store", [[5]])
    assert is_store(tmp_path / "store", None) and not is_store(tmp_path / "store", "npy")
    assert not is_store(tmp_path, None)
    with pytest.raises(StoreNotFound, match="is a file, not the folder of a store"):
        document_view(str(tmp_path / "store" / "manifest.json"), "eod", ExportChoice())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    documents = random_documents(60, 300, longest=20, seed=2)
    return make_store(tmp_path_factory.mktemp("made") / "store", documents, vocab_size=300, eod_id=7)


def export(store: Store, name: str, out: Path, **settings: Any) -> tuple[dict[str, bytes], str]:
    """Files of an export, and its order in words."""
    events: list[Any] = []
    packline.export(store, out=out, to=name, seq_len=16, workers=0, on_event=events.append, **settings)
    (order,) = (event.order for event in events if isinstance(event, ExportPlanned))
    return files_of(out), order


def test_an_export_in_another_order_is_another_export(store: Store, tmp_path: Path) -> None:
    export(store, "trl", tmp_path / "rows")
    again = packline.export(store, out=tmp_path / "rows", to="trl", seq_len=16, seed=0, workers=0)
    assert again.nothing_to_do
    with pytest.raises(StoreError, match="seed"):
        export(store, "trl", tmp_path / "rows", in_order=True)


def test_blocks_need_no_seed_where_rows_are_shuffled(store: Store, tmp_path: Path) -> None:
    rows = packline.write_rows(store, out=tmp_path / "a", seq_len=16, order="blocks", block_rows=2, workers=0)
    assert isinstance(rows, BakedRows)
    with pytest.raises(RecipeError, match="no seed was given"):
        packline.write_rows(store, out=tmp_path / "b", seq_len=16, order="blocks", in_order=True, workers=0)
