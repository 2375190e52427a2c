"""Which source and label each shard is of: by the table of shards, as in provenance."""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.facade import Store
from packline.store.reader import shard_labels
from packline.testing import make_store

LABELS = ["b", None, "a", "b", None]
SPLITS = ["train", "val", "train", "train", "train"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Sources made-b, made and made-a, in this order, with shards of both splits."""
    return make_store(tmp_path / "store", [[3, 4], [5], [6, 2, 9], [7], [8, 1]], labels=LABELS, splits=SPLITS)


def test_they_are_what_provenance_says(store: Store) -> None:
    found = shard_labels(store)
    told = [shard.provenance(0) for shard in store.shards]
    assert [(one.source, one.label) for one in found] == [(one.source, one.label) for one in told]
    names = [source.name for source in store.manifest.recipe.sources]
    assert names == ["made-b", "made", "made-a"]
    assert [names[one.number] for one in found] == [one.source for one in found]


def test_no_receipt_is_read(store: Store) -> None:
    before = shard_labels(store)
    for path in (store.path / "receipts").iterdir():
        path.unlink()
    assert shard_labels(Store(store.path)) == before
