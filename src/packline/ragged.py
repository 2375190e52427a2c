"""Ragged: many sequences of different lengths in two arrays, documents back to back and where each begins.

    tokens   7 8 9 | 4 | 5 6        offsets   0 3 4 6
             doc 0   doc 1  doc 2

Every operation is one pass at memory speed, by NumPy or by Arrow, which copies each document with one memcpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # imported where it is used: opening a store does without, and so takes half as long
    import pyarrow as pa

UINT16_BELOW = 65_500
"""Vocabularies below this size use uint16, the same rule as Megatron's."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Documents of tokens: `tokens [T]` of any integer dtype, `offsets [D+1]` of int64.

    >>> r = Ragged(np.array([7, 8, 9, 4], np.int32), np.array([0, 3, 4], np.int64))
    >>> len(r), r[1].tolist(), r.lengths.tolist()
    (2, [4], [3, 1])
    """

    tokens: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, documents: Sequence[np.ndarray], dtype: np.dtype) -> Ragged:
        """Join documents; ids are converted to `dtype`, without checking that they fit."""
        tokens = np.concatenate([np.empty(0, dtype), *documents], dtype=dtype, casting="unsafe")
        return cls(tokens, offsets_of([len(one) for one in documents]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each document, int64 `[D]`."""
        return np.diff(self.offsets)

    def astype(self, dtype: np.dtype) -> Ragged:
        """Convert the ids to another dtype, without checking that they fit."""
        if self.tokens.dtype.itemsize == dtype.itemsize:
            return Ragged(self.tokens.view(dtype), self.offsets)
        return Ragged(self.tokens.astype(dtype), self.offsets)

    def surround(self, before: int | None, after: int | None) -> Ragged:
        """Put one token before and one after every document."""
        if before is None and after is None:
            return self
        import pyarrow as pa
        import pyarrow.compute as pc

        dtype = self.tokens.dtype
        parts: list[pa.Array | pa.Scalar] = [_as_binary(self)]
        if before is not None:
            parts.insert(0, pa.scalar(np.array([before], dtype).tobytes(), pa.large_binary()))
        if after is not None:
            parts.append(pa.scalar(np.array([after], dtype).tobytes(), pa.large_binary()))
        separator = pa.scalar(b"", pa.large_binary())
        return _from_binary(pc.binary_join_element_wise(*parts, separator), dtype)

    def take(self, order: np.ndarray) -> Ragged:
        """Select documents by number: those of `order [N]` (any integers), in that order."""
        import pyarrow as pa

        return _from_binary(_as_binary(self).take(pa.array(order)), self.tokens.dtype)


def concatenate(parts: Sequence[Ragged]) -> Ragged:
    """Join parts of one dtype in order."""
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.tokens for part in parts]), offsets_of(lengths))


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Offsets int64 `[D+1]` of documents with these lengths `[D]`: sums before each, and the sum of all.

    Cost: a microsecond per hundred documents, half of `np.cumsum` at that size.

    >>> offsets_of(np.array([3, 1])).tolist()
    [0, 3, 4]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.add.accumulate(lengths, out=offsets[1:])
    return offsets


def distinct_values(values: np.ndarray) -> np.ndarray:
    """Distinct numbers, ascending, of `values [N]`: many of them, in a tenth of the time of `np.unique`."""
    found = np.sort(values)
    new = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=new[1:])
    return found[new]


def dtype_for(vocab_size: int) -> np.dtype:
    """Dtype of tokens for a vocabulary."""
    return np.dtype("<u2") if vocab_size < UINT16_BELOW else np.dtype("<i4")


def _as_binary(ragged: Ragged) -> pa.Array:
    """View without a copy of the tokens: each document as the bytes of its tokens."""
    import pyarrow as pa

    offsets = ragged.offsets * ragged.tokens.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(ragged.tokens))]
    return pa.Array.from_buffers(pa.large_binary(), len(ragged), buffers)


def _from_binary(array: pa.Array, dtype: np.dtype) -> Ragged:
    _, offsets, data = array.buffers()
    begins = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8) // dtype.itemsize
    if data is None:
        return Ragged(np.empty(0, dtype), np.zeros(len(array) + 1, np.int64))
    tokens = np.frombuffer(data, dtype, int(begins[-1]))
    return Ragged(tokens[begins[0] :], begins - begins[0])
