"""`verify`: what is remembered of a store's tokenizer hides nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.store.stores import build_store, reseal
from tests.store.test_verify import MANIFEST_LIES, said

from packline.encoders import remembered
from packline.store import verify as checks
from packline.store.verify import verify

LIES = (
    "fingerprint: expected",
    "vocabulary: expected",
    "id of EOD",
    "eod of the recipe and of the tokenizer",
)


@pytest.fixture
def store(
    tmp_path: Path,
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
    documents: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A store that was verified before, with facts of tokenizers of any size kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SMALL", 1)
    store = build_store(
        write_jsonl(tmp_path / "in.jsonl", documents), tokenizer_json, tmp_path / "store"
    ).path
    assert verify(store).ok
    return store


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_found_again(store: Path, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reseal(store, change_manifest=MANIFEST_LIES[lie])
    found = said(verify(store))
    assert lie in found
    monkeypatch.setattr(remembered, "SMALL", 1 << 40)
    assert said(verify(store)) == found


def test_another_tokenizer_is_found_again(store: Path) -> None:
    path = store / "tokenizer/tokenizer.json"
    whole = msgspec.json.decode(path.read_bytes())
    whole["model"]["merges"] = whole["model"]["merges"][:-1]
    path.write_bytes(msgspec.json.encode(whole))
    reseal(store)
    assert "tokenizer/tokenizer.json: fingerprint" in said(verify(store))


def test_a_known_tokenizer_is_not_loaded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "load_kept_tokenizer", None)
    assert verify(store).ok
