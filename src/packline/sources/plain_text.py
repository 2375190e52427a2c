"""Plain text as a source has it: its encoding, and its line ends.

A byte order mark of UTF-8 is never part of a text. A line ends at `\\n`; a `\\r` before it is not part of a
document that is a line. In longer documents line ends are kept, or made `\\n` by `newlines = "unix"`.
"""

from __future__ import annotations

from collections.abc import Callable

from packline.recipe import Source

Decode = Callable[[bytes], str]


def text_decoder(source: Source) -> Decode:
    """Function from the bytes of a source's plain text to text; raises UnicodeDecodeError."""
    charset = source.charset or "utf-8"
    if not source.newlines:
        return bytes.decode if not source.charset else lambda data: data.decode(charset)
    return lambda data: data.decode(charset).replace("\r\n", "\n").replace("\r", "\n")
