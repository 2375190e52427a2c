"""A store on the hub is read where it is: by ranges, at one commit, through the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.hub.loopback import LoopbackHub
from tests.hub.test_push import PLACE

import packline
from packline.errors import StoreError
from packline.hub.push import push
from packline.hub.repository import repository_paths
from packline.testing import make_store


def documents(store: Path) -> list[list[int]]:
    return [one.tolist() for one in packline.open(store).documents]


def batches(store: packline.Store) -> list[np.ndarray]:
    loader = packline.Loader(store.rows(seq_len=32), batch_size=4, seed=1)
    return [batch["tokens"] for batch in loader]


def test_a_store_on_the_hub_reads_like_a_local_one(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    pushed = push(store, PLACE)
    there = packline.open(PLACE, cache=tmp_path / "cache")
    assert str(there.place) == f"{PLACE}@{pushed.revision}"
    assert [one.tolist() for one in there.documents] == documents(store)
    assert there.provenance(3) == packline.open(store).provenance(3)
    for found, expected in zip(batches(there), batches(packline.open(store)), strict=True):
        assert np.array_equal(found, expected)
    assert there.verify().ok


def test_a_pinned_store_stays_the_same(hub: LoopbackHub, store: Path, tmp_path: Path) -> None:
    first = push(store, PLACE)
    push(make_store(tmp_path / "other", [[2, 2]]).path, PLACE)
    there = packline.open(f"{PLACE}@{first.revision}", cache=False)
    assert len(there.documents) == len(documents(store))
    assert len(packline.open(PLACE, cache=False).documents) == 2


def test_numbered_folders_are_found(hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packline.hub.repository.repository_paths", lambda names: repository_paths(names, 3))
    push(store, PLACE)
    there = packline.open(PLACE, cache=False)
    assert [one.tolist() for one in there.documents] == documents(store)


def test_a_flipped_byte_is_fetched_again(
    hub: LoopbackHub, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    push(store, PLACE)
    hub.fail("^GET /lfs/", "flip", skip=2)
    there = packline.open(PLACE, cache=False)
    assert [one.tolist() for one in there.documents] == documents(store)


def test_what_is_absent_is_an_error(hub: LoopbackHub, store: Path) -> None:
    with pytest.raises(StoreError, match="no such repository"):
        packline.open("hf://datasets/org/absent", cache=False)
    push(store, f"{PLACE}@next")
    with pytest.raises(StoreError):
        packline.open(PLACE, cache=False)
    with pytest.raises(StoreError, match=f"{PLACE}@next has a query") as caught:
        packline.open(f"{PLACE}@next?key=hf_hidden", cache=False)
    assert "hf_hidden" not in str(caught.value) + caught.value.hint


def test_the_hub_is_no_place_of_results(hub: LoopbackHub, store: Path) -> None:
    from packline.jobs.folder import StoreFolder
    from packline.storage.places import open_storage

    with pytest.raises(StoreError, match="cannot write") as caught:
        open_storage(PLACE).put_new("a", b"a")
    assert "packline push" in caught.value.hint
    with pytest.raises(StoreError, match="cannot write"):
        StoreFolder(PLACE)
