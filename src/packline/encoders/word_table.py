"""Word table: the tokens of words that have been encoded before.

Words of a batch are made distinct by Arrow, without an object for each; a dict has the distinct ones:

    "the cat, the"  ──>  the | cat | ,  ──>  slots 7, 2, 3  ──>  7 2 3 7  ──>  tokens of the slots

A word of up to 7 bytes is its own key, an integer of 64 bits; a longer one is a key as it is. Equal keys are
equal words, so a word never gets the tokens of another. A table that has become full is emptied: common words
return with the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np

from packline.ragged import Ragged, concatenate

SHORT = 7
"""Bytes of a word that is an integer; the last byte of the integer is the length."""
MOST = 1 << 19
"""Words at which a table is emptied: with their tokens, about 100 MB."""
AT_ONCE = 4096
"""New words that are encoded together."""
PADDING = 8
"""Bytes that must follow the last word in its buffer."""

_BYTES_KEPT = np.array([*((1 << 8 * size) - 1 for size in range(SHORT + 1)), 0], np.uint64)
_LENGTHS = np.array([*(size << 56 for size in range(SHORT + 1)), 0], np.uint64)

Encode = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Ragged, np.ndarray]]


class WordTable:
    """Tokens of words, by their bytes; slot 0 is that of the empty word.

    Args:
        encode: encodes distinct words, those of `sizes` bytes at `starts`, int64 `[W]`, of `data`, uint8;
            returns their tokens and whether they are known, bool `[W]`.

    >>> table = WordTable(lambda data, starts, sizes: (Ragged(starts, np.arange(len(starts) + 1)), sizes > 0))
    >>> text = np.frombuffer(b"onetwoone" + bytes(PADDING), np.uint8)
    >>> table.find(text, np.array([0, 3, 6]), np.array([3, 3, 3])).tolist()
    [1, 2, 1]
    """

    def __init__(self, encode: Encode) -> None:
        self.words = Ragged(np.empty(0, np.uint32), np.zeros(2, np.int64))
        """Tokens of each slot."""
        self.known = np.ones(1, bool)
        """True for slots whose tokens are known; the others have none."""
        self._encode = encode
        self._slots: dict[int | bytes, int] = {0: 0}

    def __len__(self) -> int:
        return len(self.words)

    def find(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Slot of each word, int64 `[W]`; words that the table lacks are encoded and added.

        Args:
            data: uint8 `[N + PADDING]`, the words and anything else.
            starts, sizes: int64 `[W]`, where each word begins, and its number of bytes; in order.
        """
        import pyarrow as pa

        short = np.minimum(sizes, SHORT + 1)
        integers = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))[starts] & _BYTES_KEPT[short]
        integers |= _LENGTHS[short]
        encoded = pa.array(integers).dictionary_encode()
        words = encoded.dictionary.to_numpy()
        begins = 8 * np.arange(len(words))
        found = self._find(
            words.tolist(), words.view(np.uint8), begins, (words >> np.uint64(56)).astype(np.int64)
        )
        slots = found.take(encoded.indices.to_numpy())
        if len(long := np.flatnonzero(short > SHORT)):
            edges = np.column_stack([starts[long], starts[long] + sizes[long]]).reshape(-1)  # words and gaps
            buffers = [None, pa.py_buffer(edges), pa.py_buffer(data)]
            both = pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, buffers)
            encoded = both.take(pa.array(np.arange(0, len(edges), 2))).dictionary_encode()
            _, offsets, letters = encoded.dictionary.buffers()
            edges = np.frombuffer(offsets, np.int64, len(encoded.dictionary) + 1)
            found = self._find(
                encoded.dictionary.to_pylist(), np.frombuffer(letters, np.uint8), edges[:-1], np.diff(edges)
            )
            slots[long] = found.take(encoded.indices.to_numpy())
        return slots

    def _find(self, keys: list[Any], data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Slots of distinct words with these keys."""
        slots = np.fromiter(map(self._slots.get, keys, repeat(-1)), np.int64, len(keys))
        if len(new := np.flatnonzero(slots < 0)):
            some = [new[first : first + AT_ONCE] for first in range(0, len(new), AT_ONCE)]
            tokens, known = zip(*(self._encode(data, starts[at], sizes[at]) for at in some), strict=True)
            slots[new] = len(self) + np.arange(len(new))
            self._slots.update(zip([keys[at] for at in new.tolist()], slots[new].tolist(), strict=True))
            self.words = concatenate([self.words, *tokens])
            self.known = np.concatenate([self.known, *known])
        return slots
