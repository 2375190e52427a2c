"""Stores that must not be trained on: refused before the first batch, with what is wrong."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import packline
from packline.errors import CorruptStore, StoreError
from packline.facade import Store
from packline.testing import make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store", [[50, 60], [70, 20]])


def shard_file(store: Store, suffix: str) -> Path:
    return store.path / f"{store.manifest.shards[0].name}{suffix}"


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_truncated_shard_is_refused_on_opening(store: Store, suffix: str) -> None:
    path = shard_file(store, suffix)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptStore, match=f"{path.name}: expected [0-9,]+ bytes.*found"):
        packline.open(store.path)


def test_a_flipped_bit_in_a_shard_is_refused_where_checksums_are_asked_for(store: Store) -> None:
    path = shard_file(store, ".bin")
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStore, match=rf"is damaged: .*{path.name}"):
        packline.open(store.path, verify=True)


def test_a_sound_store_passes_its_checksums(store: Store) -> None:
    assert packline.open(store.path, verify=True).documents[0].shape == (50,)


def test_an_id_outside_of_the_vocabulary_does_not_reach_a_batch(store: Store) -> None:
    path = shard_file(store, ".bin")
    data = bytearray(path.read_bytes())
    data[10:12] = b"\xff\xff"
    path.write_bytes(data)
    rows = packline.open(store.path).rows(seq_len=40)
    with pytest.raises(CorruptStore, match=rf"token 5 of {path.name} is 65,535: expected an id from 0 to"):
        next(iter(packline.Loader(rows, batch_size=5, shuffle=False)))


def test_a_store_of_a_newer_format_is_refused(store: Store) -> None:
    path = store.path / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    manifest["format_version"] += 1
    path.write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(StoreError, match="of store format"):
        packline.open(store.path)


def test_an_empty_store_has_no_rows(tmp_path: Path) -> None:
    empty = make_store(tmp_path / "empty", [])
    with pytest.raises(StoreError):
        empty.rows(seq_len=2)
