"""`packline.testing`: what its strategies make is what packline accepts."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.counting import check_conservation

from packline import testing
from packline.errors import StoreError
from packline.packing.options import RowOptions
from packline.packing.rows import Rows


@settings(max_examples=20)
@given(testing.store_shapes())
def test_every_store_is_verified(shape: testing.StoreShape) -> None:
    with shape.opened() as store:
        report = store.verify()
        assert report.ok, report.problems
        lengths = [length for shard in shape.lengths for length in shard]
        assert [len(document) for document in store.documents] == lengths
        for number, length in enumerate(lengths):
            assert store.documents[number].tolist() == testing.document_tokens(
                number, length, store.manifest.tokenizer.vocab_size
            )


@settings(max_examples=20)
@given(testing.store_shapes(), testing.row_options(), st.integers(2, 12))
def test_rows_of_any_options_hold_each_token_once(
    shape: testing.StoreShape, options: RowOptions, seq_len: int
) -> None:
    with shape.opened() as store:
        seq_len = min(seq_len, store.manifest.tokens)
        if seq_len < 2:
            return
        try:
            rows = Rows(store, seq_len, options)
        except StoreError as error:  # all in a tail that is too short, or every document too long
            assert "no row" in str(error)
            return
        lengths = dict(enumerate(len(document) for document in store.documents))
        check_conservation(rows, lengths)


def test_a_store_has_the_splits_and_labels_that_it_was_given(tmp_path: Path) -> None:
    store = testing.make_store(
        tmp_path / "store", [[5], [4], [3]], splits=["train", "val", "test"], labels=["web", None, "web"]
    )
    assert [store.provenance(number).split for number in range(3)] == ["train", "val", "test"]
    assert [store.provenance(number).label for number in range(3)] == ["web", None, "web"]
    assert store.verify().ok
