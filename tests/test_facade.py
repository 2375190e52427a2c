"""The public store: every option reaches the rows, and verification is that of the folder."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import packline
from packline import testing
from packline.errors import PacklineError
from packline.packing.options import RowOptions
from packline.packing.rows import Rows
from packline.store.reader import StoreReader
from packline.store.verify import verify
from packline.testing import StoreShape, make_store


@settings(max_examples=15)
@given(testing.store_shapes(), testing.row_options())
def test_rows_of_the_store_are_the_rows_of_these_options(shape: StoreShape, options: RowOptions) -> None:
    with shape.opened() as store:
        chosen = {name: getattr(options, name) for name in RowOptions.__struct_fields__}
        try:
            expected = Rows(StoreReader(store.path), 8, options)
        except PacklineError as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                store.rows(8, **chosen)
            return
        found = store.rows(8, **chosen)
        assert found.options == options and found.fingerprint == expected.fingerprint
        assert len(found) == len(expected)
        assert all((found[n].tokens == expected[n].tokens).all() for n in range(len(expected)))


def test_lists_of_labels_and_sources_are_sets(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[9, 9], [9], [9]], labels=["web", "code", None])
    for names in (["web", "code"], ("code", "web", "web")):
        assert store.rows(4, labels=names).fingerprint == store.rows(4, labels=("web", "code")).fingerprint
        made = [f"made-{name}" for name in names]
        assert (
            store.rows(4, sources=made).fingerprint
            == store.rows(4, sources=("made-web", "made-code")).fingerprint
        )
    assert store.rows(4, labels=["code"]).fingerprint == store.rows(4, labels="code").fingerprint
    assert (
        sum(len(store.rows(3, labels=name)) for name in ("web", "code"))
        == len(store.rows(3, labels=["web", "code"]))
        == 9
    )


@pytest.mark.parametrize("deep", [False, True])
def test_a_store_is_verified_from_its_files_as_they_are_now(tmp_path: Path, deep: bool) -> None:
    store = make_store(tmp_path / "store", [[3, 4]])
    assert store.verify(deep=deep) == verify(store.path, deep=deep)
    assert (store.verify(deep=deep).deep is not None) == deep
    (store.path / "train-made-000000.idx").unlink()
    (problem,) = [one for one in store.verify(deep=deep).problems if one.file.endswith(".idx")]
    assert problem.what == "the file is missing"


@settings(max_examples=15)
@given(testing.store_shapes(), testing.row_options(), st.data())
def test_a_slice_of_rows_is_the_list_of_these_rows(
    shape: StoreShape, options: RowOptions, data: st.DataObject
) -> None:
    with shape.opened() as store:
        try:
            rows = Rows(store, 8, options)
        except PacklineError:
            return
        chosen, again = data.draw(st.slices(len(rows))), data.draw(st.slices(len(rows)))
        found, numbers = rows[chosen], list(range(len(rows)))[chosen]
        assert [row.index for row in found] == numbers and len(found) == len(numbers)
        assert [row.index for row in found[again]] == numbers[again]
        read = found.read()
        assert read["tokens"].shape == (len(numbers), 8)
        for place, number in enumerate(numbers):
            assert (read["targets"][place] == rows[number].targets).all()
            assert (rows.read(number)["tokens"] == read["tokens"][place : place + 1]).all()
        with pytest.raises(IndexError, match="row"):
            found[len(numbers)]
        assert repr(found).startswith(f"<{len(numbers):,} of <{len(rows):,} rows of 8 tokens")


@settings(max_examples=15)
@given(testing.store_shapes())
def test_the_store_tells_its_sources_from_its_documents(shape: StoreShape) -> None:
    with shape.opened() as reader:
        store = packline.open(reader.path)
        all_of = [store.provenance(number) for number in range(len(store))]
        assert store and len(store) == len(store.documents) == len(all_of)
        assert [one.tolist() for one in store] == [one.tolist() for one in store.documents]
        some = store.documents[[len(store) - 1, 0, -1]]
        assert [one.tolist() for one in some] == [store.documents[n].tolist() for n in (-1, 0, -1)]
        assert list(store.sources) == list(store.manifest.sources)
        for name, found in store.sources.items():
            own = [one for one in all_of if one.source == name]
            assert (found.documents, found.tokens) == (len(own), sum(one.tokens for one in own))
            assert found.splits == dict(Counter(one.split for one in own))
            assert {one.label for one in own} <= {found.label}
        labels = {store.sources[one.source].label for one in all_of}
        assert set(store.labels) >= {label for label in labels if label is not None}


def test_values_show_what_they_are(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three four")
    store = packline.build(tmp_path / "a.txt", tokenizer_json, out=tmp_path / "store", workers=0)
    text = store.text(0)
    assert text == "one two three four" and store.decode(store.documents[0][:-1]) == text
    row = store.rows(len(store.documents[0]))[0]
    assert row.text == text + store.manifest.tokenizer.eod
    padded = store.rows(len(store.documents[0]) + 0, packing="pad")[0]
    assert padded.text == row.text
    assert repr(store.shards) == f"<1 shards of {store.path}>"
    (shard,) = store.shards
    name, tokens = shard.entry.name, len(store.documents[0])
    assert repr(shard) == f"<Shard {name}: 1 documents, {tokens} tokens, train>"
