"""Lines of a terminal as data: pieces of text with the names of styles, and tables of them.

The appearance of styles, if any, is decided where lines are printed (`cli.output`). Every text passes
through `visible`, so nothing in a document or a file name can control a terminal.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from packline.viewing.text import cells, pad, visible

Piece = str | tuple[str, str]
Line = Sequence[Piece]


def plain(pieces: Line) -> str:
    """Text of a line without styles.

    >>> plain(["a ", ("b", "title")])
    'a b'
    """
    return "".join(visible(piece if isinstance(piece, str) else piece[0]) for piece in pieces).rstrip()


def table(
    rows: Sequence[Line], aligned: str, *, indent: int = 2, gap: int = 2, width: int | None = None
) -> list[Line]:
    """Rows of cells as lines with aligned columns.

    Args:
        aligned: `l` or `r` for each column.
        width: columns of the terminal; a last cell that exceeds it is wrapped below itself.

    >>> [plain(line) for line in table([["a", "1"], ["long", "1,000"]], "lr")]
    ['  a         1', '  long  1,000']
    """
    texts = [[visible(cell if isinstance(cell, str) else cell[0]) for cell in row] for row in rows]
    widths = [
        max((cells(row[place]) for row in texts if place < len(row)), default=0)
        for place in range(len(aligned))
    ]
    start = indent + sum(widths[:-1]) + gap * (len(aligned) - 1)
    room = max((width or sys.maxsize) - start, 24)
    lines: list[Line] = []
    for row, row_texts in zip(rows, texts, strict=True):
        line: list[Piece] = [" " * indent]
        first, *more = wrapped(row_texts[-1], room) if len(row) == len(aligned) else [row_texts[-1]]
        for place, (cell, text) in enumerate(zip(row, [*row_texts[:-1], first], strict=True)):
            last = place == len(row) - 1 and aligned[place] == "l"
            padded = text if last else pad(text, widths[place], right=aligned[place] == "r")
            line += [padded if isinstance(cell, str) else (padded, cell[1]), " " * gap]
        lines.append(line[:-1])
        style = "" if isinstance(row[-1], str) else row[-1][1]
        lines += [[" " * start, (text, style)] for text in more]
    return lines


def wrapped(text: str, room: int) -> list[str]:
    """Wrap a text at spaces only, so that paths and commands stay whole.

    >>> wrapped("a few words", 6)
    ['a few', 'words']
    """
    if cells(text) <= room or text.startswith(" "):
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [text]
