"""Tokens as cells: one cell per token, or one for several tokens that only together form a character.

    ids      12  262   165   108  95  50256       0      0
    bytes    d   ' of' e6    bc   a2  --          --     --
    cells    d | ' of' | 漢 (three tokens) | <|endoftext|> | padding | padding

Bytes are joined in order: a cell continues while its last character is incomplete. Bytes that are not UTF-8,
such as half a character at the edge of a row, are shown as `\\xNN` and do not affect neighbouring cells.

Cost: linear, about 2.5 microseconds per token. Rendering is done by `terminal` and `html`.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterator
from typing import Literal

import numpy as np

from packline.viewing.page import Cell
from packline.viewing.text import JOINERS, MARKS_MOST, visible
from packline.viewing.vocabulary import Vocabulary

IGNORED = -100
"""Target of a position that is not trained on."""
LOSS = {1: True, 0: False, -1: None}

Kind = Literal["text", "space", "break", "escape"]


def cells_of(
    vocabulary: Vocabulary,
    ids: np.ndarray,
    *,
    learned: np.ndarray | None = None,
    position_ids: np.ndarray | None = None,
    segment_ids: np.ndarray | None = None,
    first: int = 0,
) -> tuple[Cell, ...]:
    """Cells of a range of tokens.

    Args:
        ids: integers `[T]`.
        learned: int8 `[T]`: 1 for a token that is a target, 0 for one that is not, -1 if unknown.
        position_ids: integers `[T]`; default: count from `first`.
        segment_ids: integers `[T]`, -1 at padding; default: one segment.
        first: position of the first token.

    Raises:
        TokenizerError: an id is outside the vocabulary.

    >>> vocabulary = Vocabulary("tiny", [b"caf", b"\\xc3", b"\\xa9", b""], {3: "</s>"})
    >>> [(cell.text, cell.ids) for cell in cells_of(vocabulary, np.array([0, 1, 2, 1, 3]))]
    [('caf', (0,)), ('é', (1, 2)), ('\\\\xc3', (1,)), ('</s>', (3,))]
    """
    vocabulary.check(ids, "these tokens")
    count = len(ids)
    positions = (np.arange(first, first + count) if position_ids is None else position_ids).tolist()
    segments = [0] * count if segment_ids is None else segment_ids.tolist()
    known: list[int] = [-1] * count if learned is None else learned.tolist()
    numbers, data, special = ids.tolist(), vocabulary.data, vocabulary.special
    cells: list[Cell] = []
    for start, stop in _groups(numbers, segments, vocabulary):
        held = tuple(numbers[start:stop])
        padding, name = segments[start] < 0, None
        if stop - start == 1:
            name, content, loss = special.get(held[0]), data[held[0]], LOSS[known[start]]
        else:
            flags = known[start:stop]
            content = b"".join([data[one] for one in held])
            loss = LOSS[0 if 0 in flags else min(flags)]
        if padding or name is not None:
            content = b""
        elif not content:
            name = f"id {held[0]}"  # an id without a token: a gap in the vocabulary
        cells.append(
            Cell(
                text=name if name is not None else content.decode("utf-8", "backslashreplace"),
                ids=held,
                data=content,
                position=positions[start],
                segment=segments[start],
                special=name is not None and not padding,
                padding=padding,
                loss=loss,
                starts=not padding and (start == 0 or segments[start - 1] != segments[start]),
            )
        )
    return tuple(cells)


def learned_of(targets: np.ndarray, position_ids: np.ndarray | None = None) -> np.ndarray:
    """Tokens of a row that are learned, int8 `[L]`: 1 or 0, and -1 (unknown) for the first.

    A token is learned if it is the target of the position before it. The first token of a document is never
    learned.

    Args:
        targets: integers `[L]`, -100 where there is none.
        position_ids: integers `[L]`, positions within documents.

    >>> learned_of(np.array([5, -100, 7])).tolist()
    [-1, 1, 0]
    """
    found = np.empty(len(targets), np.int8)
    if len(found):
        found[1:] = targets[:-1] != IGNORED
        begins = position_ids is not None and position_ids[0] == 0
        found[0] = 0 if begins else -1
    return found


def _groups(ids: list[int], segments: list[int], vocabulary: Vocabulary) -> Iterator[tuple[int, int]]:
    """Start and end positions of the tokens of each cell."""
    data, special = vocabulary.data, vocabulary.special
    start, tail = 0, b""
    for place, number in enumerate(ids):
        one = data[number]
        alone = number in special or not one or segments[place] < 0
        if tail and (alone or segments[place] != segments[place - 1] or not _goes_on(tail, one)):
            yield start, place
            start, tail = place, b""
        if alone:
            yield place, place + 1
            start = place + 1
            continue
        whole = tail + one
        if whole.isascii():
            yield start, place + 1
            start = place + 1
            continue
        _, taken = codecs.utf_8_decode(whole, "backslashreplace", False)
        tail = whole[taken:]
        if not tail:
            yield start, place + 1
            start = place + 1
    if tail:
        yield start, len(ids)


def _goes_on(tail: bytes, more: bytes) -> bool:
    """True if `more` completes, or at least continues, the character that begins with the bytes `tail`."""
    lead = tail[0]
    length = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    try:
        codecs.utf_8_decode((tail + more)[:length], "strict", False)
    except UnicodeDecodeError:
        return False
    return True


def shown(cell: Cell) -> list[tuple[str, Kind]]:
    """Split the text of a cell into pieces that can be rendered anywhere, each with its kind.

    A line end is `↵` of kind `break`: a new line may follow it. Tabs, and white space that would be hidden,
    are of kind `space`. Bytes that are not UTF-8, and characters with an effect on a page, are of kind
    `escape`, so that they differ from a text that looks the same.

    >>> shown(Cell("if\\\\n\\\\x00", (1,), b"if\\n\\x00", 0))
    [('if', 'text'), ('↵', 'break'), ('\\\\x00', 'escape')]
    """
    if cell.special or cell.padding:
        return [(visible(cell.text), "text")]
    if cell.data.isascii() and not cell.data.isspace():
        text = cell.data.decode()
        if text.isprintable():
            return [(text, "text")]
    pieces: list[tuple[str, Kind]] = []
    for text, valid in _parts(cell.data):
        pieces += _pieces(text) if valid else [(text, "escape")]
    if all(kind == "space" or text.isspace() for text, kind in pieces):
        pieces = [(text.replace(" ", "·"), "space") for text, _ in pieces]
    return _joined(pieces)


def _parts(data: bytes) -> Iterator[tuple[str, bool]]:
    """Split bytes into text (True) and escapes of bytes that are not UTF-8 (False)."""
    while data:
        try:
            yield data.decode(), True
            return
        except UnicodeDecodeError as error:
            if error.start:
                yield data[: error.start].decode(), True
            yield "".join(f"\\x{byte:02x}" for byte in data[error.start : error.end]), False
            data = data[error.end :]


def _pieces(text: str) -> Iterator[tuple[str, Kind]]:
    marks, base = 0, False
    for character in text:
        category = unicodedata.category(character)
        if category[0] == "M":
            marks += 1
            if category != "Mc" and not base:
                yield "◌" + character, "text"  # it would combine with the character before the cell
                base = True
            elif marks > MARKS_MOST:
                yield _escaped(character), "escape"
            else:
                yield character, "text"
            continue
        joiner = character in JOINERS
        marks = marks if joiner else 0
        if joiner and base:
            yield character, "text"
            continue
        base = False
        if character == "\n":
            yield "↵", "break"
        elif character == "\t":
            yield "→", "space"
        elif joiner or (category == "Zs" and character not in " \u3000") or visible(character) != character:
            yield _escaped(character), "escape"
        else:
            base = True
            yield character, "text"


def _escaped(character: str) -> str:
    """Escape of a character as its number; `\\x9b` is reserved for the byte, which differs from U+009B."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _joined(pieces: list[tuple[str, Kind]]) -> list[tuple[str, Kind]]:
    """Join neighbouring pieces of one kind, but keep each line end separate."""
    joined: list[tuple[str, Kind]] = []
    for text, kind in pieces:
        if joined and joined[-1][1] == kind != "break":
            joined[-1] = (joined[-1][0] + text, kind)
        else:
            joined.append((text, kind))
    return joined
