"""A document's tokens for the eye: each a color of its own, or between bars where there is no color.

    d│ef│ train│_│b│pe│(        a token each
    漢字                        several tokens where only together they are characters

Cost: the square of the tokens that are shown, and no more of them are decoded than fit in the lines: 0.3
milliseconds for four lines of a document of a million tokens. `viewing.cells` is linear, but wants the table
of the whole vocabulary first, which takes longer to make than all else here. Boundary tokens and other
special tokens are marked, whatever text they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from packline.cli.output import Line, Piece
from packline.viewing.text import cells, visible

MOST_TOKENS = 400
COLORS = 5
UNKNOWN = "\ufffd"
HELD_MOST = 16
"""Tokens that are held together in the hope of a whole character; no character takes more."""


def split_text(tokenizer: Any, ids: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Pieces of a text and the ids behind each; joined, the pieces are the decoded text.

    Args:
        tokenizer: of HF `tokenizers`.
    """
    before = ""
    held: list[int] = []
    for place, number in enumerate(ids):
        held.append(number)
        text = str(tokenizer.decode(ids[: place + 1], skip_special_tokens=False))
        whole = text.startswith(before) and not text.endswith(UNKNOWN)
        if whole or len(held) == HELD_MOST:
            yield text[len(before) :], held
            before, held = text, []
    if held:
        text = str(tokenizer.decode(ids, skip_special_tokens=False))
        yield text[len(before) :], held


def document_lines(
    tokenizer: Any, tokens: np.ndarray, special: set[int], width: int, lines: int, color: bool
) -> list[Line]:
    """The beginning of a document, `lines` lines at most of `width` columns.

    Args:
        tokens: integers `[T]`, boundary tokens included.
        special: ids that are marked as control tokens.
    """
    ids = tokens[:MOST_TOKENS].tolist()
    rows: list[Line] = []
    row: list[Piece] = []
    used = 0
    for number, (text, held) in enumerate(split_text(tokenizer, ids)):
        is_control = any(one in special for one in held)
        style = "control" if is_control else f"token-{number % COLORS}"
        for place, line in enumerate(_shown_lines(text)):
            if place:  # the text went on to a new line
                rows.append(row)
                row, used = [], 0
            bar = "" if color or not used or place else "│"
            room = cells(visible(bar + line))
            if used and used + room > width:
                rows.append(row)
                row, used, bar = [], 0, ""
            row += [(bar, "quiet"), (line, style)]
            used += room
        if len(rows) >= lines:
            break
    else:
        rows.append(row)
        if len(ids) == len(tokens):
            return rows[:lines]
    rows = rows[:lines]
    rows[-1] = [*rows[-1], (" …", "quiet")]
    return rows


def _shown_lines(text: str) -> list[str]:
    """A token's text, broken where the text breaks; the line end itself stays visible."""
    parts = text.replace("\r\n", "\n").split("\n")
    return [part + "\n" for part in parts[:-1]] + parts[-1:]
