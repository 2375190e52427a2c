"""Human-readable numbers and sizes, and text made safe to print.

All printed text passes through `visible`, since a document or a file name may contain escape sequences.
Widths are counted in terminal columns. A line consists of pieces, each a text or a text with the name of a
style.
"""

from __future__ import annotations

import re
import sys
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path

JOINERS = "\u200c\u200d"
"""Format characters that are kept: scripts and emoji need them, and they do not move text."""
STACK = re.compile("[^\\x00-\\x7f]{5,}")
"""Runs of characters that may contain too many combining marks."""
MARKS_MOST = 4
"""Maximum combining marks shown on one letter; scripts need three, a prank has a hundred."""

Piece = str | tuple[str, str]
Line = Sequence[Piece]


def visible(text: str) -> str:
    """Make a text safe to print: no character of the result controls a terminal.

    Line ends become `↵`, tabs `→`, other control characters their Unicode pictures or `\\x..`. Characters
    that reverse the direction of writing, surrogates, and combining marks from the fifth on one letter become
    `\\u....`.

    >>> visible("a\\x1b[2Jb\\n"), visible("\\u202egnp.exe")
    ('a␛[2Jb↵', '\\\\u202egnp.exe')
    """
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(map(_visible_character, text))
    return STACK.sub(_unstacked, shown) if any(map(unicodedata.combining, shown)) else shown


def _unstacked(match: re.Match[str]) -> str:
    marks, found = 0, []
    for character in match[0]:
        if character not in JOINERS:
            marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        found.append(character if marks <= MARKS_MOST else _escaped(character))
    return "".join(found)


def _visible_character(character: str) -> str:
    if character == "\n":
        return "↵"
    if character == "\t":
        return "→"
    if character == "\x7f":
        return "␡"
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in JOINERS:
        return _escaped(character)
    return character


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cells(text: str) -> int:
    """Number of terminal columns that a text takes.

    >>> cells("abc"), cells("漢字"), cells("cafe\\u0301")
    (3, 4, 4)
    """
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf") else 1


def cut(text: str, width: int) -> str:
    """Cut a text to at most `width` columns, with `…` in place of what is missing.

    >>> cut("one line", 20), cut("one line", 4), cut("漢字漢字", 5)
    ('one line', 'one…', '漢字…')
    """
    if cells(text) <= width:
        return text
    used = 0
    for place, character in enumerate(text):
        used += _cells_of(character)
        if used > width - 1:
            return text[:place] + "…"
    return text


def pad(text: str, width: int, right: bool = False) -> str:
    """Pad a text with spaces after it, or before it, to `width` columns.

    >>> pad("ab", 4), pad("漢", 4, right=True)
    ('ab  ', '  漢')
    """
    space = " " * max(width - cells(text), 0)
    return space + text if right else text + space


def size(count: float) -> str:
    """Format bytes with a decimal unit.

    >>> size(17), size(8_020_284), size(1.5e12)
    ('17 B', '8.0 MB', '1.5 TB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    return f"{scaled(count)}B"


def scaled(count: float) -> str:
    """Format a number with a decimal unit, to about three digits.

    >>> scaled(950), scaled(12_345), scaled(2_553_926)
    ('950', '12 k', '2.6 M')
    """
    if count < 999.5:
        return f"{count:.0f}"
    units = iter("kMGTP")
    unit = ""
    while count >= 999.5:
        count, unit = count / 1000, next(units)
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"


def duration(seconds: float) -> str:
    """Format seconds for people.

    >>> duration(0.52), duration(75), duration(7260)
    ('0.5 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(seconds: float) -> str:
    """Estimate of the remaining time, no more exact than it is.

    >>> time_left(4.2), time_left(18.7), time_left(100), time_left(7260)
    ('about 5 s left', 'about 20 s left', 'about 2 min left', 'about 2 h 01 min left')
    """
    if seconds < 60:
        step = 5 if seconds < 30 else 10
        return f"about {-(-int(seconds) // step) * step or 1} s left"
    if seconds < 3600:
        return f"about {round(seconds / 60)} min left"
    return f"about {duration(seconds)} left"


def percent(share: float) -> str:
    """Format a share of one as a percentage.

    >>> percent(0.1234), percent(0.00042), percent(0)
    ('12.3%', '0.042%', '0%')
    """
    if share and share < 0.001:
        return f"{100 * share:.2g}%"
    return "0%" if not share else f"{100 * share:.1f}%"


def bar(share: float, width: int) -> tuple[str, str]:
    """Progress bar of `width` columns: the part done, and the part left.

    >>> bar(0.5, 6)
    ('━━━', '───')
    """
    done = round(max(0.0, min(share, 1.0)) * width)
    return "━" * done, "─" * (width - done)


def plural(count: int, noun: str, many: str = "") -> str:
    """Format a count and its noun.

    >>> plural(1, "file"), plural(1200, "file"), plural(2, "process", "processes")
    ('1 file', '1,200 files', '2 processes')
    """
    return f"{count:,} " + (noun if count == 1 else many or f"{noun}s")


def units_of(count: int, *, is_exact: bool) -> str:
    """Format a number of units, which may be an estimate.

    >>> units_of(1, is_exact=True), units_of(12, is_exact=False)
    ('1 unit', 'about 12 units')
    """
    return f"{'' if is_exact else 'about '}{plural(count, 'unit')}"


def short_name(name: str) -> str:
    """Name of a tokenizer, without the folders before it.

    >>> short_name("tokenizers/gpt2/tokenizer.json"), short_name("Qwen/Qwen3-8B"), short_name("a/b/c/")
    ('gpt2', 'Qwen3-8B', 'c')
    >>> short_name("tokenizer.json")
    'tokenizer.json'
    """
    path = Path(name)
    return (path.parent.name or path.name) if path.name == "tokenizer.json" else path.name


def whole_characters(data: bytes, *, first: bool = True, last: bool = True) -> str:
    """Decode a part of a text without incomplete characters at its ends; other invalid bytes become `\\xNN`.

    >>> whole_characters("言語処理".encode()[1:-1]) == "語処"
    True
    """
    start, stop = 0, len(data)
    if first:
        none = stop if stop < 4 else 0  # a character has at most three such bytes
        start = next((place for place, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), none)
    for size in range(1, min(3, stop) + 1) if last else ():
        lead = data[-size]
        if lead >= 0xC0 and size < 2 + (lead >= 0xE0) + (lead >= 0xF0):
            stop -= size
        if lead & 0xC0 != 0x80:
            break
    return data[start:stop].decode("utf-8", "backslashreplace")


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
