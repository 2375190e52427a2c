"""Which source and label each shard is of: told by receipts as provenance tells it, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from packline.errors import CorruptStore
from packline.facade import Store
from packline.fingerprint import hash_bytes
from packline.store.files import FileEntry
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


def test_of_one_source_no_receipt_is_read(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[3], [4]], labels=["a", "a"])
    for path in (store.path / "receipts").iterdir():
        path.unlink()
    assert [(one.number, one.source, one.label) for one in shard_labels(store)] == [(0, "made-a", "a")] * 2


@pytest.mark.parametrize("number", [-1, 3])
def test_a_source_that_the_recipe_has_not(store: Store, number: int) -> None:
    path = store.path / "receipts" / "000002.json"
    data = json.dumps(json.loads(path.read_text("utf-8")) | {"source": number}).encode()
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=r"000002.json: expected [0-9]+ bytes, found"):
        shard_labels(store)
    # As somebody writes it who also writes a checksum.
    manifest = store.manifest
    receipts = tuple(
        FileEntry(one.name, len(data), hash_bytes(data)) if one.name.endswith("2.json") else one
        for one in manifest.receipts
    )
    store.manifest = msgspec.structs.replace(manifest, receipts=receipts)
    with pytest.raises(
        CorruptStore, match=f"000002.json: expected the number of one of 3 sources, found {number}"
    ):
        shard_labels(store)
    with pytest.raises(CorruptStore, match=r"000002.json"):
        group_shards(store)
