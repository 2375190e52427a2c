"""Builds into an object store: the same bytes as into a folder, whatever was interrupted before."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.builds import digests, set_sizes
from tests.laws.reference import Contents, write_corpus
from tests.storage.kills import Crash, killed_at, storage_calls
from tests.storage.servers import Bucket, bucket, moto  # noqa: F401

from packline.errors import StoreBusy, StoreError
from packline.jobs import driver as driver_module
from packline.jobs import seen
from packline.jobs.build import run_build
from packline.jobs.driver import Driver, read_driver
from packline.jobs.events import Finished
from packline.jobs.work import SCRATCH, Command
from packline.recipe import Recipe, RunOptions, Source
from packline.storage.local import LocalFolder
from packline.storage.places import open_storage

NUMBERS = [f"{number} " * (number % 11 + 1) for number in range(60)]
CORPUS: Contents = [("jsonl", NUMBERS[:25], True), ("jsonl.zst", NUMBERS[20:], True)]
SERIAL = RunOptions(workers=0, engine="tokenizers")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SCRATCH, str(tmp_path / "scratch"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    set_sizes(monkeypatch, 1000, 200)
    write_corpus(tmp_path / "in", CORPUS)
    return tmp_path / "scratch"


def built(place: str, inputs: Path, tokenizer: Path, options: RunOptions = SERIAL, **more: Any) -> Finished:
    recipe = Recipe(sources=(Source(inputs=(str(inputs),)),), tokenizer=str(tokenizer), **more)
    return run_build(recipe, place, options)


def stored(place: str) -> dict[str, str]:
    """SHA-256 of every object of a place."""
    storage = open_storage(place)
    return {one.name: hashlib.sha256(storage.read(one.name)).hexdigest() for one in storage.walk()}


@pytest.mark.parametrize("more", [{}, {"limit_tokens": 400}, {"val_documents": 5}], ids=str)
def test_a_store_in_a_bucket_is_the_one_in_a_folder(
    more: dict[str, Any], bucket: Bucket, tmp_path: Path, tokenizer_json: Path, scratch: Path
) -> None:
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json, **more)
    place = bucket.place("a/store")
    finished = built(place, tmp_path / "in", tokenizer_json, **more)
    assert not finished.nothing_to_do
    assert stored(place) == digests(tmp_path / "local")
    assert not [path for path in scratch.rglob("*") if path.is_file()]
    assert built(place, tmp_path / "in", tokenizer_json, **more).nothing_to_do


def test_workers_commit_to_a_bucket(bucket: Bucket, tmp_path: Path, tokenizer_json: Path) -> None:
    options = RunOptions(workers=2, engine="tokenizers")
    built(str(tmp_path / "local"), tmp_path / "in", tokenizer_json, options)
    place = bucket.place("store")
    built(place, tmp_path / "in", tokenizer_json, options)
    assert stored(place) == digests(tmp_path / "local")


def places(kind: str, bucket: Bucket, tmp_path: Path) -> Iterator[str]:
    for number in count():
        yield bucket.place(f"store-{number}") if kind == "bucket" else str(tmp_path / f"store-{number}")


def kill_points(kind: str, step: int, bucket: Bucket, tmp_path: Path, tokenizer: Path, **more: Any) -> None:
    """Kill a build before each `step`-th call of its storage, and run it again."""
    there = places(kind, bucket, tmp_path)
    built(next(there), tmp_path / "in", tokenizer, **more)
    with storage_calls() as calls:
        built(first := next(there), tmp_path / "in", tokenizer, **more)
    expected = stored(first)
    assert len(calls) > 30
    for number in range(0, len(calls), step):
        place = next(there)
        with pytest.raises(Crash), killed_at(number):
            built(place, tmp_path / "in", tokenizer, **more)
        built(place, tmp_path / "in", tokenizer, **more)
        assert stored(place) == expected, f"killed before call {number}: {calls[number]}"


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_build_killed_between_two_calls_of_its_storage_resumes(
    kind: str, bucket: Bucket, tmp_path: Path, tokenizer_json: Path
) -> None:
    kill_points(kind, 9, bucket, tmp_path, tokenizer_json)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"limit_tokens": 400}, {"val_documents": 5}], ids=str)
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_every_point_at_which_a_build_can_be_killed(
    kind: str, more: dict[str, Any], bucket: Bucket, tmp_path: Path, tokenizer_json: Path
) -> None:
    kill_points(kind, 1, bucket, tmp_path, tokenizer_json, **more)


def test_a_second_driver_is_told_who_drives_and_takes_over_from_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalFolder(tmp_path / "place")
    monkeypatch.setattr(driver_module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(driver_module, "WATCH_SECONDS", 0.5)
    monkeypatch.setattr(driver_module, "LOOK_SECONDS", 0.1)
    one, two = Driver(storage, tmp_path / "one"), Driver(storage, tmp_path / "two")
    one.take()
    one.tell(Command("packline build in --out place", "/data", 3))
    with pytest.raises(StoreBusy, match="is being built by process") as caught:
        two.take()
    assert "--join" in caught.value.hint
    monkeypatch.setattr(driver_module, "BEAT_SECONDS", 99.0)
    time.sleep(0.2)  # the last short beat is over
    two.take()
    record = read_driver(storage)
    assert record is not None and record.id == two.record.id
    one.tell(Command("late", "", 0))
    assert one.lost and not two.lost
    two.end()
    one.end()
    record = read_driver(storage)
    assert record is not None and record.ended and record.id == two.record.id
    three = Driver(storage, tmp_path / "three")
    three.take()  # at once, since the last one has ended
    three.end()


def test_a_resumed_driver_reads_segments_of_receipts(
    bucket: Bucket, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "IN_SEGMENT", 2)
    built(first := bucket.place("first"), tmp_path / "in", tokenizer_json)
    place, storage = bucket.place("store"), open_storage(bucket.place("store"))

    def stop(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("packline.jobs.store_job.publish_store", stop)
        with pytest.raises(Crash):
            built(place, tmp_path / "in", tokenizer_json)
    names = storage.list(seen.SEEN)
    assert names
    with storage_calls() as calls:
        committed = seen.Committed(storage, is_remote=True)
        committed.refresh()
    read = [call for call in calls if call.startswith("read receipts/")]
    assert len(committed.files) > len(read) and set(committed.files) == set(storage.list("receipts"))
    storage.delete(names[:1])
    for name in names[1:]:
        storage.delete([name])
        storage.put_new(name, b"damaged")
    built(place, tmp_path / "in", tokenizer_json)
    assert stored(place) == stored(first)


def test_a_foreign_folder_is_refused(bucket: Bucket, tmp_path: Path, tokenizer_json: Path) -> None:
    storage = open_storage(bucket.place("mine"))
    storage.put_new("notes/a.txt", b"mine")
    with pytest.raises(StoreError, match=r"holds no packline build: found notes/a\.txt"):
        built(bucket.place("mine"), tmp_path / "in", tokenizer_json)
    assert stored(bucket.place("mine")).keys() == {"notes/a.txt"}
