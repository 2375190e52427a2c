"""Tasks: how the records of a data set become conversations, by name.

An adapter takes a record and gives what `read_conversation` knows. A data set that is made rather than read
(`spelling`) gives its records itself: see `GENERATORS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from packline.errors import RecipeError

Adapter = Callable[[Any, dict[str, Any]], Any]
"""A record and the task's options to a conversation in a known shape; raises `Malformed`."""


def as_it_is(record: Any, options: dict[str, Any]) -> Any:
    """A record that is a conversation already."""
    return record


ADAPTERS: dict[str, Adapter] = {"conversations": as_it_is}


def adapter_of(task: str) -> Adapter:
    """The adapter of a task.

    Raises:
        RecipeError: there is no such task.

    >>> adapter_of("conversations")([], {})
    []
    """
    if task not in ADAPTERS:
        raise RecipeError(f"unknown task {task!r}: expected one of {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[task]


def kind_of(task: str) -> Literal["jsonl", "text"]:
    """What a task's files are, where they are not Parquet."""
    adapter_of(task)
    return "jsonl"
