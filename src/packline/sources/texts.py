"""Texts of many documents in two buffers, as UTF-8.

The equivalent of `Ragged` for texts, between a source and an encoder: no Python object per document unless
requested. It is a view of the buffers of an Arrow `large_string` array:

    data   "one" "three" ""        offsets   0 3 8 8

Cost: everything except `take` and access to a single text is a view. Sources guarantee that no text is null
and that all are valid UTF-8; this is not checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of documents.

    >>> texts = Texts.of(["one", "drei", ""])
    >>> len(texts), texts[1], texts.sizes.tolist(), texts.take(np.array([1, 0])).data.tobytes()
    (3, 'drei', [3, 4, 0], b'dreione')
    """

    array: pa.Array
    """`large_string [D]`."""
    strings: list[str] | None = None
    """The same texts as Python strings, if available: some engines accept nothing else."""

    @classmethod
    def of(cls, strings: list[str]) -> Texts:
        """Build from Python strings."""
        return cls(pa.array(strings, pa.large_string()), strings)

    @classmethod
    def one(cls, data: bytes) -> Texts:
        """Build one text from its UTF-8, without a copy."""
        buffers = [None, pa.py_buffer(np.array([0, len(data)], np.int64)), pa.py_buffer(data)]
        return cls(pa.Array.from_buffers(pa.large_string(), 1, buffers))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> str:
        return str(self.array[index].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def to_list(self) -> list[str]:
        """The texts as Python strings."""
        return self.array.to_pylist() if self.strings is None else self.strings

    @property
    def offsets(self) -> np.ndarray:
        """Start of each text in `data`, and the end, int64 `[D+1]`."""
        offsets = self._offsets
        return offsets - offsets[0] if offsets[0] else offsets

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each text, int64 `[D]`."""
        return np.diff(self._offsets)

    @property
    def data(self) -> memoryview:
        """The bytes of all texts back to back."""
        first, last = self._offsets[[0, -1]].tolist()
        if first == last:
            return memoryview(b"")
        return np.frombuffer(self.array.buffers()[2], np.uint8, last - first, first).data

    def characters(self) -> np.ndarray:
        """Code points of each text, int64 `[D]`."""
        if self.strings is not None:
            return np.fromiter(map(len, self.strings), np.int64, len(self))
        return pc.utf8_length(self.array).to_numpy()

    def raw(self) -> list[bytes]:
        """UTF-8 bytes of each text."""
        data = self.data
        return [bytes(data[start:end]) for start, end in pairwise(self.offsets.tolist())]

    def take(self, places: np.ndarray) -> Texts:
        """The texts of `places [N]` (any integers), in that order."""
        strings = None if self.strings is None else [self.strings[place] for place in places]
        return Texts(self.array.take(pa.array(places, pa.int64())), strings)

    @property
    def _offsets(self) -> np.ndarray:
        """Offsets as stored by Arrow: those of a slice do not begin with 0."""
        if not len(self.array):
            return np.zeros(1, np.int64)
        return np.frombuffer(self.array.buffers()[1], np.int64, len(self.array) + 1, self.array.offset * 8)
