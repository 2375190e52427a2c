"""Let the hub's client in this process, and in processes that it starts, use a hub of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.loopback import LoopbackHub


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
