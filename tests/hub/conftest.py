"""The hub on the loopback device, for tests of push, pull and inputs from the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.loopback import LoopbackHub
from tests.hub.using import use_hub

from packline.testing import make_store


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """An empty hub, which this process and those that it starts use with a token that may write to `org`."""
    with LoopbackHub(tmp_path / "hub") as served:
        use_hub(served, tmp_path / "hf-home", monkeypatch)
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two sources and two splits, in four shards."""
    lengths, splits = [[50, 10, 90], [40], [700, 200], [31]], ["train", "val", "train", "train"]
    return make_store(
        tmp_path / "store", lengths, splits=splits, sources=["web", "web", "books", "books"]
    ).path
