"""Ranges that may hold a gram: none is missed, however a text is divided into tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.evals.plainly import plain_words

from packline.evals.candidates import Candidates, IdCandidates, WordCandidates
from packline.evals.letters import Letters, entries_of
from packline.evals.ngram_index import HashSet, block_hashes, block_of_sums, block_size, letter_sums
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


def ranges_of(finder: Candidates, tokens: np.ndarray, step: int) -> list[tuple[int, int]]:
    starts = range(0, len(tokens), step)
    return [one for at in starts for one in finder.find(tokens[at : at + step], at + step >= len(tokens))]


def disjoint(ranges: list[tuple[int, int]]) -> bool:
    return all(stop < start for (_, stop), (start, _) in pairwise(ranges))


@given(divided(), st.integers(1, 5), st.integers(1, 50))
def test_every_gram_is_in_a_range_however_chunks_are_cut(
    case: tuple[str, list[bytes]], n: int, step: int
) -> None:
    text, pieces = case
    lowered = [piece.translate(LOWER) for piece in pieces]
    vocabulary = sorted(set(lowered) | {b"", b"unused"})
    tokens = np.array([vocabulary.index(piece) for piece in lowered], np.uint16)
    letters = Letters(entries_of(vocabulary), vocabulary.__getitem__)
    ends = np.cumsum([len(piece) for piece in lowered])
    words = split_words(np.frombuffer(b"".join(lowered), np.uint8))
    spellings = words.spellings(0, len(words.starts))
    assert [one.decode() for one in spellings] == plain_words(text)
    size = block_size(n)
    for first in range(len(spellings) - n + 1):
        blocks = [b"".join(spellings[at : at + size]) for at in range(first, first + n - size + 1)]
        sums = [letter_sums(np.frombuffer(block, np.uint8))[-1] for block in blocks]
        known = HashSet(np.unique(block_of_sums(np.array(sums))))
        found = ranges_of(WordCandidates(letters, known, n), tokens, step)
        token, last = np.searchsorted(
            ends, [words.starts[first], words.ends[first + n - 1] - 1], side="right"
        ).tolist()
        assert any(start <= token and last < stop for start, stop in found) and disjoint(found)
        # The word before and the one behind begin in the range too, unless it includes all.
        around = [words.starts[max(first - 1, 0)], words.starts[min(first + n, len(spellings) - 1)]]
        token, last = np.searchsorted(ends, around, side="right").tolist()
        assert any(start <= token and last < stop for start, stop in found)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 9))
def test_every_gram_of_ids_is_in_a_range(ids: list[int], n: int, blocks: int) -> None:
    tokens, size = np.array(ids, np.uint32), block_size(n)
    for first in range(len(ids) - n + 1):
        known = HashSet(np.unique(block_hashes(tokens[first : first + n], size, 1)))
        found = ranges_of(IdCandidates(known, n), tokens, blocks * size)
        low, high = max(first - 1, 0), min(first + n + 1, len(ids))
        assert any(start <= low and high <= stop for start, stop in found) and disjoint(found)


def test_a_text_without_a_known_gram_has_no_range() -> None:
    pieces = [
        b"the",
        b" cat",
        b"s",
        b" ",
        b" \xe2\x80",
        b"\x9c",
        "北京".encode(),
        b"\xe4\xba",
        b"\xac\xe5",
        b"\x8c\x97",
    ]
    letters = Letters(entries_of(pieces), pieces.__getitem__)
    tokens = np.array([0, 1, 2, 3, 4, 5, 6, 6, 0, 1, 7, 8, 9] * 20, np.uint16)
    nothing = HashSet(np.array([256], np.uint64))
    assert WordCandidates(letters, nothing, 5).find(tokens, True) == []
    for block, ids in (("thecats", [0, 1, 2, 3, 0]), ("京北", [7, 8, 9, 3, 0])):
        known = HashSet(block_of_sums(letter_sums(np.frombuffer(block.encode(), np.uint8))[-1:]))
        assert WordCandidates(letters, known, 3).find(np.array(ids, np.uint16), True) == [(0, 5)]
