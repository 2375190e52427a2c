"""Tasks: named conversions of a dataset's records to conversations.

conversations             unchanged
gsm8k, mmlu               one conversation per record
spelling, spelling_bee    made from a list of words, to teach a small model how its tokens are spelled

    gsm8k         word problems whose `<<expression=result>>` marks become Python calls and their output
    mmlu          a question with lettered choices, answered by the right letter alone; layouts are those of
                  `packline evals chat`, and of the auxiliary training set, nested under `train`
    spelling      Spell the word: apple                 apple: a,p,p,l,e
    spelling_bee  How many p are in the word apple?     the letters one by one with a running count, then the
                                                        same computed in Python, then #### 2

The n-th generated conversation is a pure function of the words, the seed and n: words and phrasings are
chosen by a hash, not by a random generator whose stream may change with a new Python. Words of the held-out
share are never in train. Cost: 5 to 20 microseconds per conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash

from packline.errors import InputError, RecipeError
from packline.fingerprint import split_of
from packline.sources.batch import RecordProblem
from packline.sources.records import files_of, records_of

MARK = re.compile(r"<<([^<>]*)>>")


def read_gsm8k(record: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert a record with question and answer to a conversation.

    >>> talk = read_gsm8k({"question": "1+1?", "answer": "It is <<1+1=2>>2.\\n#### 2"}, {})
    >>> [(part["type"], part["text"]) for part in talk["messages"][1]["content"]]
    [('text', 'It is '), ('python', '1+1'), ('python_output', '2'), ('text', '2.\\n#### 2')]
    """
    question, answer = (
        (record.get(name) for name in ("question", "answer")) if isinstance(record, dict) else (0, 0)
    )
    if not isinstance(question, str) or not isinstance(answer, str):
        raise RecordProblem("not_a_conversation", "expected question and answer, both strings")
    parts = []
    for place, piece in enumerate(MARK.split(answer)):
        if place % 2 == 0:
            parts.append({"type": "text", "text": piece})
            continue
        expression, equals, result = piece.rpartition("=")
        if not equals:
            expression, result = piece, ""
        parts.append({"type": "python", "text": expression})
        parts.append({"type": "python_output", "text": result})
    said = [part for part in parts if part["text"] or part["type"] != "text"]
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": said}]}


def read_mmlu(record: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert a record to a conversation.

    >>> talk = read_mmlu({"question": "Sky?", "choices": ["red", "blue", "green", "grey"], "answer": 1}, {})
    >>> talk["messages"][1]["content"]
    'B'
    """
    if isinstance(record, dict) and isinstance(record.get("train"), dict):
        record = record["train"]
    try:
        question = lettered_mmlu(record, "the record")
    except InputError as error:
        raise RecordProblem("not_a_conversation", str(error)) from error
    if question is None:
        raise RecordProblem("not_a_conversation", "the names of columns")
    asked, said = render(question), question.letters[question.gold]
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


LETTERS = "abcdefghijklmnopqrstuvwxyz"
OTHER_LETTER = 10
"""One question in this many is about a letter that may not be in the word."""
QUESTIONS = (
    "How many {letter} are in the word {word}",
    "How many times does {letter} appear in {word}",
    "Count the {letter} in {word}",
    "What is the number of {letter} in the word {word}",
    "In {word}, how often do you see the letter {letter}",
    "Tell me how many {letter} there are in {word}",
    "{word}: how many {letter} does it have",
    "Number of times {letter} occurs in {word}",
)
QUOTES = ("", "'", '"')


class SpellingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the tasks."""

    count: int
    """Number of conversations."""
    seed: int = 0
    held_out: float = 0.05
    """Fraction of the words (by their hash) used only with `of = "held_out"`."""
    of: str = "train"
    """Words to use: train, or held_out."""


def spelling(words: Sequence[str], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Generate conversations in which words are spelled.

    >>> next(spelling(["apple"], {"count": 1, "held_out": 0.0}))["messages"][1]["content"]
    'apple: a,p,p,l,e'
    """
    chosen, said = _choose(words, options)
    for number in range(said.count):
        word = chosen[_draw(said.seed, number, "word", len(chosen))]
        yield _conversation(f"Spell the word: {word}", f"{word}: {','.join(word)}")


def spelling_bee(words: Sequence[str], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Generate conversations in which letters are counted.

    >>> talk = next(spelling_bee(["apple"], {"count": 1, "held_out": 0.0}))
    >>> [part["type"] for part in talk["messages"][1]["content"]]
    ['text', 'python', 'python_output', 'text']
    """
    chosen, said = _choose(words, options)
    for number in range(said.count):

        def draw(what: str, size: int, number: int = number) -> int:
            return _draw(said.seed, number, what, size)

        word = chosen[draw("word", len(chosen))]
        own = draw("whose letter", OTHER_LETTER) > 0
        letter = word[draw("letter", len(word))] if own else LETTERS[draw("letter", len(LETTERS))]
        quotes = [QUOTES[draw(f"quote of {what}", len(QUOTES))] for what in ("letter", "word")]
        asked = QUESTIONS[draw("question", len(QUESTIONS))].format(
            letter=f"{quotes[0]}{letter}{quotes[0]}", word=f"{quotes[1]}{word}{quotes[1]}"
        )
        yield _conversation(asked + "?" * draw("question mark", 2), _count_out(word, letter))


GENERATORS = {"spelling": spelling, "spelling_bee": spelling_bee}
"""Tasks whose file is a list of words, one per line."""


def read_words(data: bytes, where: str) -> list[str]:
    """Read a list of words, in its order: letters a to z only, without duplicates."""
    lines = data.decode("utf-8", "replace").split()
    words = list(
        dict.fromkeys(word for word in lines if word.isascii() and word.isalpha() and word.islower())
    )
    if not words:
        raise InputError(f"{where} has no words", hint="expected a word of letters a to z a line")
    return words


def _choose(words: Sequence[str], options: dict[str, Any]) -> tuple[list[str], SpellingOptions]:
    try:
        said = msgspec.convert(options, SpellingOptions)
    except msgspec.ValidationError as error:
        raise RecipeError(f"options of spelling: {error}") from error
    if said.of not in ("train", "held_out") or said.count < 1:
        raise RecipeError("options of spelling: expected of = train or held_out, and a count from 1")
    wanted = "val" if said.of == "held_out" else "train"
    chosen = [word for word in words if split_of(word.encode(), said.seed, said.held_out) == wanted]
    if not chosen:
        raise InputError(f"no words are {said.of}", hint="the list is short: choose another held_out")
    return chosen, said


def _draw(seed: int, number: int, what: str, size: int) -> int:
    """Pseudorandom number below `size`: the same in every Python."""
    return xxhash.xxh3_64_intdigest(f"{number} {what}".encode(), seed) % size


def _count_out(word: str, letter: str) -> list[dict[str, str]]:
    lines, count = [], 0
    for place, one in enumerate(word, 1):
        count += one == letter
        lines.append(f"{place}:{one}" + (f" yes, that makes {count}" if one == letter else ""))
    spelled = f"I spell {word} first: {','.join(word)}\n\nNow I look for {letter}, letter by letter:\n\n"
    by_hand = spelled + "\n".join(lines) + f"\n\nThat is {count}. Python can check it:\n\n"
    return [
        {"type": "text", "text": by_hand},
        {"type": "python", "text": f"'{word}'.count('{letter}')"},
        {"type": "python_output", "text": str(count)},
        {"type": "text", "text": f"\n\nPython counts {count} too.\n\n#### {count}"},
    ]


def _conversation(asked: str, said: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}


Adapter = Callable[[Any, dict[str, Any]], Any]
"""Converts a record, with the task's options, to a conversation of a known shape; raises `RecordProblem`."""


def as_it_is(record: Any, options: dict[str, Any]) -> Any:
    """Return a record that is a conversation already."""
    return record


ADAPTERS: dict[str, Adapter] = {
    "conversations": as_it_is,
    "gsm8k": read_gsm8k,
    "mmlu": read_mmlu,
    **dict.fromkeys(GENERATORS, as_it_is),
}


def adapter_of(task: str) -> Adapter:
    """Adapter of a task.

    >>> adapter_of("conversations")([], {})
    []
    """
    if task not in ADAPTERS:
        raise RecipeError(f"unknown task {task!r}: expected one of {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[task]


def file_kind(task: str, name: str) -> Literal["jsonl", "text"]:
    """Kind of a task's files other than Parquet: text is a list of words, or a table (CSV)."""
    adapter_of(task)
    return "text" if task in GENERATORS or (task == "mmlu" and name.endswith(".csv")) else "jsonl"


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

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right answer."""
        return f"{self.question}{delimiter}{self.choices[self.gold]}"


class Mmlu(msgspec.Struct):
    """A record of MMLU."""

    question: str
    choices: list[str]
    answer: int

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right answer."""
        return f"{self.question}{delimiter}{self.choices[self.answer]}"


class _Choices(msgspec.Struct):
    text: list[str]
    label: list[str]


class Arc(msgspec.Struct):
    """A record of ARC on the hub."""

    question: str
    choices: _Choices
    answerKey: str

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right answer."""
        return f"{self.question}{delimiter}{self.choices.text[self.choices.label.index(self.answerKey)]}"


class _LabelledChoice(msgspec.Struct):
    text: str
    label: str


class _Stem(msgspec.Struct):
    stem: str
    choices: list[_LabelledChoice]


class OriginalArc(msgspec.Struct):
    """A record of ARC as it was first published."""

    question: _Stem
    answerKey: str

    def answered(self, delimiter: str = " ") -> str:
        """The question with its right answer."""
        choices = {choice.label: choice.text for choice in self.question.choices}
        return f"{self.question.stem}{delimiter}{choices.get(self.answerKey, '')}"


def read_lettered(path: str, kind: Kind) -> list[Lettered]:
    """Read the questions of a file or folder, in the order of files and lines.

    Of several splits only files with `test` in their names are read.
    """
    read: Callable[[Any, str], Lettered | None] = lettered_mmlu if kind == "mmlu" else _read_arc
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


def lettered_mmlu(record: Any, where: str) -> Lettered | None:
    """Question of a record, or of a row of CSV; None for a header."""
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
    mmlu = _convert(record, Mmlu, where)
    if len(mmlu.choices) != len(MMLU_LETTERS) or not 0 <= mmlu.answer < len(MMLU_LETTERS):
        raise InputError(
            f"{where}: expected four choices and an answer from 0 to 3, "
            f"found {len(mmlu.choices)} and {mmlu.answer}"
        )
    return Lettered(mmlu.question, MMLU_LETTERS, tuple(mmlu.choices), mmlu.answer)


def _read_arc(record: Any, where: str) -> Lettered:
    if isinstance(record, dict) and isinstance(record.get("question"), dict):
        original = _convert(record, OriginalArc, where)
        question, key = original.question.stem, original.answerKey
        choices = tuple(choice.text for choice in original.question.choices)
        letters = tuple(choice.label for choice in original.question.choices)
    else:
        arc = _convert(record, Arc, where)
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
