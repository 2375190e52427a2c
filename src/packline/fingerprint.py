"""Hashes of bytes, of values and of a document's text; and metadata that carries its own checksum.

xxh3 everywhere: it protects against accidents, not against deliberate collisions. The text of metadata has
one form (indented, keys in the order of the fields); any other spelling of the same values counts as damage.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import xxhash

if TYPE_CHECKING:  # imported where it is used: the process that asks for a build does without
    import numpy as np

Hasher = xxhash.xxh3_128
"""`Hasher()`, `.update(bytes)`, `.hexdigest()`: the checksum of a file in pieces."""


def hash_bytes(data: bytes | memoryview) -> str:
    """Hash of bytes, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_value(value: Any) -> str:
    """Hash of a value made of builtins or Structs, independent of the order of its keys."""
    return hash_bytes(msgspec.json.encode(value, order="sorted"))


def hash_texts(data: memoryview | bytes, offsets: np.ndarray, seed: int = 0) -> np.ndarray:
    """Hash of each text, uint64 `[D]`: xxh3-64 of its UTF-8. With seed 0 the column `hash` of a store.

    Args:
        data: texts back to back, in UTF-8.
        offsets: int64 `[D+1]`, start of each text in `data`, and the end.
    """
    import numpy as np

    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    ends = offsets.tolist()
    hashes = [digest(view[start:end], seed) for start, end in pairwise(ends)]
    return np.array(hashes, np.uint64)


def hash_text(text: bytes, seed: int = 0) -> int:
    """Hash of one text in UTF-8, as `hash_texts` gives it."""
    return int(xxhash.xxh3_64_intdigest(text, seed))


def shares_of(hashes: np.ndarray) -> np.ndarray:
    """Position of each text in [0, 1) by its hash, float64 of the same shape."""
    import numpy as np

    return np.asarray(hashes / 2.0**64)


def splits_of(hashes: np.ndarray, val_fraction: float, test_fraction: float = 0.0) -> np.ndarray:
    """Split of each text by its hash (with the recipe's seed), strings of the same shape."""
    import numpy as np

    shares = shares_of(hashes)
    return np.select([shares < val_fraction, shares < val_fraction + test_fraction], ["val", "test"], "train")


def split_of(text: bytes, seed: int, val_fraction: float, test_fraction: float = 0.0) -> str:
    """Split of a text: a pure function of the text and the seed, so equal texts share a split."""
    import numpy as np

    return str(splits_of(np.array(hash_text(text, seed), np.uint64), val_fraction, test_fraction))


class Sealed(Protocol):
    """A Struct with a field for its own checksum."""

    @property
    def checksum(self) -> str:
        """xxh3-128 of the JSON form with this field empty, 32 hexadecimal digits."""


S = TypeVar("S", bound=Sealed)


class NotWhole(ValueError):
    """Metadata whose bytes are not those that were written; the message gives the reason."""


def json_form(value: Any) -> bytes:
    """JSON form of metadata: indented, keys in the order of the fields."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def seal(value: Sealed) -> bytes:
    """JSON form of a Struct whose last field is the checksum of all others."""
    data = json_form(_with_checksum(value, ""))
    return json_form(_with_checksum(value, _checksum_of(data, "")))


def unseal(data: bytes, kind: type[S]) -> S:
    """Read a sealed Struct."""
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotWhole(str(error)) from error
    expected = _checksum_of(data, value.checksum)
    if value.checksum != expected:
        raise NotWhole(f"expected the checksum {expected}, found {value.checksum!r}")
    return value


def seal_of(data: bytes) -> str:
    """Checksum that a sealed JSON form has in its last field."""
    return data.rsplit(b'"', 2)[1].decode()


def _checksum_of(data: bytes, checksum: str) -> str:
    """Checksum of these bytes with an empty checksum in its place."""
    tail = b' "checksum": "%s"\n}\n'
    own = tail % checksum.encode()
    hasher = Hasher()
    hasher.update(memoryview(data)[: -len(own)])
    hasher.update(tail % b"" if data.endswith(own) else b"no checksum at its place")
    return str(hasher.hexdigest())


def _with_checksum(value: Any, checksum: str) -> Any:
    return msgspec.structs.replace(value, checksum=checksum)
