"""Facts kept on disk equal computed ones: damaged, foreign and unwritable files are never read as facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.encoders import LITTLE_TEXT, remembered
from packline.encoders.encoder import Encoder
from packline.encoders.features import tokenizer_features
from packline.encoders.remembered import remember
from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import load_tokenizer

TEXT = "x" * remembered.SMALL


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; returns its folder of facts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/packline/tokenizers"


def test_computed_once_for_a_text_and_a_name(cache: Path) -> None:
    calls: list[str] = []

    def compute() -> list[str]:
        calls.append("")
        return ["a", "b"]

    found = [remember("one", TEXT, list[str], compute) for _ in range(3)]
    assert found == [["a", "b"]] * 3 and len(calls) == 1
    remember("two", TEXT, list[str], compute)
    remember("one", TEXT + "y", list[str], compute)
    assert len(calls) == 3 == len(list(cache.iterdir()))


@pytest.mark.parametrize("damage", [b"", b"short", None])
def test_a_damaged_fact_is_computed_again(cache: Path, damage: bytes | None) -> None:
    remember("one", TEXT, int, lambda: 7)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert remember("one", TEXT, int, lambda: 8) == 8
    assert remember("one", TEXT, int, lambda: 9) == 8, "the damaged file is replaced"


def test_errors_are_not_kept_and_small_texts_are_computed(cache: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        remember("one", TEXT, int, lambda: 1 // 0)
    assert remember("one", TEXT[1:], int, lambda: 1) == 1
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_ignored(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    assert [remember("one", TEXT, int, lambda: 1) for _ in range(2)] == [1, 1]


def test_the_oldest_facts_are_removed(cache: Path) -> None:
    for number in range(remembered.MOST + 5):
        remember(f"fact {number}", TEXT, int, lambda: 1)
    assert len(list(cache.iterdir())) == remembered.MOST


def test_other_code_does_not_read_the_facts_of_this(monkeypatch: pytest.MonkeyPatch) -> None:
    remember("one", TEXT, int, lambda: 1)
    monkeypatch.setattr(remembered, "_code", lambda: b"other")
    assert remember("one", TEXT, int, lambda: 2) == 2


def test_a_remembered_tokenizer_is_the_computed_one(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts() -> list[object]:
        tokenizer_features.cache_clear()
        without_special_tokens.cache_clear()
        tokenizer = load_tokenizer(str(tokenizer_json))
        without = without_special_tokens(tokenizer)
        return [tokenizer, tokenizer.fingerprint, without, tokenizer_features(without)]

    computed = facts()
    monkeypatch.setattr(remembered, "SMALL", 1)
    assert facts() == computed, "written"
    assert facts() == computed, "read"


def test_little_text_is_encoded_by_one_engine_to_the_same_ids(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    texts = ["def f(x):\n    return x", "naïve 漢字 text", "one more " * 50]
    little, all_of_them = Encoder(tokenizer, text_bytes=100), Encoder(tokenizer, text_bytes=LITTLE_TEXT)
    assert little.encode(texts).tokens.tolist() == all_of_them.encode(texts).tokens.tolist()
    assert list(little.engines) == ["gigatoken"]
    assert set(all_of_them.engines) == {"gigatoken", "fastokens"}


def test_the_other_engines_are_loaded_if_the_first_is_not_exact(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    encoder = Encoder(tokenizer, text_bytes=100)
    monkeypatch.setattr(
        type(encoder._loaded["gigatoken"]),
        "encode",
        lambda self, texts: encoder._as_engine().encode(texts[:0]),
    )
    expected = Encoder(tokenizer, engine="tokenizers").encode(["one two"]).tokens.tolist()
    assert encoder.encode(["one two"]).tokens.tolist() == expected
    assert list(encoder.engines) == ["fastokens"]
