"""Hashes of n-grams, their index and runs of them, against grams compared one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import InputError
from packline.evals.grams import (
    QuestionGrams,
    gram_hashes,
    varied,
    word_encoder,
    write_questions,
)
from packline.evals.task import EvaluationText
from packline.ragged import Ragged


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 15))
def test_gram_hashes_are_equal_just_where_grams_are(values: list[int], n: int) -> None:
    hashes = gram_hashes(np.array(values, np.int64), n).tolist()
    grams = [tuple(values[place : place + n]) for place in range(len(values) - n + 1)]
    assert len(hashes) == len(grams)
    assert len(set(zip(hashes, grams, strict=True))) == len(set(hashes)) == len(set(grams))
    different = [2 * len(set(gram)) >= n for gram in grams]
    assert varied(np.array(values), n).tolist() == different


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=8),
    st.lists(st.integers(-1, 3), max_size=30),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_index_finds_every_gram_it_has_and_leaves_out_common_ones(
    tmp_path_factory: pytest.TempPathFactory, asked: list[list[int]], ids: list[int], n: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("grams")
    whole = Ragged(
        np.array([one for ids in asked for one in ids], np.int32), np.cumsum([0, *map(len, asked)])
    )
    questions = [EvaluationText("set", number, "") for number in range(len(asked))]
    facts = write_questions(folder, questions, n, most, lambda texts: whole)
    owners: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for text, one in enumerate(asked):
        for place in range(len(one) - n + 1):
            gram = tuple(one[place : place + n])
            if 2 * len(set(gram)) >= n:
                owners.setdefault(gram, []).append((text, place))
    kept = {gram: at for gram, at in owners.items() if len({text for text, _ in at}) <= most}
    assert facts.common == len(owners) - len(kept) and facts.grams == sum(map(len, kept.values()))
    found = QuestionGrams(folder, n).find(np.array(ids, np.int32))
    places = range(len(ids) - n + 1)
    expected = [(place, *one) for place in places for one in kept.get(tuple(ids[place : place + n]), [])]
    assert sorted(zip(*(column.tolist() for column in found), strict=True)) == sorted(expected)


def test_written_questions_give_back_their_words_and_count_what_cannot_be_found(tmp_path: Path) -> None:
    texts = ["One two, three four!", "too short", "a a a a a", "One two, three five"]
    questions = [EvaluationText(f"set{number % 2}", number, text) for number, text in enumerate(texts)]
    known: dict[bytes, int] = {}
    encode = word_encoder(known, lambda texts: [text.encode() for text in texts])
    facts = write_questions(tmp_path, questions, 3, 1, encode)
    grams, words = QuestionGrams(tmp_path, 3), list(known)
    assert [words[one] for one in grams.piece(0, 0, 4)] == [b"one", b"two", b"three", b"four"]
    assert [words[one] for one in grams.piece(3, 2, 4)] == [b"three", b"five"]
    _, found, positions = grams.find(np.concatenate([grams.piece(0, 0, 4), grams.piece(3, 0, 4)]))
    # "one two three" is shared by two questions
    assert set(zip(found.tolist(), positions.tolist(), strict=True)) == {(0, 1), (3, 1)}
    assert (facts.grams, facts.common, facts.repetitive) == (2, 1, 3)
    assert facts.sets["set0"].unchecked == 1 and facts.sets["set0"].too_short == 0
    assert facts.sets["set1"].unchecked == 1 and facts.sets["set1"].too_short == 1
    with pytest.raises(InputError, match="no questions"):
        write_questions(tmp_path, [], 3, 1, encode)
