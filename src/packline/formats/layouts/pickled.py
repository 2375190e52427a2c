"""Pickles of plain values, written opcode by opcode for trainers that read them. None is read here."""

from __future__ import annotations

import struct
from collections.abc import Mapping

Plain = str | bytes | int | Mapping[str, "Plain"] | Mapping[bytes, int] | Mapping[int, str]


def pickled(value: Plain) -> bytes:
    """Opcodes that make a value: a number below 2**31, text, bytes (from protocol 3 on), or a dict of these.

    >>> pickled({"a": 1})
    b'}(X\\x01\\x00\\x00\\x00aJ\\x01\\x00\\x00\\x00u'
    """
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data  # BINUNICODE
    if isinstance(value, bytes):
        return b"B" + struct.pack("<I", len(value)) + value  # BINBYTES
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)  # BININT
    pairs = (pickled(key) + pickled(one) for key, one in value.items())
    return b"}(" + b"".join(pairs) + b"u"  # EMPTY_DICT, MARK, keys and values, SETITEMS
