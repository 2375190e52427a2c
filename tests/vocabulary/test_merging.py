"""Merges out of word counts: sorting by digits, and that large vocabularies change nothing but the digits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import python_sources

from packline.encoders.tiktoken import pattern_of
from packline.vocabulary import merging
from packline.vocabulary.training import find_merges
from packline.vocabulary.word_counts import batches_of, count_words

SMALL = st.lists(st.integers(-2, 0xFFFC), min_size=1)
LARGE = st.lists(st.integers(-2, 2**31 - 1), min_size=1)


@given(SMALL, LARGE)
def test_numbers_are_sorted_negative_ones_last_and_equal_ones_in_their_order(
    small: list[int], large: list[int]
) -> None:
    for numbers, limit in ((small, 0xFFFD), (small, 2**31), (large, 2**31)):
        order = merging._order(np.array(numbers, np.int32), limit).tolist()
        # -2 and -1 are 2**32 - 2 and 2**32 - 1 without a sign: the last of all.
        assert order == sorted(range(len(numbers)), key=lambda i: numbers[i] & 0xFFFFFFFF)


def test_merges_are_the_same_where_ids_need_two_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for _, text in python_sources(300_000)]
    counted = count_words(batches_of(texts), pattern_of("gpt4"), memory_bytes=1 << 30)
    expected = find_merges(counted, 3000)
    one_digit = merging._order
    monkeypatch.setattr(merging, "_order", lambda numbers, limit: one_digit(numbers, 1 << 20))
    assert find_merges(counted, 3000) == expected and len(expected) == 3000
