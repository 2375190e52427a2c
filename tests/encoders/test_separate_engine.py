"""An engine in a separate process gives the ids and errors of one in this process."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.encoders import Engine, EngineName, separate_engine
from packline.encoders import encoder as encoder_module
from packline.encoders.encoder import Encoder
from packline.encoders.engines import ENGINES, load_engine
from packline.encoders.separate_engine import SeparateEngine, start_ahead, stop_ahead
from packline.encoders.special_tokens import json_to_encode
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import EncoderMismatch
from packline.sources.batch import Texts

FAST: tuple[EngineName, ...] = ("gigatoken", "fastokens")


@pytest.fixture(autouse=True)
def nothing_ahead() -> Iterator[None]:
    yield
    stop_ahead()


@pytest.fixture(scope="module", params=FAST)
def both(request: pytest.FixtureRequest, tokenizer_json: Path) -> tuple[Engine, SeparateEngine]:
    name: EngineName = request.param
    text = tokenizer_json.read_text()
    return load_engine(name, text), SeparateEngine(name, text, refuse)


def refuse() -> Engine:
    raise AssertionError("the engine is loaded in this process")


def here(name: EngineName, json: str) -> Callable[[], Engine]:
    return lambda: ENGINES[name](json)


def pid_of(engine: SeparateEngine) -> int:
    """Process of an engine."""
    assert engine.process is not None
    return engine.process.pid


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@given(texts=st.lists(st.text()))
def test_ids_are_those_of_the_engine(both: tuple[Engine, SeparateEngine], texts: list[str]) -> None:
    of_engine, apart = both
    expected, found = of_engine.encode(Texts.of(texts)), apart.encode(Texts.of(texts))
    assert found.tokens.dtype == expected.tokens.dtype and found.offsets.dtype == expected.offsets.dtype
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    part = Texts(Texts.of(["before", *texts, "after"]).array[1:-1])
    assert apart.encode(part).tokens.tolist() == expected.tokens.tolist()


def test_texts_are_encoded_here_when_the_process_is_killed(tokenizer_json: Path) -> None:
    text = tokenizer_json.read_text()
    apart, texts = SeparateEngine("gigatoken", text, here("gigatoken", text)), Texts.of(["some text"])
    ids = apart.encode(texts).tokens.tolist()
    os.kill(pid_of(apart), signal.SIGKILL)
    assert apart.encode(texts).tokens.tolist() == ids
    assert apart.process is None


def test_the_process_ends_with_the_engine(tokenizer_json: Path) -> None:
    apart = SeparateEngine("gigatoken", tokenizer_json.read_text(), refuse)
    pid = pid_of(apart)
    del apart
    gc.collect()
    assert not is_running(pid)


def test_a_tokenizer_that_an_engine_cannot_load_is_loaded_here_for_the_error() -> None:
    with pytest.raises(AssertionError, match="in this process"):
        SeparateEngine("gigatoken", "{}", refuse)


@pytest.mark.parametrize("ahead", [True, False], ids=["parse", "text"])
@pytest.mark.parametrize("wanted", [True, False], ids=["parse", "text"])
def test_what_was_loaded_ahead_is_used_only_if_it_is_requested(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool, wanted: bool
) -> None:
    monkeypatch.setattr(separate_engine, "LARGE", 0)
    tokenizer = load_tokenizer(str(tokenizer_json))
    text = json_to_encode(tokenizer, parse=wanted)
    start_ahead(str(tokenizer_json), "gigatoken", parse=ahead)
    (process,) = separate_engine._AHEAD
    texts = Texts.of([f"{token} and words" for token in tokenizer.special_tokens])
    apart = SeparateEngine("gigatoken", text, refuse)
    assert pid_of(apart) == process.pid and not separate_engine._AHEAD
    assert apart.encode(texts).tokens.tolist() == load_engine("gigatoken", text).encode(texts).tokens.tolist()


def test_a_tokenizer_that_cannot_be_read_ahead_delays_nothing(
    tokenizer_json: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(separate_engine, "LARGE", 0)
    (tmp_path / "tokenizer.json").write_text("no JSON")
    start_ahead(str(tmp_path))
    apart = SeparateEngine("gigatoken", tokenizer_json.read_text(), refuse)
    assert len(apart.encode(Texts.of(["some text"])))


def test_an_encoder_holds_a_separate_engine_to_the_reference(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "LARGE", 0)
    tokenizer = load_tokenizer(str(tokenizer_json))
    texts = ["one text", "another, longer one", ""]
    apart, here = Encoder(tokenizer, text_bytes=100, alone=True), Encoder(tokenizer, text_bytes=100)
    assert apart.encode(texts).tokens.tolist() == here.encode(texts).tokens.tolist()
    assert isinstance(apart.engines["gigatoken"], SeparateEngine)
    assert not isinstance(here.engines["gigatoken"], SeparateEngine)
    monkeypatch.setattr(apart.reference, "encode", lambda text: [0])
    with pytest.raises(EncoderMismatch):
        apart.encode(texts)
