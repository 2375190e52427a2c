"""Reading a store: every way to ask for a document, by number, id and place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.stores import EOD, build_store

import packline
from packline.errors import CorruptStore, StoreError, StoreNotFound
from packline.facade import Store
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import document_number, provenance_of, shard_labels
from packline.testing import make_store


@pytest.fixture(scope="module")
def right(built: Store) -> list[np.ndarray]:
    """All documents, cut out of the files by hand."""
    documents: list[np.ndarray] = []
    for shard in built.manifest.shards:
        tokens = np.fromfile(built.path / f"{shard.name}.bin", "<u2")
        ends = np.flatnonzero(tokens == built.eod_id) + 1
        documents += np.split(tokens, ends)[:-1]
    return documents


def test_any_integer_finds_its_document(built: Store, right: list[np.ndarray]) -> None:
    count = len(right)
    for index in (0, 1, count - 1, -1, -count, np.int64(3), np.uint8(4), np.int32(-2)):
        assert np.array_equal(built.documents[index], right[index])
        assert built.provenance(index).tokens == len(right[index])


def test_slices(built: Store, right: list[np.ndarray]) -> None:
    for cut in (slice(2, 9), slice(None), slice(-5, None), slice(9, 2, -3), slice(3, 3)):
        found = built.documents[cut]
        assert [one.tolist() for one in found] == [one.tolist() for one in right[cut]]
        assert len(found) == len(right[cut])
    assert np.array_equal(built.documents[5:][2:][-1], right[-1])


def test_other_numbers_and_types_are_refused(built: Store) -> None:
    for number in (10**6, -(10**6)):
        with pytest.raises(IndexError):
            built.documents[number]
        with pytest.raises(IndexError):
            built.provenance(number)
    with pytest.raises(IndexError):
        built.documents[2:5][3]
    for index in (1.0, "1", None):
        with pytest.raises(TypeError):
            built.documents[index]  # type: ignore[call-overload]


def test_a_document_cannot_be_written_to(built: Store) -> None:
    document = built.documents[0]
    assert type(document) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        document[0] = 1


def test_opening_refuses_what_disagrees(damaged: Path) -> None:
    shard = packline.open(damaged).manifest.shards[0].name
    data = (damaged / f"{shard}.bin").read_bytes()
    (damaged / f"{shard}.bin").write_bytes(data[:-2])
    with pytest.raises(CorruptStore, match=rf"{shard}\.bin: expected .* found"):
        packline.open(damaged)
    (damaged / f"{shard}.bin").unlink()
    with pytest.raises(CorruptStore, match="cannot read"):
        packline.open(damaged)


def test_opening_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="does not exist"):
        packline.open(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFound, match="not a store"):
        packline.open(tmp_path)
    (tmp_path / ".packline").mkdir()
    with pytest.raises(StoreNotFound, match="has not finished") as caught:
        packline.open(tmp_path)
    assert "packline status" in caught.value.hint


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


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "store.md").read_text("utf-8")


def test_the_reader_has_the_documents_and_the_provenance_of_packline(
    tmp_path: Path,
    tokenizer_json: Path,
    documents: list[str],
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = ""
    for number, name in enumerate(("web", "books")):
        write_jsonl(tmp_path / f"{name}.jsonl", documents[number::2])
        sources += f'[[sources]]\nname = "{name}"\ninputs = ["{name}.jsonl"]\n'
    settings = f'tokenizer = "{tokenizer_json}"\neod = "{EOD}"\nval_fraction = 0.3\n'
    (tmp_path / "recipe.toml").write_text(settings + sources, "utf-8")
    store = packline.build(tmp_path / "recipe.toml", out=tmp_path / "store", workers=0)
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) <= 60 and "packline" not in program
    names: dict[str, Any] = {}
    exec(compile(program, "store.md", "exec"), names)
    plain = names["store"]
    assert len(plain.shards) == 4 and len(plain) == len(store.documents)
    for number, tokens in enumerate(store.documents):
        assert np.array_equal(plain.tokens(number), tokens)
    for number in (0, len(plain) // 2, len(plain) - 1):
        found, wanted = plain.provenance(number), store.provenance(number)
        for name in ("source", "file", "position", "hash"):
            assert found[name] == getattr(wanted, name)
