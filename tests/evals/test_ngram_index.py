"""Hashes of n-grams and their index, against grams compared one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputError
from packline.evals.ngram_index import (
    GramIndex,
    Matches,
    QuestionGrams,
    gram_hashes,
    mix,
    runs_of,
    sort_grams,
    varied,
    write_questions,
)
from packline.evals.task import EvaluationText


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 15))
def test_gram_hashes_are_equal_just_where_grams_are(values: list[int], n: int) -> None:
    hashes = gram_hashes(mix(np.array(values, np.int64)), n).tolist()
    grams = [tuple(values[place : place + n]) for place in range(len(values) - n + 1)]
    assert len(hashes) == len(grams)
    assert len(set(zip(hashes, grams, strict=True))) == len(set(hashes)) == len(set(grams))
    different = [2 * len(set(gram)) >= n for gram in grams]
    assert varied(np.array(values), n).tolist() == different


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=30), st.integers(1, 3))
def test_the_index_finds_every_gram_it_has_and_leaves_out_common_ones(
    entries: list[tuple[int, int]], most: int
) -> None:
    entries = sorted(set(entries), key=lambda entry: entry[::-1])  # by text
    grams, texts = (np.array([entry[side] for entry in entries], np.int32) for side in (0, 1))
    positions = np.arange(len(entries), dtype=np.int32)
    *arrays, common = sort_grams(mix(grams), texts, positions, most)
    index = GramIndex(*arrays)
    owners = {gram: [place for place, one in enumerate(grams) if one == gram] for gram in range(7)}
    kept = {gram: places for gram, places in owners.items() if 0 < len(places) <= most}
    assert common == sum(len(places) > most for places in owners.values())
    found = index.find(mix(np.arange(7)))
    expected = [(gram, int(texts[place]), place) for gram, places in kept.items() for place in places]
    pairs = zip(found.places.tolist(), found.texts.tolist(), found.positions.tolist(), strict=True)
    assert sorted(pairs) == sorted(expected)
    assert sum(run[3] for run in runs_of(found)) == len(expected)


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 6))))
def test_runs_are_whole_disjoint_and_as_long_as_they_can_be(matches: set[tuple[int, int, int]]) -> None:
    columns = np.array(sorted(matches, key=hash), np.int64).reshape(-1, 3).T
    runs = runs_of(Matches(*columns))
    covered = [
        (place + step, text, position + step)
        for place, text, position, count in runs
        for step in range(count)
    ]
    assert sorted(covered) == sorted(matches)
    for place, text, position, count in runs:
        assert (place - 1, text, position - 1) not in matches
        assert (place + count, text, position + count) not in matches


def test_written_questions_give_back_their_words_and_count_what_cannot_be_found(tmp_path: Path) -> None:
    texts = ["One two, three four!", "too short", "a a a a a", "One two, three five"]
    questions = [EvaluationText(f"set{number % 2}", number, text) for number, text in enumerate(texts)]
    facts = write_questions(tmp_path, questions, 3, 1)
    grams = QuestionGrams(tmp_path)
    assert grams.pieces(0, 0, 4) == [b"one", b"two", b"three", b"four"]
    assert grams.pieces(3, 2, 4) == [b"three", b"five"]
    kept = {(text, position) for text, position in zip(grams.index.texts, grams.index.positions, strict=True)}
    assert kept == {(0, 1), (3, 1)}  # "one two three" is shared by two questions
    assert (facts.grams, facts.common, facts.repetitive) == (2, 1, 3)
    assert facts.sets["set0"].unchecked == 1 and facts.sets["set0"].too_short == 0
    assert facts.sets["set1"].unchecked == 1 and facts.sets["set1"].too_short == 1
    with pytest.raises(InputError, match="no questions"):
        write_questions(tmp_path, [], 3, 1)
