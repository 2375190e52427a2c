"""Numbers, sizes and foreign text as a person reads them.

A document may hold anything, escape sequences that repaint a terminal included, and so may the name of
a file. `visible` turns whatever would act on a terminal into something that can be seen; everything that
is printed passes it. The other functions only format; widths are counted in columns of a terminal.
"""

from __future__ import annotations

import re
import unicodedata

BLOCKS = " ▁▂▃▄▅▆▇█"
JOINERS = "\u200c\u200d"
"""Format characters that stay: scripts and emoji are written with them, and they move nothing."""
STACK = re.compile("[^\\x00-\\x7f]{5,}")
"""Where more marks than a few may be."""
MARKS_MOST = 4
"""Combining marks on one letter that are drawn; a script needs three, a prank has a hundred."""


def visible(text: str) -> str:
    """Text in which no character acts on a terminal.

    Line ends become `↵`, tabs `→`, other control characters their Unicode pictures or `\\x..`, and what
    reverses the direction of writing or is not a character becomes `\\u....`. So do marks that are stacked
    on one letter, from the fifth on.

    >>> visible("a\\x1b[2Jb\\n"), visible("\\u202egnp.exe")
    ('a␛[2Jb↵', '\\\\u202egnp.exe')
    """
    if text.isascii() and text.isprintable():
        return text
    shown = "".join(map(_visible_character, text))
    return STACK.sub(_unstacked, shown) if any(map(unicodedata.combining, shown)) else shown


def _unstacked(match: re.Match[str]) -> str:
    """A run of characters that are not ASCII, with no letter under more than a few marks."""
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
    """Columns that a text takes on a terminal.

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
    """At most `width` columns of a text, with `…` where something is missing.

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
    """Spaces after a text, or before it, up to `width` columns.

    >>> pad("ab", 4), pad("漢", 4, right=True)
    ('ab  ', '  漢')
    """
    space = " " * max(width - cells(text), 0)
    return space + text if right else text + space


def size(count: float) -> str:
    """Bytes with a decimal unit.

    >>> size(17), size(8_020_284), size(1.5e12)
    ('17 B', '8.0 MB', '1.5 TB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    return f"{scaled(count)}B"


def scaled(count: float) -> str:
    """A number with a unit of a thousand, three digits or so.

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
    """Seconds as a person says them.

    >>> duration(0.52), duration(75), duration(7260)
    ('0.5 s', '1 min 15 s', '2 h 01 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent(share: float) -> str:
    """A share of one.

    >>> percent(0.1234), percent(0.00042), percent(0)
    ('12.3%', '0.042%', '0%')
    """
    if share and share < 0.001:
        return f"{100 * share:.2g}%"
    return "0%" if not share else f"{100 * share:.1f}%"


def bar(share: float, width: int) -> tuple[str, str]:
    """A bar of `width` columns: what is done, and what is left.

    >>> bar(0.5, 6)
    ('━━━', '───')
    """
    done = round(max(0.0, min(share, 1.0)) * width)
    return "━" * done, "─" * (width - done)


def columns(counts: list[int], height: int = 1) -> list[str]:
    """A histogram of upright bars, `height` lines from the top down; what is not zero can be seen.

    >>> columns([0, 1, 4, 8])
    [' ▁▄█']
    >>> columns([1, 16], height=2)
    [' █', '▁█']
    """
    top = max(counts, default=0) or 1
    eighths = [max(round(8 * height * count / top), 1) if count else 0 for count in counts]
    return [
        "".join(BLOCKS[max(0, min(eighth - 8 * line, 8))] for eighth in eighths)
        for line in reversed(range(height))
    ]


def plural(count: int, noun: str, many: str = "") -> str:
    """A count and its noun.

    >>> plural(1, "file"), plural(1200, "file"), plural(2, "process", "processes")
    ('1 file', '1,200 files', '2 processes')
    """
    return f"{count:,} " + (noun if count == 1 else many or f"{noun}s")


def whole_characters(data: bytes, *, first: bool = True, last: bool = True) -> str:
    """A part of a text without the parts of characters at its ends; other bytes that are no UTF-8 as `\\xNN`.

    Args:
        data: UTF-8, cut anywhere.
        first: whether its beginning may be within a character.
        last: whether its end may be.

    >>> whole_characters("言語処理".encode()[1:-1]) == "語処"
    True
    """
    start, stop = 0, len(data)
    if first:
        none = stop if stop < 4 else 0  # a character has three such bytes at most
        start = next((place for place, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), none)
    for size in range(1, min(3, stop) + 1) if last else ():
        lead = data[-size]
        if lead >= 0xC0 and size < 2 + (lead >= 0xE0) + (lead >= 0xF0):
            stop -= size
        if lead & 0xC0 != 0x80:
            break
    return data[start:stop].decode("utf-8", "backslashreplace")
