"""Tasks: named conversions of a dataset's records to conversations.

conversations             unchanged
gsm8k, mmlu               one conversation per record
spelling, spelling_bee    made from a list of words (see `spelling.GENERATORS`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from packline.chat.gsm8k import read_gsm8k
from packline.chat.mmlu import read_mmlu
from packline.chat.spelling import GENERATORS
from packline.errors import RecipeError

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

    Raises:
        RecipeError: there is no such task.

    >>> adapter_of("conversations")([], {})
    []
    """
    if task not in ADAPTERS:
        raise RecipeError(f"unknown task {task!r}: expected one of {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[task]


def kind_of(task: str, name: str) -> Literal["jsonl", "text"]:
    """Kind of a task's files other than Parquet: text is a list of words, or a table (CSV)."""
    adapter_of(task)
    return "text" if task in GENERATORS or (task == "mmlu" and name.endswith(".csv")) else "jsonl"
