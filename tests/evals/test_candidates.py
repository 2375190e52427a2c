"""Ranges that may hold a gram: none is missed, however a text is divided into tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.evals.plainly import plain_words

from packline.evals.candidates import Candidates, Letters, elements_of
from packline.evals.ngram_index import HashSet, letter_sums
from packline.evals.words import LOWER, split_words

# Cases of all classes: letters with and without case, single letters, marks, signs, what NFKC changes.
LETTERS = "abAB 1.  “é É Σσ İ ﬁ 北京ーが가\u0301\u0e01\u0e34\u3099½Ａ，😀 "


@st.composite
def divided(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """A text, and its bytes in pieces that may end within a character; some are long."""
    text = draw(st.text(LETTERS, min_size=1, max_size=40))
    data = text.encode()
    size = draw(st.sampled_from([1, 1, 2, 4, 12]))
    cuts = {place for place in range(1, len(data)) if draw(st.integers(1, size)) == 1}
    return text, [data[start:stop] for start, stop in pairwise([0, *sorted(cuts - {len(data)}), len(data)])]


@given(divided(), st.integers(1, 4))
def test_every_gram_is_in_a_range(case: tuple[str, list[bytes]], n: int) -> None:
    text, pieces = case
    lowered = [piece.translate(LOWER) for piece in pieces]
    vocabulary = sorted(set(lowered) | {b"", b"unused"})
    tokens = np.array([vocabulary.index(piece) for piece in lowered], np.uint16)
    letters = Letters(*elements_of(vocabulary))
    ends = np.cumsum([len(piece) for piece in lowered])
    words = split_words(np.frombuffer(b"".join(lowered), np.uint8))
    spellings = words.spellings(0, len(words.starts))
    assert [one.decode() for one in spellings] == plain_words(text)
    for first in range(len(spellings) - n + 1):
        gram = b"".join(spellings[first : first + n])
        known = HashSet(letter_sums(np.frombuffer(gram, np.uint8))[-1:])
        found = Candidates(letters, known, n, lambda token: vocabulary[token]).find(tokens)
        token, last = np.searchsorted(
            ends, [words.starts[first], words.ends[first + n - 1] - 1], side="right"
        ).tolist()
        assert any(start <= token and last < stop for start, stop in found.spans)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(found.spans))


def test_a_text_without_a_known_gram_has_no_range() -> None:
    pieces = [b"the", b" cat", b"s", b" ", b" \xe2\x80", b"\x9c", "北京".encode()]
    letters = Letters(*elements_of(pieces))
    tokens = np.array([0, 1, 2, 3, 4, 5, 6, 6, 0, 1] * 20, np.uint16)
    nothing = HashSet(np.array([32], np.uint64))
    assert Candidates(letters, nothing, 3, pieces.__getitem__).find(tokens).spans == []
    known = HashSet(letter_sums(np.frombuffer(b"thecatsthe", np.uint8))[-1:])
    tokens = np.array([0, 1, 2, 3, 0], np.uint16)
    assert Candidates(letters, known, 3, pieces.__getitem__).find(tokens).spans == [(0, 5)]
