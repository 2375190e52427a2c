"""Plain text as a source has it: its encoding, and its line ends.

A byte order mark of UTF-8 is never part of a text. A line ends at `\\n`; a `\\r` before it is not part of a
document that is a line. In longer documents line ends are kept, or made `\\n` by `newlines = "unix"`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from packline.errors import RecipeError
from packline.recipe import Source

NOT_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7")
"""Codecs of Python for text within text."""
Decode = Callable[[bytes], str]


def text_decoder(source: Source) -> Decode:
    """Function from the bytes of a source's plain text to text; raises UnicodeDecodeError."""
    charset = source.charset or "utf-8"
    if not source.newlines:
        return bytes.decode if not source.charset else lambda data: data.decode(charset)
    return lambda data: data.decode(charset).replace("\r\n", "\n").replace("\r", "\n")


def check_charset(source: Source, where: str) -> None:
    """Refuse an encoding that is unknown, or in which documents cannot be cut at bytes.

    Raises:
        RecipeError: names the setting.

    >>> check_charset(Source(inputs=("a",), charset="latin-1"), "a")
    >>> check_charset(Source(inputs=("a",), charset="latin-one"), "a")
    Traceback (most recent call last):
    packline.errors.RecipeError: a: charset is 'latin-one': expected an encoding that Python knows
    """
    if not source.charset:
        return
    try:
        if codecs.lookup(source.charset).name.replace("_", "-") in NOT_CHARSETS:
            raise LookupError
        one_byte = len(bytes(range(256)).decode(source.charset, "replace")) == 256
    except (LookupError, UnicodeError):
        raise RecipeError(
            f"{where}: charset is {source.charset!r}: expected an encoding that Python knows",
            hint="for example latin-1, cp1252 or utf-16",
        ) from None
    if source.documents != "file" and not (one_byte and (source.separator or "").isascii()):
        raise RecipeError(
            f"{where}: charset is {source.charset!r}, and documents is {source.documents!r}, which cuts at "
            "bytes: expected an encoding with one byte per character, and a separator in ASCII",
            hint="convert the files: iconv -f CHARSET -t utf-8",
        )
