"""A reference in a separate process gives the answers and errors of one in this process."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.encoders import encoder as encoder_module
from packline.encoders.encoder import Encoder
from packline.encoders.reference import Reference, SeparateReference
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import EncoderMismatch, TokenizerError


@pytest.fixture(scope="module")
def both(tokenizer_json: Path) -> tuple[Reference, SeparateReference]:
    text = tokenizer_json.read_text()
    return Reference(text), SeparateReference(text)


def pid_of(reference: SeparateReference) -> int:
    """Process of a reference."""
    assert reference.process is not None
    return reference.process.pid


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@given(text=st.text(), cut=st.integers(0, 20))
def test_answers_are_those_of_the_reference(
    both: tuple[Reference, SeparateReference], text: str, cut: int
) -> None:
    here, apart = both
    ids = here.encode(text)
    assert apart.encode(text) == ids
    assert apart.decode(ids[cut:]) == here.decode(ids[cut:])
    assert apart.gives_back(text, ids[cut:]) == here.gives_back(text, ids[cut:])
    assert (apart.round_trip, apart.keeps()) == (here.round_trip, here.keeps())
    assert is_running(pid_of(apart))  # else all answers have come from this process


def test_errors_are_those_of_the_reference(tokenizer_json: Path) -> None:
    whole: dict[str, Any] = msgspec.json.decode(tokenizer_json.read_bytes())
    token = {**whole["added_tokens"][0], "id": 12345}
    text = msgspec.json.encode(whole | {"added_tokens": [token]}).decode()
    with pytest.raises(TokenizerError) as here:
        Reference(text)
    with pytest.raises(TokenizerError) as apart:
        SeparateReference(text).encode("a")
    assert str(apart.value) == str(here.value)


def test_answers_go_on_here_when_the_process_is_killed(tokenizer_json: Path) -> None:
    text = tokenizer_json.read_text()
    apart = SeparateReference(text)
    ids = apart.encode("some text")
    os.kill(pid_of(apart), signal.SIGKILL)
    assert apart.encode("some text") == ids == Reference(text).encode("some text")


def test_the_process_ends_with_the_reference(tokenizer_json: Path) -> None:
    apart = SeparateReference(tokenizer_json.read_text())
    apart.encode("some text")
    pid = pid_of(apart)
    del apart
    gc.collect()
    assert not is_running(pid)


def test_an_encoder_audits_by_a_separate_process(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_module, "LARGE", 0)
    tokenizer = load_tokenizer(str(tokenizer_json))
    texts = ["one text", "another, longer one", ""]
    apart, here = Encoder(tokenizer, alone=True), Encoder(tokenizer)
    assert isinstance(apart.reference, SeparateReference)
    assert not isinstance(here.reference, SeparateReference)
    assert apart.encode(texts).tokens.tolist() == here.encode(texts).tokens.tolist()
    monkeypatch.setattr(apart.reference, "encode", lambda text: [0])
    with pytest.raises(EncoderMismatch):
        apart.encode(texts)
