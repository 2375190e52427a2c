"""Hashes of bytes, of values, of a document's text.

xxh3 everywhere: at 10 GB/s and more its cost is negligible next to encoding. It protects against
accidents (a flipped bit, a changed file), not against deliberate collisions.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

Hasher = xxhash.xxh3_128
"""`Hasher()`, `.update(bytes)`, `.hexdigest()`: the checksum of a file in pieces."""


def hash_bytes(data: bytes | memoryview) -> str:
    """Hash of bytes, as 32 hexadecimal digits.

    >>> hash_bytes(b"packline")[:8]
    'abce78cc'
    """
    return xxhash.xxh3_128_hexdigest(data)


def hash_value(value: Any) -> str:
    """Hash of a value made of builtins or Structs, independent of the order of its keys."""
    return hash_bytes(msgspec.json.encode(value, order="sorted"))


def share_of(text: bytes, seed: int) -> float:
    """Position of a text in [0, 1), a pure function of the text and the seed.

    >>> round(share_of(b"d", 0), 3)
    0.273
    """
    return float(xxhash.xxh3_64_intdigest(text, seed) / 2**64)


def split_of(text: bytes, seed: int, val_fraction: float, test_fraction: float = 0.0) -> str:
    """Split of a text: a pure function of the text and the seed, so equal texts share a split.

    >>> [split_of(text, 0, 0.3, 0.3) for text in (b"d", b"b", b"a")]
    ['val', 'test', 'train']
    """
    share = share_of(text, seed)
    if share < val_fraction:
        return "val"
    return "test" if share < val_fraction + test_fraction else "train"
