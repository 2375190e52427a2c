"""Runs made up for tests."""

from __future__ import annotations

from typing import Any

from benchmarks.catalogue import Kind
from benchmarks.results import Run


def run(contender: str, kind: Kind, **changes: Any) -> Run:
    """A run on `english` of 10 documents, 1000 bytes, with what a test wants to be otherwise."""
    fields: dict[str, Any] = {
        "corpus": "english",
        "tokenizer": "t",
        "round": 1,
        "documents": 10,
        "tokens": 300,
        "text_bytes": 1000,
        "wall_seconds": 4.0,
        "seconds": 2.0,
    }
    return Run(contender=contender, kind=kind, **{**fields, **changes})
