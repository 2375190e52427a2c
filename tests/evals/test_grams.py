"""Grams of questions, and overlaps with them against a plain search over lists, wherever chunks begin."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evals.plainly import WriteJsonl, build, plain_grams, plain_words

from packline.errors import InputError
from packline.evals import contamination
from packline.evals.contamination import ContaminationReport, find_questions
from packline.evals.grams import (
    GramOf,
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


WORDS = [
    "aa",
    "b",
    "cd",
    "é",
    "É",
    "Σσ",
    "ﬁ",
    "1",
    "北京",
    "が",
    "ก\u0e34",
    "か\u3099",
    "Ａ",
    "스",
    "😀",
    "x" * 40,
]
BETWEEN = ["", " ", " ", " ", " - ", "，", "\n\n\n", ".", "\u200d", " " * 30]


def text_of(draw: random.Random, count: int) -> str:
    return "".join(draw.choice(WORDS) + draw.choice(BETWEEN) for _ in range(count))


class Case:
    """A store, the questions in a file, and the words and the ids of both."""

    def __init__(self, folder: Path, tokenizer_json: Path, write_jsonl: WriteJsonl) -> None:
        draw = random.Random(5)
        questions = [text_of(draw, draw.randint(3, 25)) for _ in range(8)]
        texts = []
        for number in range(12):
            parts = [text_of(draw, draw.randint(1, 20))]
            for _ in range(number % 3):
                question = draw.choice(questions)
                begin, end = sorted(draw.sample(range(len(question) + 1), 2))
                parts += [question[begin:end], text_of(draw, draw.randint(0, 20))]
            texts.append("".join(parts))
        texts += [questions[0] * 3, "".join(questions)]
        self.store = build(folder, texts, tokenizer_json, write_jsonl)
        self.path = str(write_jsonl(folder / "questions.jsonl", questions))
        encode = self.store.tokenizer.encode
        self.documents: dict[GramOf, list[Sequence[Any]]] = {
            "words": [plain_words(text) for text in texts],
            "tokens": [tokens.tolist() for tokens in self.store.documents],
        }
        self.questions: dict[GramOf, list[Sequence[Any]]] = {
            "words": [plain_words(question) for question in questions],
            "tokens": [encode(question, add_special_tokens=False).ids for question in questions],
        }

    def report(self, n: int, gram_of: GramOf, chunk: int = 1 << 17) -> ContaminationReport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contamination, "CHUNK_TOKENS", chunk)
            patch.setattr(contamination, "MOST_LISTED", 10_000)
            found = find_questions(
                self.store, [self.path], n=n, gram_of=gram_of, most_texts=10_000, workers=0
            )
        found.seconds = 0.0
        return found

    def expected(self, n: int, gram_of: GramOf) -> dict[tuple[int, int], int]:
        return {
            (document, number): length
            for number, question in enumerate(self.questions[gram_of])
            for document, words in enumerate(self.documents[gram_of])
            if (length := longest_run(words, question, n))
        }


def longest_run(words: Sequence[Any], question: Sequence[Any], n: int) -> int:
    """Words of the longest run of equal grams, 0 if there is none."""
    significant = plain_grams(list(question), n)
    places = defaultdict(list)
    for place in range(len(question) - n + 1):
        if (gram := tuple(question[place : place + n])) in significant:
            places[gram].append(place)
    longest, runs = 0, dict[int, int]()
    for place in range(len(words) - n + 1):
        at = places.get(tuple(words[place : place + n]), [])
        runs = {one: runs.get(one - 1, n - 1) + 1 for one in at}
        longest = max(longest, *runs.values(), 0)
    return longest


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, write_jsonl: WriteJsonl) -> Case:
    return Case(tmp_path_factory.mktemp("overlaps"), tokenizer_json, write_jsonl)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(3, 8), gram_of=st.sampled_from(["words", "tokens"]), chunk=st.integers(5, 150))
def test_overlaps_are_those_of_a_plain_search_wherever_chunks_begin(
    case: Case, n: int, gram_of: GramOf, chunk: int
) -> None:
    report = case.report(n, gram_of, chunk)
    found = {(one.document, one.question): one.length for one in report.overlaps}
    assert found == case.expected(n, gram_of) and len(found) > 5
    assert report == case.report(n, gram_of)
    spoiled = {document for document, _ in found}
    assert report.sources == {"corpus": (len(spoiled), len(case.documents[gram_of]))}
    (only,) = report.sets.values()
    assert (only.questions, only.found) == (8, len({question for _, question in found}))
    assert only.documents == {"corpus": len(spoiled)} and not report.clean
    for one in report.overlaps:
        assert one.id == f"n{one.document}" and one.file == "corpus.jsonl"
        if gram_of == "words":
            assert one.text.replace(" ", "") in "".join(case.documents[gram_of][one.document])
