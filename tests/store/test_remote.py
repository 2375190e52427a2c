"""A store in a bucket reads as the local one: documents, rows, provenance, verification, all commands."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.storage.servers import Bucket
from tests.store.remote import PLACE, Faults, lengths_of, same_arrays, standing_for_bucket, upload

import packline
from packline.cli.main import main
from packline.errors import CorruptStore, InputError, RecipeError, StoreError, StoreNotFound
from packline.formats.check import check_dataset
from packline.packing.exclusions import write_duplicates
from packline.storage.places import open_storage
from packline.storage.results import FileFacts
from packline.store.lookup import find_by_id, find_by_place
from packline.testing import make_store
from packline.viewing.analysis import analyze


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> packline.Store:
    """Shards of several MiB and of little, two sources, two splits."""
    lengths = [lengths_of(700, 1), lengths_of(30, 2), lengths_of(400, 3), lengths_of(9, 4)]
    folder = tmp_path_factory.mktemp("local") / "store"
    return make_store(
        folder, lengths, sources=["a", "b", "a", "b"], splits=["train", "train", "train", "val"]
    )


@pytest.fixture
def place(local: packline.Store, bucket: Bucket) -> str:
    upload(local.path, found := bucket.place("data/store"))
    return found


@pytest.mark.parametrize("most", [6 << 20, 1 << 30])
def test_of_a_large_store_little_more_is_fetched_than_is_used(tmp_path: Path, most: int) -> None:
    local = make_store(tmp_path / "store", [lengths_of(700, 1), lengths_of(400, 3), lengths_of(600, 4)])
    assert local.manifest.store_bytes > 6 << 20
    rows = local.rows(512)
    chosen = np.random.default_rng(0).permutation(len(rows))[:32].reshape(4, 8)
    with standing_for_bucket(Faults(local.path)) as storage:
        remote = packline.open(PLACE, cache=tmp_path / "cache", cache_bytes=most)
        there = remote.rows(512)
        for turn, numbers in enumerate(chosen):
            before = storage.bytes
            assert same_arrays(rows.read(numbers), there.read(numbers))
            fetched = storage.bytes - before
            if most < local.manifest.store_bytes:
                assert fetched < 8 * 3 * 65536 + 100_000  # a few blocks for each row, and an index
            elif turn == 0:
                assert fetched > 2 << 20
    name = max(local.manifest.shards, key=lambda one: one.tokens).name
    number = local.manifest.shards.names("name").index(name)
    damaged = bytearray((local.path / f"{name}.bin").read_bytes())
    damaged[2_000_000] ^= 1

    def flip(file: str, start: int, data: bytes) -> bytes:
        return bytes(damaged[start : start + len(data)]) if file == f"{name}.bin" else data

    with standing_for_bucket(Faults(local.path, flip)):
        remote = packline.open(PLACE, cache=tmp_path / "other", cache_bytes=most)
        first, shard = int(local.firsts[number]), local.shards[number]
        document = first + int(np.searchsorted(shard.offsets, 2_000_000)) - 1
        with pytest.raises(CorruptStore, match=rf"{name}.bin: bytes 1,966,080 to 2,031,616 arrived damaged"):
            remote.documents[document]
        assert np.array_equal(remote.documents[first], local.documents[first])
        found = [one.what for one in remote.verify().problems if one.file == f"{name}.bin"]
        assert len(found) == 1 and "damaged in byte range" in found[0]


def test_each_byte_of_a_whole_file_is_fetched_once(
    local: packline.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packline.store.mirror.RANGE_BYTES", 1 << 20)
    with standing_for_bucket(Faults(local.path)) as storage:
        remote = packline.open(PLACE, cache=tmp_path / "cache")
        assert remote.files.traffic is not None
        for entry in local.manifest.files():
            before, requests = storage.bytes, storage.requests[entry.name]
            assert len(remote.files.map(entry)) == entry.bytes
            most = 1 + entry.bytes // (1 << 20)
            assert storage.requests[entry.name] - requests <= most
            fetched = storage.bytes - before
            assert fetched in (0, entry.bytes) or entry.name.endswith((".bin", ".sums", ".loss", ".idx"))
        assert storage.bytes <= 1.05 * local.manifest.store_bytes + 100_000


def test_everything_that_is_read_equals_the_local_store(
    local: packline.Store, place: str, tmp_path: Path
) -> None:
    remote = packline.open(place, cache=tmp_path / "cache", cache_bytes="64MB")
    assert str(remote.place) == place and place in repr(remote)
    assert remote.manifest == local.manifest
    chosen = [0, 5, 699, 700, 729, 730, 1129, len(local.documents) - 1]
    for number in chosen:
        assert np.array_equal(remote.documents[number], local.documents[number])
        assert remote.provenance(number) == local.provenance(number)
    assert remote.text(3) == local.text(3)
    for packing in ("concat", "best_fit", "pad"):
        for shuffle in (None, 7):
            settings: dict[str, Any] = {"packing": packing, "shuffle_documents": shuffle}
            mine, theirs = local.rows(512, **settings), remote.rows(512, **settings)
            assert len(mine) == len(theirs) and mine.fingerprint == theirs.fingerprint
            rows = np.random.default_rng(0).integers(0, len(mine), 40)
            assert same_arrays(mine.read(rows), theirs.read(rows))
            assert np.array_equal(mine.rows_of(7), theirs.rows_of(7))
    assert remote.verify().ok
    id = local.provenance(712).id
    assert id is not None and find_by_id(remote, id) == find_by_id(local, id)
    origin = local.provenance(712)
    assert find_by_place(remote, origin.file, origin.position) == find_by_place(
        local, origin.file, origin.position
    )
    with pytest.raises(StoreError, match="is remote"):
        remote.path  # noqa: B018


def test_commands_show_the_same(
    local: packline.Store, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> str:
        assert main([*words, "--json"]) == 0, capsys.readouterr()
        lines = capsys.readouterr().out.splitlines()
        return "\n".join(line for line in lines if '"seconds"' not in line).replace(place, str(local.path))

    commands: list[Sequence[str]] = [
        ["info"],
        ["view", "--document", "3"],
        ["info", "--seq-len", "256"],
        ["trace", "--seq-len", "256", "--batch-size", "4", "--step", "3"],
    ]
    for name, *words in commands:
        assert run(name, place, *words) == run(name, str(local.path), *words)
    assert main(["verify", place]) == 0
    assert main(["diff", place, str(local.path)]) == 0
    assert main(["info", place, "--html", str(tmp_path / "page.html")]) == 0
    for source, out in ((place, "remote"), (str(local.path), "local")):
        assert main(["export", source, "--to", "nanogpt", "--out", str(tmp_path / out)]) == 0
        rows = ["--to", "baked", "--seq-len", "128", "--out", str(tmp_path / f"{out}-rows")]
        assert main(["export", source, *rows]) == 0
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "remote" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    assert (tmp_path / "remote" / "train.bin").stat().st_nlink == 1
    baked = [sorted((tmp_path / f"{one}-rows").glob("*.bin")) for one in ("local", "remote")]
    assert [one.read_bytes() for one in baked[0]] == [one.read_bytes() for one in baked[1]]


def test_remote_stores_are_merged(bucket: Bucket, tmp_path: Path) -> None:
    one = make_store(tmp_path / "one", [[5, 2]], sources=["books"])
    two = make_store(tmp_path / "two", [[4]], sources=["web"])
    upload(two.path, bucket.place("two"))
    local = packline.merge([one.path, two.path], out=tmp_path / "local")
    merged = packline.merge([one.path, bucket.place("two")], out=tmp_path / "merged")
    assert merged.manifest == local.manifest and merged.verify().ok


def test_what_is_not_a_store_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="has no manifest"):
        packline.open(bucket.place("nothing"), cache=tmp_path)
    with pytest.raises(StoreError, match="no such bucket"):
        packline.open("s3://no-such-bucket-of-the-tests/store", cache=tmp_path)
    with pytest.raises(RecipeError, match="cache_bytes is 5"):
        packline.open(bucket.place("nothing"), cache=tmp_path, cache_bytes=5)
    with pytest.raises(RecipeError, match="local store"):
        packline.open(tmp_path, cache=tmp_path)


def _read(store: packline.Store, numbers: Sequence[int]) -> list[list[int]]:
    return [store.documents[number].tolist() for number in numbers]


def test_processes_share_an_open_store(local: packline.Store, place: str, tmp_path: Path) -> None:
    """Those that were spawned; forked ones are the workers of a data loader, below."""
    remote = packline.open(place, cache=tmp_path / "cache")
    assert np.array_equal(remote.documents[1], local.documents[1])  # the client was used here
    numbers = [[1, 3, 500], [2, 600, 1, 1100]]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        found = list(processes.map(partial(_read, remote), numbers))
    assert found == [_read(local, chosen) for chosen in numbers]


def test_processes_of_an_analysis_read_through_the_cache_of_the_store(
    local: packline.Store, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKLINE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr("packline.viewing.tally.ALONE_TOKENS", 1 << 20)
    remote = packline.open(place, cache=tmp_path / "mine", cache_bytes="64MB")
    assert analyze(remote, workers=2).most_used == analyze(local, workers=0).most_used
    assert (tmp_path / "mine").exists() and not (tmp_path / "other").exists()


def test_what_needs_a_local_path_refuses_a_uri_and_says_what_to_do(local: packline.Store) -> None:
    with pytest.raises(StoreError, match="a list of documents is written to a local path"):
        write_duplicates("s3://bucket/list.parquet", local)
    with pytest.raises(StoreError, match="a plan is written to a local path"):
        local.rows(256, packing="best_fit", plans="s3://bucket/plans")
    with pytest.raises(InputError, match="s3://bucket/x: a data set is checked in a local folder") as found:
        check_dataset("s3://me:word@bucket/x?sig=1", "nanogpt")
    assert (
        "packline pull s3://bucket/x DIR --verify && packline verify DIR --from nanogpt" in found.value.hint
    )


def test_run_files_name_stores_by_uri(local: packline.Store, place: str, tmp_path: Path) -> None:
    text = "[loader]\nbatch_size = 4\n[[stages]]\nseq_len = 128\n[[stages.sources]]\n"
    text += "sources = ['a']\nstore = '{}'\n"
    loaders = []
    for name, store in (("local", str(local.path)), ("remote", place)):
        (tmp_path / f"{name}.toml").write_text(text.format(store))
        loaders.append(packline.Loader.from_file(tmp_path / f"{name}.toml"))
    for step in (0, 3, 11):
        assert same_arrays(*(loader.batch(step) for loader in loaders))
    assert loaders[0].state_dict() == loaders[1].state_dict()


def test_a_store_that_changes_is_read_anew(bucket: Bucket, tmp_path: Path) -> None:
    place = bucket.place("changing")
    for lengths in ([[5, 2, 9]], [[5, 2, 8]]):
        store = make_store(tmp_path / "store", lengths)
        storage = open_storage(place)
        storage.delete([one.name for one in storage.walk()])
        upload(store.path, place)
        remote = packline.open(place, cache=tmp_path / "cache")
        assert [len(one) for one in remote.documents] == lengths[0]
        shutil.rmtree(tmp_path / "store")
    assert os.listdir(tmp_path / "cache") == ["pieces-1"]


@pytest.mark.parametrize("folder", [True, False])
def test_forked_workers_of_a_data_loader_read_the_same_batches(
    local: packline.Store, place: str, tmp_path: Path, folder: bool
) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from packline.torch import LoaderDataset

    remote = packline.open(place, cache=str(tmp_path / "cache") if folder else False)
    loaders = [packline.Loader(one.rows(512), batch_size=8, seed=1) for one in (local, remote)]
    loaders[1].batch(0)  # the client was used here
    workers = DataLoader(
        LoaderDataset(loaders[1]), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for step, (mine, theirs) in enumerate(zip(loaders[0], workers, strict=False)):
        assert same_arrays(mine, {name: tensor.numpy() for name, tensor in theirs.items()})
        if step == 12:
            break


def test_verify_asks_for_the_size_of_each_file_once(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [lengths_of(30, 1), lengths_of(9, 2)])
    asked: list[str] = []

    class Counting(Faults):
        def facts(self, name: str) -> FileFacts | None:
            asked.append(name)
            return super().facts(name)

    with standing_for_bucket(Counting(store.path)):
        report = packline.verify(PLACE)
    assert report.ok and len(asked) == len(set(asked)) == report.files
