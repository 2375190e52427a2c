"""An object store as a storage: what is created stays, whatever the store answers and whoever asks."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.storage.servers import Bucket

from packline.errors import StoreError
from packline.storage.clients import _Relay
from packline.storage.objects import probe
from packline.storage.places import open_storage
from packline.storage.results import Storage


@pytest.fixture(params=["local", "s3", "azure"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "azure":
        storage = open_storage(request.getfixturevalue("container") + "/some/store")
        probe(storage)
        return storage
    if request.param == "local":
        return open_storage(tmp_path / "store")
    return open_storage(request.getfixturevalue("bucket").place("some/store"))


def test_names_ranges_and_order_are_alike(storage: Storage, tmp_path: Path) -> None:
    for name in ("train.bin", "a-b", "a/b", "a/c/d", ".packline/build.json"):
        assert storage.put_new(name, name.encode())
    assert not storage.put_new("a/b", b"a/b")
    with pytest.raises(StoreError, match="another content: expected"):
        storage.put_new("a/b", b"x")
    assert [facts.name for facts in storage.walk()] == [
        ".packline/build.json",
        "a-b",
        "a/b",
        "a/c/d",
        "train.bin",
    ]
    assert [(facts.name, facts.size) for facts in storage.walk("a")] == [("a/b", 3), ("a/c/d", 5)]
    assert list(storage.list("")) == ["a-b", "train.bin"] and list(storage.list("a")) == ["a/b"]
    assert storage.list("none") == [] and list(storage.walk("none")) == []
    assert storage.read("train.bin", 2, 4) == b"ai" and storage.read("train.bin", 6) == b"bin"
    assert storage.read("train.bin", 4, 99) == b"n.bin" and storage.read("train.bin", 99) == b""
    assert storage.read("train.bin", 3, 3) == b""
    assert storage.read("train.bin", 6, 99) == b"bin" and storage.read("train.bin", 99, 100) == b""
    for start, stop in ((0, None), (1, 1), (0, 1)):
        with pytest.raises(FileNotFoundError):
            storage.read("no", start, stop)
    assert storage.facts("no") is None
    storage.delete(["a/b", "no", "a-b"])
    assert [facts.name for facts in storage.walk("a")] == ["a/c/d"] and storage.facts("a-b") is None


FORKS = """
import os, sys
from packline.errors import StoreError
from packline.storage import clients
from packline.storage.places import open_storage

storage = open_storage(sys.argv[1])
if sys.argv[2] == "used":
    storage.put_new("a", b"one")
if os.fork() == 0:
    try:
        sys.stdout.write(f"{storage.read('a')} {storage.list('')}")
    except StoreError as error:
        sys.stdout.write(f"{error}; {error.hint}")
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""


def test_after_a_fork_a_store_is_made_anew_or_refused_but_never_waits(bucket: Bucket) -> None:
    """A client that is used in a forked child of a process that used it hangs for ever."""

    def run(state: str) -> str:
        words = [sys.executable, "-c", FORKS, bucket.place("forked"), state]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "was forked from one that used it; start workers by spawn or forkserver" in run("used")
    assert run("unused") == "b'one' ['a']"


def test_nothing_of_a_store_is_loaded_before_its_first_use() -> None:
    code = (
        "import sys, packline, packline.cli.main, packline.storage.objects, packline.storage.places\n"
        "packline.storage.places.open_storage('s3://b/k')\n"
        "print([name for name in ('obstore', 'boto3', 'ray', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_helper_answers_many_threads_until_it_dies(tmp_path: Path) -> None:
    storage, data = open_storage(tmp_path), os.urandom(1 << 20)
    storage.put_new("in/a", data)
    relayed = _Relay(str(tmp_path), reached=False)
    assert relayed.facts("in/a") == storage.facts("in/a") and relayed.facts("b") is None
    assert relayed.list("in") == ["in/a"]
    with ThreadPoolExecutor(40) as threads:
        found = list(threads.map(lambda start: relayed.read("in/a", start), range(100)))
    assert found == [data[start:] for start in range(100)]
    with pytest.raises(FileNotFoundError):
        relayed.read("b")
    relayed._helper.kill()
    relayed._helper.wait()
    for _ in range(100):
        with pytest.raises(StoreError, match="ended unexpectedly"):
            relayed.read("in/a")


def test_a_helper_ends_with_its_process(tmp_path: Path) -> None:
    relayed = _Relay(str(tmp_path), reached=False)
    helper = relayed._helper
    del relayed
    assert helper.wait(60) == 0
