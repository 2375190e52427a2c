"""Selections: rows are those of a store of the selected documents alone, and every filter is a plain loop."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.columned import WHERES, Document, Shape, shapes

from packline.errors import CorruptStore, InputError, RecipeError, StoreError
from packline.facade import Store
from packline.packing import cache, exclusions
from packline.packing.exclusions import SCHEMA, write_list
from packline.packing.options import OVERFLOWS, PACKINGS, DocumentFilter, RowOptions
from packline.packing.rows import Rows
from packline.packing.selection import Selection
from packline.testing import make_store
from packline.where.conditions import parse_where, record_test


def selected(shape: Shape, store: Store, where: str | None, unique: bool, excluded: list[int]) -> list[int]:
    """Numbers of the selected documents, by loops over lists and a set."""
    chosen, seen = [], set()
    for number, one in enumerate(shape.documents()):
        origin = store.provenance(number)
        record = one.record | {
            "source": origin.source,
            "file": origin.file,
            "id": origin.id,
            "label": origin.label,
        }
        if (where is not None and not record_test(parse_where(where))(record)) or number in excluded:
            continue
        text = text_of(one)
        if not unique or text not in seen:
            chosen.append(number)
        seen.add(text)
    return chosen


def text_of(document: Document) -> tuple[int, int]:
    return document.record["hash"], document.record["text_bytes"]


def documents_of(selection: Selection) -> list[int]:
    return selection.documents(np.arange(len(selection))).tolist()


CHOICES = st.tuples(st.none() | WHERES, st.booleans(), st.sets(st.integers(0, 31), max_size=4))


@settings(max_examples=15)
@given(
    shapes(), CHOICES, st.integers(2, 9), st.sampled_from(PACKINGS), st.none() | st.integers(0, 9), st.data()
)
def test_rows_are_those_of_a_store_of_the_selected_documents(
    shape: Shape,
    choice: tuple[str | None, bool, set[int]],
    seq_len: int,
    packing: Any,
    seed: int | None,
    data: st.DataObject,
) -> None:
    where, unique, numbers = choice
    overflow = data.draw(st.sampled_from(OVERFLOWS)) if packing == "pad" else "truncate"
    excluded = sorted(number for number in numbers if number < len(shape.documents()))
    with shape.opened() as store:
        chosen: dict[str, Any] = {"where": where, "unique": unique, "shuffle_documents": seed}
        if excluded:
            path = store.path.with_name("list.parquet")
            write_list(path, [(store, np.array(excluded), "why")])
            chosen["exclude"] = str(path)
        expected = selected(shape, store, where, unique, excluded)
        options = RowOptions(packing=packing, overflow=overflow, **chosen)
        lengths = [shape.documents()[number].length for number in expected]
        alone = make_store(store.path.with_name("alone"), [lengths]) if expected else None
        try:
            other = (
                None
                if alone is None
                else Rows(
                    alone, seq_len, RowOptions(packing=packing, overflow=overflow, shuffle_documents=seed)
                )
            )
        except (StoreError, RecipeError):
            other = None
        try:
            rows = Rows(store, seq_len, options)
        except (StoreError, RecipeError):
            assert other is None or len(other) == 0
            return
        if other is None:
            assert seq_len > sum(lengths)  # shorter than the whole store, so accepted there alone
            return
        assert len(rows) == len(other) and rows.selection.tokens == sum(lengths)
        assert rows.counts == other.counts
        every = np.arange(len(rows))
        one, two = rows.spans(every), other.spans(every)
        assert one.offsets.tolist() == two.offsets.tolist() and one.starts.tolist() == two.starts.tolist()
        assert one.lengths.tolist() == two.lengths.tolist()
        assert one.documents.tolist() == np.array(expected)[two.documents].tolist()
        tokens = rows.read(every, ["tokens"])["tokens"]
        for row in range(len(rows)):
            pieces = [
                store.documents[document][start : start + length]
                for document, start, length in rows[row].spans
            ]
            whole = np.concatenate(pieces)
            assert tokens[row, : len(whole)].tolist() == whole.tolist()
        lost = [number for number in range(len(shape.documents())) if number not in expected]
        assert sum(one.documents for one in rows.left_out) == len(lost)
        assert sum(one.tokens for one in rows.left_out) == sum(
            shape.documents()[number].length for number in lost
        )
        for number in lost[:3]:
            assert rows.rows_of(number).tolist() == []


@settings(max_examples=10)
@given(shapes(), shapes(), shapes(), WHERES)
def test_texts_of_other_stores_are_left_out(shape: Shape, monday: Shape, tuesday: Shape, where: str) -> None:
    with shape.opened() as store, monday.opened() as first, tuesday.opened() as second:
        known = {
            (one.record["hash"], one.record["text_bytes"]) for one in monday.documents() + tuesday.documents()
        }
        expected = [
            number
            for number in selected(shape, store, where, True, [])
            if tuple(shape.documents()[number].record[name] for name in ("hash", "text_bytes")) not in known
        ]
        choice = DocumentFilter(where=where, unique=(str(second.path), str(first.path)))
        if not expected:
            with pytest.raises(StoreError, match="no document is left"):
                Selection(store, choice)
            return
        assert documents_of(Selection(store, choice)) == expected


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), max_size=60), st.integers(0, 3))
def test_repeated_texts_are_those_of_a_set(texts: list[tuple[int, int]], spread: int) -> None:
    hashes = np.array([number << (16 * spread) for number, _ in texts], np.uint64)
    sizes = np.array([size for _, size in texts], np.int64)
    repeated, heads = exclusions._repeated(hashes, sizes)
    seen: dict[tuple[int, int], int] = {}
    expected = {}
    for place, text in enumerate(texts):
        if seen.setdefault(text, place) != place:
            expected[place] = seen[text]
    assert dict(zip(repeated.tolist(), heads.tolist(), strict=True)) == expected


def many(count: int, seed: int = 0) -> Shape:
    """A store of a few shards with many equal texts."""
    draw = random.Random(seed)
    found = [
        Document(
            draw.randint(1, 9), draw.randint(0, count // 3), draw.randint(0, 9) / 2, draw.choice("ab"), None
        )
        for _ in range(count)
    ]
    return Shape(tuple((place % 2, tuple(found[place::4])) for place in range(4)))


@pytest.mark.parametrize("documents", [7, 100])
def test_passes_over_ranges_of_hashes_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: int
) -> None:
    shape = many(300)
    store = shape.write(tmp_path / "store")
    whole = documents_of(Selection(store, DocumentFilter(unique=True)))
    assert whole == selected(shape, store, None, True, [])
    monkeypatch.setattr(exclusions, "PASS_DOCUMENTS", documents)
    assert documents_of(Selection(store, DocumentFilter(unique=True))) == whole


def test_each_document_is_counted_under_the_first_filter_that_fails(tmp_path: Path) -> None:
    shape = Shape(
        (
            (0, (Document(2, 1, 3.0, "de", True), Document(9, 1, 3.0, "de", True))),
            (
                1,
                (
                    Document(2, 2, 1.0, "fr", True),
                    Document(2, 3, 3.0, "fr", None),
                    Document(3, 4, 3.0, "de", True),
                ),
            ),
            (2, (Document(3, 4, None, None, None),)),
        )
    )
    store = shape.write(tmp_path / "store")
    write_list(tmp_path / "gone.parquet", [(store, np.array([3, 4]), "why")])
    choice = DocumentFilter(
        max_tokens=8, where="lang == 'de' and score > 2", unique=True, exclude=str(tmp_path / "gone.parquet")
    )
    selection = Selection(store, choice)
    assert documents_of(selection) == [0] and selection.tokens == 2
    assert [(one.by, one.documents, one.tokens) for one in selection.left_out] == [
        ("longer than max_tokens 8", 1, 9),
        ("where lang == 'de'", 3, 7),
        ("exclude gone.parquet", 1, 3),
    ]
    with pytest.raises(StoreError, match="6 where score > 9"):
        Selection(store, DocumentFilter(where="score > 9"))
    equal = Selection(store, DocumentFilter(unique=True)).left_out
    assert [(one.by, one.documents) for one in equal] == [("duplicates", 2)]


def test_a_selection_is_kept_as_a_plan_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LARGE", 16)
    store = many(200).write(tmp_path / "store")
    other = many(50, 1).write(tmp_path / "monday")
    path = tmp_path / "gone.parquet"
    write_list(path, [(store, np.array([3, 40]), "why")])
    choice = DocumentFilter(where="score > 1", unique=(str(other.path),), exclude=str(path))
    first = Selection(store, choice)
    plans = sorted((store.path / "plans").iterdir())
    assert len(plans) == 1

    def never(*args: object) -> Any:
        raise AssertionError("made again")

    with monkeypatch.context() as patch:
        patch.setattr(Selection, "_filter", never)
        again = Selection(Store(store.path), DocumentFilter(**{**as_dict(choice), "where": "1.0 < score"}))
        assert documents_of(again) == documents_of(first) and again.left_out == first.left_out
        assert again.fingerprint == first.fingerprint
    write_list(path, [(store, np.array([3]), "why")])
    changed = Selection(store, choice)
    assert changed.fingerprint != first.fingerprint and len(list((store.path / "plans").iterdir())) == 2
    moved = path.rename(tmp_path / "elsewhere.parquet")
    assert Selection(store, DocumentFilter(**{**as_dict(choice), "exclude": str(moved)})).fingerprint == (
        changed.fingerprint
    )
    for plan in (store.path / "plans").iterdir():
        table = plan / "plan.bin"
        table.write_bytes(table.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(StoreError, match="damaged"):
        Selection(store, DocumentFilter(**{**as_dict(choice), "exclude": str(moved)}))


def as_dict(choice: DocumentFilter) -> dict[str, Any]:
    return {name: getattr(choice, name) for name in choice.__struct_fields__}


@settings(max_examples=10)
@given(shapes(), st.sets(st.integers(0, 31), min_size=1), st.data())
def test_a_list_is_read_as_it_was_written(shape: Shape, numbers: set[int], data: st.DataObject) -> None:
    chosen = sorted(number % len(shape.documents()) for number in numbers)
    chosen = sorted(set(chosen))
    with shape.opened() as store:
        path = store.path.with_name("list.parquet")
        assert write_list(path, [(store, np.array(chosen), [f"r{one}" for one in chosen])]) == len(chosen)
        table = pq.read_table(path)
        assert table.schema.equals(SCHEMA)
        for number, row in zip(chosen, table.to_pylist(), strict=True):
            origin = store.provenance(number)
            assert (row["source"], row["file"], row["position"]) == (
                origin.source,
                origin.file,
                origin.position,
            )
            assert (row["hash"], row["id"], row["reason"]) == (origin.hash, origin.id, f"r{number}")
        shuffled = table.take(data.draw(st.permutations(range(len(chosen)))))
        pq.write_table(pa.concat_tables([shuffled, shuffled]), path)
        left = [number for number in range(len(shape.documents())) if number not in chosen]
        if left:
            assert documents_of(Selection(store, DocumentFilter(exclude=str(path)))) == left


def test_lists_that_do_not_fit_are_refused_or_remarked(tmp_path: Path) -> None:
    store = many(40).write(tmp_path / "store")
    path = tmp_path / "list.parquet"

    def refused(table: pa.Table) -> str:
        pq.write_table(table, path)
        with pytest.raises((InputError, RecipeError)) as caught:
            Selection(store, DocumentFilter(exclude=str(path)))
        assert caught.value.hint
        return caught.value.message

    write_list(path, [(store, np.array([1, 2, 11]), "why")])
    table = pq.read_table(path)
    stale = table.set_column(3, SCHEMA.field("hash"), pa.array([table["hash"][0].as_py(), 5, 6], pa.uint64()))
    place = store.provenance(2)
    assert f"list.parquet is stale: {place.source}, {place.file} at {place.position}" in refused(stale)
    elsewhere = table.set_column(0, SCHEMA.field("source"), pa.array(["x", "y", "z"]))
    assert "has none of its 3 documents" in refused(elsewhere)
    assert "expected the columns" in refused(table.drop_columns(["hash"]))
    with pytest.raises(InputError, match="cannot read the list"):
        Selection(store, DocumentFilter(exclude=str(tmp_path / "none.parquet")))
    path.write_bytes(b"text")
    with pytest.raises(InputError, match="not a list of documents"):
        Selection(store, DocumentFilter(exclude=str(path)))
    mixed = table.set_column(1, SCHEMA.field("file"), pa.array([*table["file"].to_pylist()[:2], "other"]))
    pq.write_table(mixed, path)
    selection = Selection(store, DocumentFilter(exclude=str(path)))
    assert len(selection) == 38 and "1 of its 3 documents are not in" in selection.notes[0]
    nulls = table.set_column(3, SCHEMA.field("hash"), pa.nulls(3, pa.uint64()))  # of an import: places alone
    pq.write_table(nulls, path)
    assert len(Selection(store, DocumentFilter(exclude=str(path)))) == 37


def test_columns_that_no_source_has_are_refused_with_the_one_meant(tmp_path: Path) -> None:
    store = many(12).write(tmp_path / "store")
    with pytest.raises(RecipeError, match="has no column 'scor'") as caught:
        Selection(store, DocumentFilter(where="scor > 3"))
    assert "did you mean 'score'" in caught.value.hint and "columns = " in caught.value.hint
    with pytest.raises(RecipeError, match="column lang is string: expected numbers"):
        Selection(store, DocumentFilter(where="lang > 3"))


def test_damaged_columns_are_refused_with_their_file(tmp_path: Path) -> None:
    store = many(60).write(tmp_path / "store")
    path = store.path / f"{store.shards[2].entry.name}.docs.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    write_list(tmp_path / "list.parquet", [(store, np.array([1]), "why")])
    exclude = str(tmp_path / "list.parquet")
    for given_one in ({"where": "score > 1"}, {"unique": True}, {"exclude": exclude}):
        with pytest.raises(CorruptStore, match=path.name):
            Selection(Store(store.path), DocumentFilter(**given_one))


def test_unique_needs_the_hashes_of_texts(tmp_path: Path) -> None:
    store = many(12).write(tmp_path / "store")
    from tests.store.stores import relist

    path = store.shards[1].path("docs.parquet")
    table = pq.read_table(path)
    place = table.column_names.index("hash")
    nulls = table.set_column(place, table.schema.field("hash"), pa.nulls(len(table), pa.uint64()))
    pq.write_table(nulls, path)
    with pytest.raises(RecipeError, match="without the hash"):
        Selection(relist(store.path), DocumentFilter(unique=True))
