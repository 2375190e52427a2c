"""Plain text as a source has it: its encoding, and its line ends.

A byte order mark of UTF-8 is never part of a text. A line ends at `\\n`; a `\\r` before it is not part of a
document that is a line. In longer documents line ends are kept, or made `\\n` by `newlines = "unix"`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from packline.recipe import Source

MARKS_OF_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
Decode = Callable[[bytes], str]


def text_decoder(source: Source) -> Decode:
    """Function from the bytes of a source's plain text to text; raises UnicodeDecodeError."""
    charset = source.charset or "utf-8"
    if not source.newlines:
        return bytes.decode if not source.charset else lambda data: data.decode(charset)
    return lambda data: data.decode(charset).replace("\r\n", "\n").replace("\r", "\n")


def likely_charset(head: bytes) -> str:
    """Likely encoding of text that does not begin with UTF-8.

    >>> likely_charset("é".encode("utf-16")), likely_charset("é".encode("latin-1"))
    ('utf-16', 'latin-1')
    """
    return "utf-16" if head.startswith(MARKS_OF_UTF16) else "latin-1"
