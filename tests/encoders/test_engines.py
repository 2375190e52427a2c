"""Engines: the ids of a document do not depend on what it is encoded together with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from packline.encoders import ENGINE_NAMES, Engine, EngineName, engines
from packline.encoders.engines import FEW, Encodable, load_engine
from packline.sources.batch import Texts

TEXTS = ["plain words", "", "naïve – “quotes”", "漢字とかな", " ", "a\x00b", "\n\nx\ty", "🧑‍🚀"]


@pytest.fixture(params=[name for name in ENGINE_NAMES if name != "nanotoken"])
def engine(request: pytest.FixtureRequest, tokenizer_json: Path) -> Engine:
    name: EngineName = request.param
    return load_engine(name, Encodable.of(tokenizer_json.read_text(encoding="utf-8")))


def ids_of(engine: Engine, texts: Texts) -> list[list[int]]:
    ragged = engine.encode(texts)
    assert ragged.tokens.dtype == np.uint32 and len(ragged) == len(texts)
    return [ragged[place].tolist() for place in range(len(ragged))]


@pytest.mark.parametrize("count", [0, 1, 7, FEW, FEW + 1, 2 * FEW])
def test_few_and_many_are_encoded_alike(
    engine: Engine,
    ids_by_reference: Callable[[str], list[int]],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strings = [TEXTS[place % len(TEXTS)] + str(place // len(TEXTS)) * (place % 3) for place in range(count)]
    expected = [ids_by_reference(text) for text in strings]
    assert ids_of(engine, Texts.of(strings)) == expected
    monkeypatch.setattr(engines, "MANY", 0)
    assert ids_of(engine, Texts.of(strings)) == expected
    assert ids_of(engine, Texts(Texts.of(strings).array)) == expected


def test_a_slice_of_texts_is_encoded_as_what_it_holds(
    engine: Engine, ids_by_reference: Callable[[str], list[int]]
) -> None:
    whole = pa.array([*TEXTS * 200], pa.large_string())
    for start, stop in [(1, 5), (3, 3), (5, 5 + FEW + 9)]:
        expected = [ids_by_reference(text) for text in whole[start:stop].to_pylist()]
        assert ids_of(engine, Texts(whole[start:stop])) == expected


@pytest.fixture
def ids_by_reference(tokenizer_json: Path) -> Callable[[str], list[int]]:
    import tokenizers

    reference = tokenizers.Tokenizer.from_file(str(tokenizer_json))
    return lambda text: reference.encode(text, add_special_tokens=False).ids
