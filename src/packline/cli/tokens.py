"""A document's tokens made visible: each in a separate color, or between bars where there is no color.

    d│ef│ train│_│b│pe│(        one token each
    漢字                        several tokens that only together form characters

Cost: quadratic in the tokens shown, but only as many are decoded as fit in the lines: 0.3 milliseconds for
four lines of a document of a million tokens. `viewing.cells` is linear, but first needs the table of the
whole vocabulary, which takes longer to create than everything else here. Boundary tokens and other special
tokens are marked, regardless of their text.
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
"""Maximum tokens combined while a character is incomplete; no character needs more."""


def split_text(tokenizer: Any, ids: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Yield pieces of a text and the ids of each; joined, the pieces are the decoded text.

    Args:
        tokenizer: a tokenizer of HF `tokenizers`.
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
    """Beginning of a document, in at most `lines` lines of `width` columns.

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
            if place:  # the text has begun a new line
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
    """Text of a token, split at line ends, which stay visible."""
    parts = text.replace("\r\n", "\n").split("\n")
    return [part + "\n" for part in parts[:-1]] + parts[-1:]
