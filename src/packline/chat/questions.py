"""Questions with lettered choices, as MMLU and ARC are published.

    MMLU   cais/mmlu            Parquet or JSON lines: question, choices [4], answer 0 to 3
           the original         one CSV per subject, no header: question, A, B, C, D, letter
           with a header        one CSV per subject: question, choice0 .. choice3, answer 0 to 3
    ARC    allenai/ai2_arc      Parquet or JSON lines: question, choices {text [..], label [..]}, answerKey
           the original         JSON lines: question {stem, choices [{text, label}]}, answerKey

Their order is that of `shuffle(seed=42)` in `datasets`, a permutation from NumPy. It equals the published
order if the files, sorted by name, contain the questions in the published order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np

from packline.errors import InputError
from packline.sources.records import files_of, records_of

SHUFFLE_SEED = 42
MMLU_LETTERS = ("A", "B", "C", "D")
Kind = Literal["mmlu", "arc"]


class Lettered(msgspec.Struct, frozen=True):
    """A question and its lettered choices."""

    question: str
    letters: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int
    """Index of the right choice."""


class _Mmlu(msgspec.Struct):
    question: str
    choices: list[str]
    answer: int


class _Choices(msgspec.Struct):
    text: list[str]
    label: list[str]


class _Arc(msgspec.Struct):
    question: str
    choices: _Choices
    answerKey: str


class _LabelledChoice(msgspec.Struct):
    text: str
    label: str


class _Stem(msgspec.Struct):
    stem: str
    choices: list[_LabelledChoice]


class _OriginalArc(msgspec.Struct):
    question: _Stem
    answerKey: str


def read_lettered(path: str, kind: Kind) -> list[Lettered]:
    """Read the questions of a file or folder, in the order of files and lines.

    Args:
        path: file or folder; of several splits only files with `test` in their names are read.
        kind: MMLU or ARC.

    Raises:
        InputError: no files found, or a record of another layout, with its location.
    """
    read: Callable[[Any, str], Lettered | None] = _read_mmlu if kind == "mmlu" else _read_arc
    found = (read(record, where) for file in files_of(path) for where, record in records_of(file))
    questions = [question for question in found if question is not None]
    if not questions:
        raise InputError(f"{path} has no questions")
    return questions


def shuffled(questions: list[Lettered]) -> list[Lettered]:
    """Shuffle into the order of `datasets.Dataset.shuffle(seed=42)`."""
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(questions))
    return [questions[place] for place in order]


def render(question: Lettered) -> str:
    """Text of the user's message. The letter comes after its choice, without a space before it.

    >>> print(render(Lettered("Sky?", ("A", "B"), ("red", "blue"), 1)))
    Multiple Choice question: Sky?
    - red=A
    - blue=B
    <BLANKLINE>
    Respond only with the letter of the correct answer.
    """
    pairs = zip(question.choices, question.letters, strict=True)
    lines = "".join(f"- {choice}={letter}\n" for choice, letter in pairs)
    return (
        f"Multiple Choice question: {question.question}\n{lines}\n"
        "Respond only with the letter of the correct answer."
    )


def _read_mmlu(record: Any, where: str) -> Lettered | None:
    if isinstance(record, list):
        if len(record) == 6 and record[0] == "question" and record[5] == "answer":
            return None  # the header
        if len(record) != 6 or record[5] not in ("A", "B", "C", "D", "0", "1", "2", "3"):
            raise InputError(
                f"{where}: expected a question, four choices and their letter or number, "
                f"found {len(record)} fields that end in {record[-1]!r}"
            )
        answer = MMLU_LETTERS.index(record[5]) if record[5] in MMLU_LETTERS else int(record[5])
        return Lettered(record[0], MMLU_LETTERS, tuple(record[1:5]), answer)
    mmlu = _convert(record, _Mmlu, where)
    if len(mmlu.choices) != len(MMLU_LETTERS) or not 0 <= mmlu.answer < len(MMLU_LETTERS):
        raise InputError(
            f"{where}: expected four choices and an answer from 0 to 3, "
            f"found {len(mmlu.choices)} and {mmlu.answer}"
        )
    return Lettered(mmlu.question, MMLU_LETTERS, tuple(mmlu.choices), mmlu.answer)


def _read_arc(record: Any, where: str) -> Lettered:
    if isinstance(record, dict) and isinstance(record.get("question"), dict):
        original = _convert(record, _OriginalArc, where)
        question, key = original.question.stem, original.answerKey
        choices = tuple(choice.text for choice in original.question.choices)
        letters = tuple(choice.label for choice in original.question.choices)
    else:
        arc = _convert(record, _Arc, where)
        question, key = arc.question, arc.answerKey
        choices, letters = tuple(arc.choices.text), tuple(arc.choices.label)
    if len(choices) != len(letters) or key not in letters:
        raise InputError(f"{where}: the answer {key!r} is none of the labels {', '.join(letters)}")
    return Lettered(question, letters, choices, letters.index(key))


def _convert(record: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{where}: not the layout that is expected: {error}",
            hint="MMLU and ARC are read as they are published, on the hub or originally",
        ) from error
