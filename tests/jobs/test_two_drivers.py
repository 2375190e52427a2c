"""Limited builds into an object store with two drivers: units are withdrawn, and no file may be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.jobs.test_remote_builds import built, scratch, stored
from tests.storage.kills import Crash
from tests.storage.servers import Bucket

from packline.errors import StoreBusy
from packline.jobs.driver import DRIVER, read_driver
from packline.jobs.folder import StoreFolder
from packline.jobs.work import SCRATCH
from packline.storage.places import open_storage
from packline.store.manifest import to_json

__all__ = ["scratch"]
LIMIT: dict[str, Any] = {"limit_tokens": 400}


def stop(*_: Any) -> None:
    raise Crash


def test_a_receipt_whose_files_another_driver_has_deleted_does_not_count(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of an overtaken driver has stored its files, but not its receipt, when they are deleted."""
    built(first := bucket.place("first"), tmp_path / "in", tokenizer_json, **LIMIT)
    place = bucket.place("second")
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr("packline.jobs.store_job.publish_store", stop)
        built(place, tmp_path / "in", tokenizer_json, **LIMIT)
    storage = open_storage(place)
    late = {name: storage.read(name) for name in storage.list("receipts")[:2]}
    assert len(late) == 2
    storage.delete(late)
    drop = StoreFolder.drop_uncommitted

    def drop_then_commit_late(folder: StoreFolder) -> None:
        drop(folder)
        for name, data in late.items():
            storage.put_new(name, data)

    monkeypatch.setattr(StoreFolder, "drop_uncommitted", drop_then_commit_late)
    built(place, tmp_path / "in", tokenizer_json, **LIMIT)
    assert stored(place) == stored(first)


def test_an_overtaken_driver_withdraws_nothing(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver stops for minutes before it withdraws a unit; another one takes over and publishes."""
    built(first := bucket.place("first"), tmp_path / "in", tokenizer_json, **LIMIT)
    place, storage = bucket.place("second"), open_storage(bucket.place("second"))
    withdraw = StoreFolder.withdraw

    def overtaken(folder: StoreFolder, receipt: Any) -> None:
        monkeypatch.setattr(StoreFolder, "withdraw", withdraw)
        record, facts = read_driver(storage), storage.facts(DRIVER)
        assert record is not None and facts is not None
        other = msgspec.structs.replace(record, id="other", host="other", ended=True)
        storage.replace(DRIVER, to_json(other), facts.etag)
        with monkeypatch.context() as patch:
            patch.setenv(SCRATCH, str(tmp_path / "other"))
            built(place, tmp_path / "in", tokenizer_json, **LIMIT)
        withdraw(folder, receipt)

    monkeypatch.setattr(StoreFolder, "withdraw", overtaken)
    with pytest.raises(StoreBusy, match="another driver"):
        built(place, tmp_path / "in", tokenizer_json, **LIMIT)
    assert stored(place) == stored(first)
