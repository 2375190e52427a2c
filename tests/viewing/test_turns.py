"""Turns of conversations: the blocks of a strip are those of its control tokens, and no token moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.viewing.page import Cell, DocumentOrigin, TokenStrip
from packline.viewing.turns import turns_in, with_turns

BODIES = st.lists(st.sampled_from(["user", "assistant", "hi", " there", "\n", "<|im_end|>"]), max_size=6)
TURNS = st.lists(BODIES.map(lambda body: ["<|im_start|>", "user", "\n", *body]), max_size=3)
DOCUMENTS = st.tuples(BODIES, TURNS).map(
    lambda parts: [*parts[0], *(one for turn in parts[1] for one in turn)]
)


def cells_of(texts: list[str], segment: int = 0) -> list[Cell]:
    return [
        Cell(one, (number,), one.encode(), number, segment=segment, special=one[0] in "<[")
        for number, one in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("texts", "roles"),
    [
        ("<|start_header_id|> user <|end_header_id|> hi <|eot_id|>", ["user"]),
        ("<|bos|> <|user_start|> hi <|user_end|> <|assistant_start|> a", ["user", "assistant"]),
        ("[INST] hi [/INST] a", ["user", "assistant"]),
        ("<|im_start|> <|im_end|>", []),
        ("<|system|> hi <|assistant|> a", ["system", "assistant"]),
        ("plain text", []),
    ],
)
def test_turns_of_the_usual_formats(texts: str, roles: list[str]) -> None:
    cells = [Cell(one, (0,), one.encode(), 0, special=one[0] in "<[") for one in texts.split(" ")]
    assert [role for _, role in turns_in(cells)] == roles


@given(st.lists(DOCUMENTS.filter(bool), max_size=4), st.integers(0, 3))
def test_each_turn_of_a_row_is_a_block_and_no_token_moves(documents: list[list[str]], padding: int) -> None:
    cells = [cell for number, texts in enumerate(documents) for cell in cells_of(texts, number)]
    cells += [Cell("", (0,), b"", number, -1, padding=True) for number in range(padding)]
    origins = tuple(
        DocumentOrigin(number, 10 + number, "origin", f"/document/{10 + number}")
        for number in range(len(documents))
    )
    strip = TokenStrip("row", tuple(cells), origins)
    shown = with_turns(strip)
    assert [replace(cell, segment=0) for cell in shown.cells] == [replace(cell, segment=0) for cell in cells]
    starts = sum(text == "<|im_start|>" for texts in documents for text in texts)
    before = sum(texts[0] != "<|im_start|>" for texts in documents)
    if not starts:
        assert shown is strip
        return
    blocks = {
        number: list(group)
        for number, group in groupby(shown.cells, lambda cell: cell.segment)
        if number >= 0
    }
    assert len(blocks) == len(shown.origins) == starts + before
    assert all(text.text != "<|im_start|>" for block in blocks.values() for text in block[1:])
    links = [(origin.document, origin.href) for origin in shown.origins if origin.href]
    assert links == [(10 + number, f"/document/{10 + number}") for number in range(len(documents))]
    assert not any("document" in origin.title for origin in shown.origins if not origin.href)
    titles = [origin.title for origin in shown.origins if origin.href]
    assert all(
        title in ("", f"document {10 + number}: user", f"document {10 + number}: before the first turn")
        for number, title in enumerate(titles)
    )
