"""The public store: every option reaches the rows, and verification is that of the folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings

from packline import testing
from packline.errors import PacklineError
from packline.packing.packer import RowOptions
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
    store = make_store(tmp_path / "store", [[9, 9], [9], [9]], labels=["a", "b", None])
    for names in (["a", "b"], ("b", "a", "a")):
        assert store.rows(4, labels=names).fingerprint == store.rows(4, labels=("a", "b")).fingerprint
        made = [f"made-{name}" for name in names]
        assert (
            store.rows(4, sources=made).fingerprint == store.rows(4, sources=("made-a", "made-b")).fingerprint
        )
    assert store.rows(4, pad_id=5).options.pad_id == 5
    assert store.rows(4, min_tokens=3, max_tokens=20).options == RowOptions(min_tokens=3, max_tokens=20)
    assert store.rows(4, labels=["b"]).fingerprint == store.rows(4, labels="b").fingerprint
    assert sum(len(store.rows(3, labels=name)) for name in "ab") == len(store.rows(3, labels=["a", "b"])) == 9


@pytest.mark.parametrize("deep", [False, True])
def test_a_store_is_verified_from_its_files_as_they_are_now(tmp_path: Path, deep: bool) -> None:
    store = make_store(tmp_path / "store", [[3, 4]])
    assert store.verify(deep=deep) == verify(store.path, deep=deep)
    assert (store.verify(deep=deep).deep is not None) == deep
    (store.path / "train-made-000000.idx").unlink()
    (problem,) = [one for one in store.verify(deep=deep).problems if one.file.endswith(".idx")]
    assert problem.what == "the file is missing"
