"""A tokenizer of ChatML, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chat import talks
from tests.chat.talks import CHATML, CHATML_TOKENS


@pytest.fixture(scope="session")
def chatml(tokenizer_json: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tokenizer with ChatML's tokens and its template, with marks."""
    return talks.with_tokens(tokenizer_json, tmp_path_factory.mktemp("chatml"), CHATML_TOKENS, CHATML)
