"""Copies between any two storages: the same bytes, or an error and the same command again."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import result, run, run_alone
from tests.storage.fault_proxy import FAULTS, Schedule, fault_proxy
from tests.storage.servers import Bucket

import packline
from packline.errors import CorruptStore, OutOfSpace, StoreError, StoreNotFound
from packline.storage import copying
from packline.storage.local import LocalFolder
from packline.storage.objects import ObjectFolder
from packline.storage.places import is_remote, open_storage
from packline.testing import make_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", [[5, 2, 900], [4], [7, 7]]).path


def contents(place: str | Path) -> dict[str, bytes]:
    storage = open_storage(place)
    names = [facts.name for facts in storage.walk() if not facts.name.startswith(".")]
    return {name: storage.read(name) for name in names}


def hear(heard: list[tuple[int, int]], done: int, whole: int) -> None:
    heard.append((done, whole))


PATHS = {
    "folder to folder": ["copy"],
    "folder to objects": ["s3:copy"],
    "objects to folder": ["s3:middle", "copy"],
    "objects to objects": ["s3:middle", "s3:copy"],
}


@pytest.mark.parametrize("path", [path for path in PATHS if path != "folder to objects"])
@pytest.mark.parametrize("verify", [False, True])
def test_a_copy_is_equal_and_made_once(
    path: str, verify: bool, store: Path, tmp_path: Path, bucket: Bucket
) -> None:
    places = [bucket.place(name[3:]) if name[:3] == "s3:" else str(tmp_path / name) for name in PATHS[path]]
    source = str(store)
    for place in places:
        heard: list[tuple[int, int]] = []
        done = packline.copy(source, place, verify=verify, on_progress=partial(hear, heard))
        assert done.kind == "store" and done.files == len(contents(store)) and done.found_files == 0
        assert heard[-1] == (done.bytes, done.bytes) and heard == sorted(heard)
        source = place
    assert contents(source) == contents(store)
    again = packline.copy(store, source, verify=verify)
    assert again.found_files == again.files
    if not is_remote(source):
        assert packline.Store(source).verify().ok
        assert not [name for name in os.listdir(source) if name.startswith(".")]


@pytest.mark.parametrize("path", PATHS)
def test_what_any_interruption_leaves_is_no_store_and_is_resumed(
    path: str, store: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that ends at each of its writes in turn."""
    source: Any = store
    if path.startswith("objects"):
        packline.copy(store, source := bucket.place("source"))
    target = bucket.place("target") if path.endswith("objects") else str(tmp_path / "target")
    monkeypatch.setattr(copying, "LINKED_AT_ONCE", 2)
    kind = ObjectFolder if is_remote(target) else LocalFolder
    method = "upload" if is_remote(target) else "put_files"
    left, real = [0], getattr(kind, method)

    def dying(self: Any, *given: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, *given, **more)

    monkeypatch.setattr(kind, method, dying)
    stops = 0
    for allowed in range(1, 50):
        left[0] = allowed
        try:
            packline.copy(source, target)
            break
        except KeyboardInterrupt:
            stops += 1
            assert open_storage(target).facts("manifest.json") is None
    assert stops >= 2 and contents(target) == contents(store)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_copy_there_and_back_survives_faults(
    fault: str, store: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault_proxy(bucket.endpoint, Schedule(3, 0.25, [fault], burst=1, slow_seconds=0.05)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        if fault == "flipped":  # small files are read without a checksum of their own before they are parsed
            monkeypatch.setattr(proxy.schedule, "at", lambda method, path, number: flips(path, number))
        packline.copy(store, bucket.place("copy"))
        packline.copy(bucket.place("copy"), tmp_path / "back", verify=True)
        assert proxy.faults()
    assert contents(tmp_path / "back") == contents(store)


def flips(path: str, number: int) -> str | None:
    return "flipped" if path.endswith((".bin", ".idx")) and number == 0 else None


def test_damage_in_the_source_is_not_copied(store: Path, tmp_path: Path, bucket: Bucket) -> None:
    packline.copy(store, bucket.place("good"))
    name = min(name for name in contents(store) if name.endswith(".bin"))
    data = bytearray((store / name).read_bytes())
    data[0] ^= 1
    shutil.copytree(store, tmp_path / "bad")
    (tmp_path / "bad" / name).write_bytes(data)
    storage = open_storage(bucket.place("good"))
    storage.delete([name])
    storage.put_new(name, bytes(data))
    copies: list[tuple[str | Path, str | Path]] = [
        (tmp_path / "bad", bucket.place("one")),
        (bucket.place("good"), tmp_path / "two"),
        (bucket.place("good"), bucket.place("three")),
    ]
    for number, (source, target) in enumerate(copies):
        with pytest.raises(CorruptStore, match=f"{name} is damaged: expected [0-9a-f]+, found [0-9a-f]+"):
            packline.copy(source, target)
        assert open_storage(target).facts("manifest.json") is None, number
    with pytest.raises(CorruptStore, match="is damaged"):
        packline.copy(tmp_path / "bad", tmp_path / "four", link="copy")
    (tmp_path / "bad" / name).unlink()
    with pytest.raises(CorruptStore, match=rf"{name} disagrees with manifest.json: .* found no file"):
        packline.copy(tmp_path / "bad", tmp_path / "five")


def test_a_target_with_anything_else_is_refused(store: Path, tmp_path: Path, bucket: Bucket) -> None:
    other = make_store(tmp_path / "other", [[5, 2, 901], [4], [7, 7]]).path
    for place in (bucket.place("copy"), str(tmp_path / "copy")):
        packline.copy(store, place)
        with pytest.raises(StoreError, match=r"manifest.json exists with another content"):
            packline.copy(other, place)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    for target, message in {
        "full": "is not empty: found notes.txt",
        "full/notes.txt": "is a file: expected a folder",
        "store/in": "overlaps",
        ".": "overlaps",
    }.items():
        with pytest.raises(StoreError, match=message):
            packline.copy(store, tmp_path / target)
    (tmp_path / "building/.packline").mkdir(parents=True)
    (tmp_path / "building/.packline/build.json").touch()
    with pytest.raises(StoreError, match="holds an unfinished build"):
        packline.copy(store, tmp_path / "building")
    with pytest.raises(StoreNotFound, match="holds a build that has not finished"):
        packline.copy(tmp_path / "building", tmp_path / "new")
    with pytest.raises(StoreNotFound, match="has no files"):
        packline.copy(bucket.place("nothing"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_exports_and_plain_folders_are_copied_too(store: Path, tmp_path: Path, bucket: Bucket) -> None:
    packline.export(store, out=tmp_path / "export", to="npy")
    done = packline.copy(tmp_path / "export", bucket.place("export"))
    assert done.kind == "export" and contents(bucket.place("export")) == contents(tmp_path / "export")
    plain = tmp_path / "plain"
    (plain / "in/.git").mkdir(parents=True)
    for name, data in {"a": b"one", "in/b": b"", "in/.git/c": b"x", ".d": b"x", "in/ü b": b"two"}.items():
        (plain / name).write_bytes(data)
    done = packline.copy(plain, bucket.place("plain"))
    assert (done.kind, done.files, done.left_out) == ("folder", 3, 2)
    packline.copy(bucket.place("plain"), tmp_path / "back", verify=True)
    assert contents(tmp_path / "back") == {"a": b"one", "in/b": b"", "in/ü b": b"two"}
    (plain / "a").write_bytes(b"eno")
    for target in (bucket.place("plain"), str(tmp_path / "back")):
        with pytest.raises(StoreError, match="a exists with another content"):
            packline.copy(plain, target)


def test_the_command_shows_what_it_did(store: Path, tmp_path: Path, bucket: Bucket) -> None:
    target = bucket.place("copy")
    done = run_alone("push", "store", target, cwd=tmp_path, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    assert f"store -> {target}" in done.stdout and "checksums of the manifest while reading" in done.stdout
    values = result(run("pull", target, "back", "--verify", "--json", cwd=tmp_path))
    assert values["kind"] == "store" and values["verified"] and values["target"] == "back"
    for further in (bucket.place("again"), "beside"):  # from store to store, and from folder to folder
        command, source = ("push", target) if is_remote(further) else ("pull", "store")
        done = run(command, source, further, "--verify", cwd=tmp_path)
        assert done.returncode == 0 and "and the target read back" in done.stdout, done.stderr
    assert contents(bucket.place("again")) == contents(tmp_path / "beside") == contents(store)
    again = run("pull", target, "back", cwd=tmp_path)
    assert "nothing to do: all files are there" in again.stdout
    meant = run("push", "store", "org/name", cwd=tmp_path)
    assert meant.returncode == 2 and "org/name is a folder: expected hf://datasets/ORG/NAME" in meant.stderr
    failed = run("push", "store", f"s3://{bucket.name}-none/x", cwd=tmp_path)
    assert failed.returncode == 1 and "there is no such bucket or container" in failed.stderr


def test_a_store_that_lies_is_refused_unless_it_has_one_writer(
    store: Path, lying_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match="ignores conditions"):
        packline.copy(store, lying_bucket.place("copy"))
    packline.copy(store, lying_bucket.place("copy"), one_writer=True)
    monkeypatch.setenv("PACKLINE_ONE_WRITER", "1")
    packline.copy(store, lying_bucket.place("by-environment"))
    for name in ("copy", "by-environment"):
        assert {facts.name for facts in open_storage(lying_bucket.place(name)).walk()} == set(contents(store))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("push store new --public", "--public is for the hub: new is another place"),
        (
            "push store s3://bucket/x --license mit",
            "--license is for the hub: s3://bucket/x is another place",
        ),
        ("push store hf://datasets/org/name --verify", "--verify is for folders and object stores"),
        (
            "push s3://bucket/x hf://datasets/org/name",
            "s3://bucket/x: a push to the hub reads a local folder",
        ),
        ("pull hf://datasets/org/name new --verify", "--verify is for object stores"),
    ],
)
def test_an_option_of_another_place_is_refused_by_name(
    words: str, message: str, store: Path, tmp_path: Path
) -> None:
    done = run(*words.split(), cwd=tmp_path)
    assert done.returncode in (1, 2) and message in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", ["folder to folder", "objects to folder"])
def test_a_full_disk_is_reported_and_the_copy_resumed(
    path: str, store: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Any = store
    if path.startswith("objects"):
        packline.copy(store, source := bucket.place("source"))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        with pytest.raises(OutOfSpace, match=r"the disk of .* is full"):
            packline.copy(source, tmp_path / "copy")
    packline.copy(source, tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(store)
