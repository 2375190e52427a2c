"""Hashes: of bytes, of values, of a document's text.

xxh3 everywhere: at 10 GB/s and more it costs nothing beside encoding. It guards against accidents
(a flipped bit, a changed file), not against someone who wants two inputs to collide.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

Hasher = xxhash.xxh3_128
"""`Hasher()`, `.update(bytes)`, `.hexdigest()`: the checksum of a file in pieces."""


def hash_bytes(data: bytes | memoryview) -> str:
    """32 hexadecimal digits.

    >>> hash_bytes(b"packline")[:8]
    'abce78cc'
    """
    return xxhash.xxh3_128_hexdigest(data)


def hash_value(value: Any) -> str:
    """The hash of a value made of builtins or Structs, whatever the order of its keys."""
    return hash_bytes(msgspec.json.encode(value, order="sorted"))


def share_of(text: bytes, seed: int) -> float:
    """The place of a text in [0, 1), a pure function of the text and the seed.

    >>> round(share_of(b"d", 0), 3)
    0.273
    """
    return float(xxhash.xxh3_64_intdigest(text, seed) / 2**64)


def split_of(text: bytes, seed: int, val_fraction: float, test_fraction: float = 0.0) -> str:
    """`val`, `test` or `train`: a pure function of the text and the seed, so equal texts never straddle.

    >>> [split_of(text, 0, 0.3, 0.3) for text in (b"d", b"b", b"a")]
    ['val', 'test', 'train']
    """
    share = share_of(text, seed)
    if share < val_fraction:
        return "val"
    return "test" if share < val_fraction + test_fraction else "train"
