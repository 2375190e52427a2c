"""Engine nanotoken: the ids of the reference on any text."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import HARD_TEXTS
from tests.encoders.fuzzed_files import BERT, contents_of
from tests.encoders.hostile_texts import hostile_texts

from packline.encoders.engines import (
    Encodable,
    TokenizersEngine,
    load_engine,
    tokenizer_features,
    unsupported,
)
from packline.sources.batch import Texts

NORMALIZERS = {"bert": BERT, "bert cased": {**BERT, "lowercase": False}, "bert plain": None}


@cache
def engines(name: str) -> tuple[Any, TokenizersEngine]:
    split = {"type": "BertPreTokenizer"}
    tokens = ["<unk>", "[CLS]", ("qzx", {"lstrip": True})]
    contents = contents_of("WordPiece", normalizer=NORMALIZERS[name], pre_tokenizer=split, tokens=tokens)
    whole = json.dumps(contents)
    assert unsupported("nanotoken", tokenizer_features(whole)) is None
    return load_engine("nanotoken", Encodable.of(whole)), TokenizersEngine(whole)


def check(name: str, texts: list[str]) -> None:
    """Both engines give the same ids, for texts as strings and as Arrow has them."""
    ours, theirs = engines(name)
    expected = theirs.encode(Texts.of(texts))
    for batch in (Texts.of(texts), Texts(Texts.of(["before", *texts]).array[1:])):
        found = ours.encode(batch)
        assert found.tokens.dtype == np.uint32 and len(found) == len(texts)
        for place, text in enumerate(texts):
            assert found[place].tolist() == expected[place].tolist(), (text, place)


LATIN = [" ", "  ", "\n", "\r\n", "\t", ",", ".", '."', "the", "cat,", "aa", "aaaa", "[CLS]", "qzx", "##s"]
OTHERS = ["{", "\u0600", "\u0301", "e\u0301", "\u200d", "\u00a0", "\u3000", "漢", "한국", "\u1100", "\0", "ﬁ"]
BESIDE = [*LATIN, *OTHERS, "\x01", "\x7f", "´", "\u00ad", "\u2003", "\ufeff", "가", "é", "“", "a)", "!!", "'"]
pieces = st.sampled_from([*LATIN, *OTHERS, "🧑\u200d🚀"])
texts = st.lists(st.lists(pieces | st.text(max_size=5), max_size=12).map("".join), max_size=5)


@pytest.mark.parametrize("name", NORMALIZERS)
@settings(max_examples=150)
@given(texts=texts)
def test_ids_are_those_of_the_reference(name: str, texts: list[str]) -> None:
    check(name, texts)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_hard_and_hostile_texts(name: str) -> None:
    check(name, [*HARD_TEXTS, *hostile_texts(Random(3), ["[CLS]", "qzx"], 20_000)])


@pytest.mark.parametrize("name", NORMALIZERS)
def test_whatever_is_beside_white_space_and_at_the_ends(name: str) -> None:
    beside = ["".join(parts) for parts in product(BESIDE, (" ", "\n", "\r\n", "  ", ""), BESIDE)]
    check(name, [*beside[::3], *(f"b{text}b" for text in beside[1::3]), *(f"{text}, b" for text in BESIDE)])
