"""MMLU as conversations: a question with lettered choices, answered by the right letter alone.

The layouts are those of `packline evals chat`, and that of the auxiliary training set, whose records are
nested under `train`.
"""

from __future__ import annotations

from typing import Any

from packline.chat.questions import _read_mmlu, render
from packline.errors import InputError
from packline.sources.batch import RecordProblem


def read_mmlu(record: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert a record to a conversation.

    Raises:
        RecordProblem: a record of another layout.

    >>> talk = read_mmlu({"question": "Sky?", "choices": ["red", "blue", "green", "grey"], "answer": 1}, {})
    >>> talk["messages"][1]["content"]
    'B'
    """
    if isinstance(record, dict) and isinstance(record.get("train"), dict):
        record = record["train"]
    try:
        question = _read_mmlu(record, "the record")
    except InputError as error:
        raise RecordProblem("not_a_conversation", str(error)) from error
    if question is None:
        raise RecordProblem("not_a_conversation", "the names of columns")
    asked, said = render(question), question.letters[question.gold]
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}
