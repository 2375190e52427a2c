"""Docstrings are plain standard English: habits that the field does not have may only become fewer."""

from __future__ import annotations

import ast
from collections import Counter

import pytest
from tools.house import mannerisms, modules

MOST = 21
"""Hits in all docstrings. Lower it when they become fewer; it never rises."""


def test_mannerisms_do_not_become_more() -> None:
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}
    hits = mannerisms(trees)
    habits = Counter(habit for habit, *_ in hits)
    assert len(hits) <= MOST, f"{len(hits)} hits ({dict(habits)}); python -m tools.house --list mannerisms"


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("What came of an import.", "headless clause"),
        ("What a store says of itself.", "says"),
        ("Bytes a token.", "a for per"),
        ("An import, or go on with one that goes on.", "goes on"),
        ("Take so many rows.", "so many"),
    ],
)
def test_a_mannerism_is_noticed(text: str, habit: str) -> None:
    tree = ast.parse(f'def f() -> None:\n    """{text}"""\n')
    assert habit in {found for found, *_ in mannerisms({"m": tree})}


def test_plain_english_is_not_counted() -> None:
    tree = ast.parse('def f() -> None:\n    """Result of an import: bytes per token, rows per batch."""\n')
    assert mannerisms({"m": tree}) == []
