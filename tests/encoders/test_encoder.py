"""Which engine gets which text, with engines whose speed the test decides."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packline.encoders import Engine, EngineName, encoder
from packline.encoders.encoder import TRIED_BYTES, TRYING, Chooser, Encoder, script_of
from packline.encoders.engines import load_engine
from packline.encoders.tokenizer import load_tokenizer
from packline.ragged import Ragged, offsets_of
from packline.sources.batch import Texts

LATIN, WIDE = "plain words " * 4000, "漢字とかな" * 4000


@dataclass
class Clocked:
    """Gives each text's code points as ids; its pace by script is set, on a clock that only it moves."""

    name: EngineName
    clock: list[float]
    ascii_rate: float
    wide_rate: float
    seen: dict[str, int] = field(default_factory=dict)

    def encode(self, texts: Texts) -> Ragged:
        for text in texts:
            script = "ascii" if text.isascii() else "wide"
            size = len(text.encode())
            self.clock[0] += size / (self.ascii_rate if script == "ascii" else self.wide_rate)
            self.seen[script] = self.seen.get(script, 0) + size
        ids = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in texts]
        return Ragged(np.concatenate(ids), offsets_of(np.array([len(one) for one in ids], np.int64)))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[EngineName, Clocked]:
    clock = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    return {
        "gigatoken": Clocked("gigatoken", clock, ascii_rate=200e6, wide_rate=10e6),
        "fastokens": Clocked("fastokens", clock, ascii_rate=100e6, wide_rate=60e6),
    }


def encode(chooser: Chooser, texts: list[str]) -> Ragged:
    ragged, names = chooser.encode(Texts.of(texts))
    assert len(names) == len(ragged) == len(texts)
    for index, text in enumerate(texts):
        assert bytes(ragged[index].astype("<u4")).decode("utf-32-le") == text
    return ragged


def test_each_script_goes_to_its_fastest_engine_and_order_is_kept(engines: dict[EngineName, Clocked]) -> None:
    chooser = Chooser(dict(engines))
    for _ in range(600):
        encode(chooser, [LATIN, WIDE, "short", LATIN, WIDE])
    giga, fast = engines["gigatoken"].seen, engines["fastokens"].seen
    assert giga["ascii"] > 0.9 * (giga["ascii"] + fast["ascii"])
    assert fast["wide"] > 0.9 * (giga["wide"] + fast["wide"])


def test_trying_the_other_engine_costs_a_bounded_share_of_the_time(
    engines: dict[EngineName, Clocked],
) -> None:
    chooser = Chooser(dict(engines))
    part = TRIED_BYTES / 10e6
    for _ in range(300):
        encode(chooser, [WIDE * 3, *[WIDE] * 13])
        lost = engines["gigatoken"].seen.get("wide", 0) / 10e6
        total = lost + engines["fastokens"].seen["wide"] / 60e6
        assert lost <= TRYING * total + part
    assert engines["gigatoken"].seen["wide"] > 0


def test_the_choice_follows_a_change_of_speed(engines: dict[EngineName, Clocked]) -> None:
    chooser = Chooser(dict(engines))
    for _ in range(50):
        encode(chooser, [LATIN] * 4)
    engines["gigatoken"].ascii_rate = 20e6
    before = engines["fastokens"].seen["ascii"]
    for _ in range(200):
        encode(chooser, [LATIN] * 4)
    assert engines["fastokens"].seen["ascii"] - before > 150 * 4 * len(LATIN)


def test_scripts_are_told_by_bytes_a_character() -> None:
    texts = ["plain", "naïve words", "Ελληνικά", "漢字", ""]
    assert script_of(Texts.of(texts)).tolist() == [0, 1, 2, 2, 0]


def test_engines_are_loaded_anew_after_so_much_text(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(name: EngineName, *given: Any) -> Engine:
        loaded.append(name)
        return load_engine(name, *given)

    monkeypatch.setattr(encoder, "load_engine", load)
    made = Encoder(load_tokenizer(str(tokenizer_json)), engine="gigatoken", cache_bytes=1000)
    first = [made.encode(["some words " * 50]).tokens.tolist() for _ in range(6)]
    assert loaded == ["gigatoken"] * 2 and first == first[:1] * 6
