"""Which source and label each shard is of: told by receipts as provenance tells it, or refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from packline.errors import CorruptStore
from packline.facade import Store
from packline.store.reader import shard_labels
from packline.testing import make_store
from packline.viewing.store_counts import group_shards

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


def test_no_receipt_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[3], [4]], labels=["a", "b"])
    for path in (store.path / "receipts").iterdir():
        path.unlink()
    assert [(one.number, one.source, one.label) for one in shard_labels(store)] == [
        (0, "made-a", "a"),
        (1, "made-b", "b"),
    ]


@pytest.mark.parametrize("name", ["train-000000", "train-other-000000", "train-made-a-0", "train"])
def test_a_shard_of_a_source_that_the_recipe_has_not(store: Store, name: str) -> None:
    manifest = store.manifest
    first = msgspec.structs.replace(manifest.shards[0], name=name)
    store.manifest = msgspec.structs.replace(manifest, shards=(first, *manifest.shards[1:]))
    with pytest.raises(CorruptStore, match=f"shard {name}: expected SPLIT-SOURCE-NUMBER"):
        shard_labels(store)
    with pytest.raises(CorruptStore, match=f"shard {name}: "):
        group_shards(store)
