"""Prompts of CORE questions: shots, then the question, then a possible answer.

    multiple_choice     query    delimiter choice         one prompt per choice
    schema              context  delimiter continuation   one prompt per context
    language_modeling   context  delimiter continuation   two prompts: without and with the continuation

A shot is the same with the right choice, followed by an empty line. The context of a language-modeling
question, and of its shots, loses white space at both ends, and so does the whole prompt without the
continuation: otherwise its last space would become part of the first token to predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

TaskType = Literal["multiple_choice", "schema", "language_modeling"]
Words: TypeAlias = str | int | float
"""Some published sets have a number in place of its digits."""


class Choice(msgspec.Struct, frozen=True):
    """A question about the best continuation among choices."""

    query: Words
    choices: list[Words]
    gold: int


class Schema(msgspec.Struct, frozen=True):
    """A question about the context that fits a continuation."""

    context_options: list[Words]
    continuation: Words
    gold: int


class Continuation(msgspec.Struct, frozen=True):
    """A question about the exact continuation."""

    context: Words
    continuation: Words


Question: TypeAlias = Choice | Schema | Continuation
KINDS: dict[TaskType, type[Question]] = {
    "multiple_choice": Choice,
    "schema": Schema,
    "language_modeling": Continuation,
}


def prompts_of(question: Question, shots: Sequence[Question], delimiter: str) -> list[str]:
    """Prompts of one question.

    >>> prompts_of(Choice("Sky?", ["red", "blue"], 1), [Choice("Grass?", ["green", "red"], 0)], " A: ")
    ['Grass? A: green\\n\\nSky? A: red', 'Grass? A: green\\n\\nSky? A: blue']
    >>> prompts_of(Continuation("One, two, ", "three"), [], " ")
    ['One, two,', 'One, two, three']
    """
    before = "".join(f"{answered(shot, delimiter)}\n\n" for shot in shots)
    if isinstance(question, Choice):
        return [f"{before}{question.query}{delimiter}{choice}" for choice in question.choices]
    if isinstance(question, Schema):
        after = f"{delimiter}{question.continuation}"
        return [f"{before}{context}{after}" for context in question.context_options]
    without = f"{before}{str(question.context).strip()}{delimiter}"
    return [without.strip(), f"{without}{question.continuation}"]


def answered(question: Question, delimiter: str) -> str:
    """A question with its right answer: the text of a shot, and of the contamination check.

    >>> answered(Schema(["He", "She"], "left.", 1), " ")
    'She left.'
    """
    if isinstance(question, Choice):
        return f"{question.query}{delimiter}{question.choices[question.gold]}"
    if isinstance(question, Schema):
        return f"{question.context_options[question.gold]}{delimiter}{question.continuation}"
    return f"{str(question.context).strip()}{delimiter}{question.continuation}"
