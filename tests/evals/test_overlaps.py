"""Overlaps and their lengths, against a plain search over lists, wherever chunks and parts begin."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evals.plainly import WriteJsonl, build, plain_grams, plain_words

from packline.evals import contamination
from packline.evals.contamination import ContaminationReport, find_questions
from packline.evals.grams import GramOf

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
