"""Finding documents by id or place: always the ones that provenance names, or an error with what is near."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.store.stores import build_store

from packline.errors import StoreError
from packline.facade import Store
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import document_number, provenance_of, shard_labels
from packline.testing import make_store


def test_every_document_is_found_by_its_id_and_by_its_place(built: Store) -> None:
    for document in range(0, len(built.documents), 11):
        where = built.provenance(document)
        assert where.id is not None
        assert find_by_id(built, where.id) == [document]
        assert find_by_place(built, where.file, where.position) == [document]


def test_provenance_of_many_is_that_of_each(built: Store) -> None:
    count = len(built.documents)
    wanted = np.random.default_rng(3).integers(0, count, 200)
    assert provenance_of(built, wanted) == [built.provenance(number) for number in wanted]
    fresh = Store(built.path)
    assert provenance_of(fresh, np.arange(count)) == [built.provenance(number) for number in range(count)]
    assert not any("table" in vars(shard) for shard in fresh.shards)  # nothing is kept
    assert provenance_of(built, np.empty(0, np.int64)) == []


def test_an_id_that_repeats_names_all_its_documents(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    records = [{"text": f"text {n}", "id": f"i{n % 3}"} for n in range(9)] + [{"text": "no id"}]
    path = write_jsonl(tmp_path / "in.jsonl", records)
    store = build_store(path, tokenizer_json, tmp_path / "store", val_fraction=0.4)
    expected = [n for n in range(len(store.documents)) if store.provenance(n).id == "i1"]
    assert find_by_id(store, "i1") == expected
    assert len(expected) == 3


def test_the_same_name_in_two_sources_gives_both_and_a_source_chooses(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    for name in ("one", "two"):
        write_jsonl(tmp_path / name / "a.jsonl", [f"{name} {n}" for n in range(3)])
    (tmp_path / "recipe.toml").write_text(
        f'tokenizer = "{tokenizer_json}"\n'
        + "".join(f'[[sources]]\nname = "{name}"\ninputs = ["{name}"]\n' for name in ("one", "two")),
        "utf-8",
    )
    import packline

    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    both = find_by_place(store, "a.jsonl", 0)
    assert sorted(store.provenance(number).source for number in both) == ["one", "two"]
    with pytest.raises(StoreError, match=r"no document of 'b/a\.jsonl'"):
        find_by_place(store, "b/a.jsonl", 0)


def test_what_is_not_there_is_named_with_what_is(built: Store) -> None:
    with pytest.raises(StoreError, match=r"no document of 'd\.jsonl' begins at 0") as caught:
        find_by_place(built, "d.jsonl", 0)
    assert "'a.jsonl'" in caught.value.hint
    with pytest.raises(StoreError, match=r"no document of 'a\.jsonl' begins at 1") as caught:
        find_by_place(built, "a.jsonl", 1)
    assert "a position is a byte offset" in caught.value.hint
    with pytest.raises(StoreError, match="no document has the id 'D1'") as caught:
        find_by_id(built, "D1")
    assert "'d1" in caught.value.hint


def test_a_number_outside_the_store_is_an_error(built: Store) -> None:
    count = len(built.documents)
    assert (document_number(built, 0), document_number(built, -1)) == (0, count - 1)
    for number in (count, -count - 1):
        with pytest.raises(StoreError, match=f"expected 0 to {count - 1:,}"):
            document_number(built, number)


def test_source_and_label_of_a_shard_are_those_of_its_documents_and_need_no_receipt(tmp_path: Path) -> None:
    labels = ["b", None, "a", "b", None]
    store = make_store(tmp_path / "store", [[3, 4], [5], [6, 2, 9], [7], [8, 1]], labels=labels)
    for path in (store.path / "receipts").iterdir():
        path.unlink()
    found = shard_labels(Store(store.path))
    told = [shard.provenance(0) for shard in store.shards]
    assert [(one.source, one.label) for one in found] == [(one.source, one.label) for one in told]
    names = [source.name for source in store.manifest.recipe.sources]
    assert names == ["made-b", "made", "made-a"]
    assert [names[one.number] for one in found] == [one.source for one in found]
