"""Patterns: words are cut as the regular expression cuts them, in HF's engine, whatever the text."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import HARD_TEXTS, python_sources
from tokenizers import Regex, pre_tokenizers

from packline.encoders.tiktoken import PATTERNS, pattern_of
from packline.vocabulary import word_counts

KNOWN = ["gpt2", "gpt4", "nanochat", "qwen2"]
"""A pattern of each rule and number of digits; llama3 is gpt4."""

# Characters on which the rules turn: white space, apostrophes and what may follow, digits of several scripts.
HARD_CHARACTERS = (
    "  \t\n\r\r\n'''aSstrevmdlLé1 2३9²(.)-“\u3000\u00a0\u2028\x0b\x85\x1c漢かſK\u0301\U0001f600x\u200b\0"
)


@cache
def splitter(name: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(PATTERNS[name].expression), "isolated")


def by_expression(name: str, texts: list[str]) -> list[bytes]:
    return [piece.encode() for text in texts for piece, _ in splitter(name).pre_tokenize_str(text)]


def by_rules(name: str, texts: list[str]) -> list[bytes]:
    raw = [text.encode() for text in texts if text]
    data = b"".join(raw)
    starts = np.cumsum([0] + [len(one) for one in raw])[:-1]
    bounds = word_counts.word_bounds(pattern_of(name), data, starts[starts < len(data)]).tolist()
    return [data[start:stop] for start, stop in itertools.pairwise(bounds)]


@pytest.mark.parametrize("name", KNOWN)
@given(
    texts=st.lists(st.text(st.sampled_from(HARD_CHARACTERS), min_size=1, max_size=12), min_size=1, max_size=4)
)
def test_words_are_those_of_the_expression(name: str, texts: list[str]) -> None:
    assert by_rules(name, texts) == by_expression(name, texts)


@pytest.mark.parametrize("name", KNOWN)
@given(text=st.text(min_size=1, max_size=30))
def test_words_are_those_of_the_expression_on_any_text(name: str, text: str) -> None:
    assert by_rules(name, [text]) == by_expression(name, [text])


@pytest.mark.parametrize("name", KNOWN)
def test_real_and_hard_texts(name: str) -> None:
    texts = [*HARD_TEXTS, *(text for _, text in python_sources(300_000))]
    assert by_rules(name, texts) == by_expression(name, texts)


@pytest.mark.parametrize("name", KNOWN)
def test_stretches_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = random.Random(7)
    letters = "ab c  d\n\n e's'' 12345 (x).\n"
    texts = ["".join(chooser.choice(letters) for _ in range(500)) for _ in range(20)]
    monkeypatch.setattr(word_counts, "RANGE_CHARS", 16)
    assert by_rules(name, texts) == by_expression(name, texts)


@pytest.mark.parametrize("name", ["gpt2", "gpt4"])
def test_every_character_is_of_the_kind_that_the_expression_says(name: str) -> None:
    # Each between letters, digits and marks: a character that is taken for another kind changes a boundary.
    for start in range(0, 0x20000, 4096):
        points = [point for point in range(start, start + 4096) if not 0xD800 <= point < 0xE000]
        text = "".join(f"a{chr(point)}1{chr(point)}." for point in points)
        if text:
            assert by_rules(name, [text]) == by_expression(name, [text]), hex(start)
