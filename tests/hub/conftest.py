"""The hub on the loopback device, for tests of push, pull and inputs from the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.loopback import LoopbackHub

from packline.testing import make_store


def use_hub(hub: LoopbackHub, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the client at a hub, with an own empty cache and without the machine's token.

    The client reads its variables when it is first imported, so its constants are set as well.
    """
    from huggingface_hub import constants

    for name, value in {**hub.environment, "HF_HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    settings = {
        "ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    }
    for name, setting in settings.items():
        monkeypatch.setattr(constants, name, setting)


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
