"""Tasks: each data set becomes right conversations, and made ones depend on words, seed and number alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat.test_sources import QUESTION, WORDS

from packline.chat.conversations import read_conversation
from packline.chat.tasks import read_gsm8k, read_mmlu, read_words, spelling, spelling_bee
from packline.errors import InputError, RecipeError
from packline.sources.batch import RecordProblem


@pytest.mark.parametrize(
    "record",
    [QUESTION, {"train": QUESTION}, ["Sky?", "red", "blue", "grey", "pink", "B"], ["Sky?", *"abcd", "1"]],
)
def test_a_question_is_answered_by_its_letter_alone(record: Any) -> None:
    talk = read_conversation(read_mmlu(record, {}))
    assert talk.messages[1].content == "B"
    assert talk.messages[0].content.startswith("Multiple Choice question: Sky?\n- ")


def test_what_follows_the_last_equals_sign_of_a_mark_is_its_output() -> None:
    talk = read_conversation(read_gsm8k({"question": "?", "answer": "<<1+1=2=2.0>>2, <<7>>"}, {}))
    parts = [(part.kind, part.text) for part in talk.messages[1].parts]
    assert parts == [
        ("python", "1+1=2"),
        ("python_output", "2.0"),
        ("text", "2, "),
        ("python", "7"),
        ("python_output", ""),
    ]


@pytest.mark.parametrize("record", [{}, {"question": "x"}, ["a", "b"], 7, {**QUESTION, "answer": 9}])
def test_records_of_another_layout_are_malformed(record: Any) -> None:
    for read in (read_mmlu, read_gsm8k):
        with pytest.raises(RecordProblem, match="not_a_conversation"):
            read(record, {})


@given(st.integers(0, 2**62), st.integers(1, 40))
def test_spellings_are_right_whatever_the_seed(seed: int, count: int) -> None:
    options = {"count": count, "seed": seed, "held_out": 0.3}
    talks_made = list(spelling(WORDS, options))
    assert talks_made == list(spelling(WORDS, options))
    for one in talks_made:
        word, _, letters = one["messages"][1]["content"].partition(": ")
        assert one["messages"][0]["content"] == f"Spell the word: {word}"
        assert letters.replace(",", "") == word in WORDS
        assert letters.count(",") == len(word) - 1
    held_out = list(spelling(WORDS, {**options, "of": "held_out"}))
    words = [{one["messages"][0]["content"] for one in made} for made in (talks_made, held_out)]
    assert not words[0] & words[1]


@given(st.integers(0, 2**62))
def test_letters_are_counted_right_by_hand_and_by_python(seed: int) -> None:
    for one in spelling_bee(WORDS, {"count": 10, "seed": seed}):
        text, code, output, end = (part["text"] for part in one["messages"][1]["content"])
        found = re.fullmatch(r"'(\w+)'\.count\('(\w)'\)", code)
        assert found
        word, letter = found.groups()
        count = sum(one == letter for one in word)
        assert output == str(count) and end.endswith(f"#### {count}") and f"That is {count}." in text
        lines = re.findall(r"^(\d+):(\w)( yes, that makes (\d+))?$", text, re.MULTILINE)
        assert [(int(place), said) for place, said, _, _ in lines] == list(enumerate(word, 1))
        assert [int(number) for _, said, _, number in lines if number] == list(range(1, count + 1))
        asked = one["messages"][0]["content"]
        assert word in asked and letter in asked


def test_words_are_those_of_letters_and_there_have_to_be_some() -> None:
    assert read_words(b"apple\nPear\nna\xc3\xafve\napple\nfig 3\n", "here") == ["apple", "fig"]
    with pytest.raises(InputError, match="here has no words"):
        read_words(b"1 2 3", "here")
    for options in ({"count": 0}, {"count": 1, "of": "all"}, {"counts": 1}):
        with pytest.raises(RecipeError, match="options of spelling"):
            next(spelling(WORDS, options))


@given(st.integers(0, 2**62), st.integers(1, 20), st.integers(1, 20))
def test_a_conversation_does_not_depend_on_how_many_are_made(seed: int, few: int, more: int) -> None:
    for task in (spelling, spelling_bee):
        short, long = (list(task(WORDS, {"count": n, "seed": seed})) for n in (few, few + more))
        assert long[:few] == short and len(long) == few + more
