"""A storage whose requests are made by a helper process: the same answers, or an error."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from packline.errors import StoreError
from packline.storage.clients import _Relay
from packline.storage.places import open_storage


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
