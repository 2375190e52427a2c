"""Word table: the tokens of words that have been encoded before.

A hash table in NumPy arrays: a million words are found in a few dozen array operations, without an object for
each. A word of up to 15 bytes is its own key, two integers of 64 bits; longer ones, few in any text, are in a
dict:

    word "cat" ──> key (0x746163, 3 << 56) ──> slot 7 ──> tokens[offsets[7] : offsets[8]]

Equal keys are equal words, so a word never gets the tokens of another. A table that has become full is
emptied: common words return with the next batch.
"""

from __future__ import annotations

import numpy as np

from packline.ragged import Ragged, concatenate

SHORT = 15
"""Bytes of a word that is its own key; the last byte of the key is the length."""
MOST = 1 << 19
"""Words at which a table is emptied: with their tokens, about 60 MB."""
LEAST = 1 << 16
"""Places of an empty table, a power of two; always at least twice as many as words."""
PADDING = 16
"""Bytes that must follow the last word in its buffer."""

_BYTES_KEPT = np.array([(1 << 8 * size) - 1 for size in range(8)] + [(1 << 64) - 1] * 9, np.uint64)
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


class Keys:
    """Keys of words in a buffer.

    Args:
        data: uint8 `[N + PADDING]`, the words and anything else.
        starts, sizes: int64 `[W]`, where each word begins, and its number of bytes.
    """

    def __init__(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> None:
        eights = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
        short = np.minimum(sizes, SHORT)
        self.low = eights[starts] & _BYTES_KEPT[short]
        self.high = eights[starts + 8] & _BYTES_KEPT[np.maximum(short - 8, 0)]
        self.high |= short.astype(np.uint64) << np.uint64(56)
        self.long: dict[int, bytes] = {
            place: data[starts[place] : starts[place] + sizes[place]].tobytes()
            for place in np.flatnonzero(sizes > SHORT).tolist()
        }
        """Words longer than `SHORT`, by their place."""

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Number the distinct words: number of each, int64 `[W]`, and a place of each number, int64 `[U]`."""
        low, high = self.low.copy(), self.high.copy()
        numbers: dict[bytes, int] = {}
        for place, word in self.long.items():
            low[place], high[place] = numbers.setdefault(word, len(numbers)), _BYTES_KEPT[-1]
        mixed = _mixed(low, high)
        order = np.argsort(mixed)  # words of one value side by side would be numbered twice, and not be wrong
        new = np.ones(len(order), bool)
        new[1:] = (low[order[1:]] != low[order[:-1]]) | (high[order[1:]] != high[order[:-1]])
        which = np.empty(len(order), np.int64)
        which[order] = np.cumsum(new) - 1
        return which, order[new]


class WordTable:
    """Tokens of words, by their bytes.

    >>> text = np.frombuffer(b"onetwo" + bytes(PADDING), np.uint8)
    >>> keys = Keys(text, np.array([0, 3]), np.array([3, 3]))
    >>> table = WordTable()
    >>> table.add(keys, Ragged(np.array([5, 6, 7], np.uint32), np.array([0, 1, 3])), np.ones(2, bool))
    >>> slots = table.find(keys)
    >>> slots.tolist(), table.words.take(slots[1:]).tokens.tolist()
    ([0, 1], [6, 7])
    """

    def __init__(self) -> None:
        self.words = Ragged(np.empty(0, np.uint32), np.zeros(1, np.int64))
        """Tokens of each slot."""
        self.known = np.empty(0, bool)
        """True for slots whose tokens are known; the others have none."""
        self._long: dict[bytes, int] = {}
        self._allocate(LEAST)

    def __len__(self) -> int:
        return len(self.words)

    def find(self, keys: Keys) -> np.ndarray:
        """Slot of each word, int64 `[W]`; -1 for words that have not been added."""
        slots = self._slots_at(keys.low, keys.high)
        for place, word in keys.long.items():
            slots[place] = self._long.get(word, -1)
        return slots

    def add(self, keys: Keys, tokens: Ragged, known: np.ndarray) -> None:
        """Add words that are not in the table, each once, and whether their tokens are known, bool `[W]`."""
        first = len(self.words)
        self.words = concatenate([self.words, tokens])
        self.known = np.append(self.known, known)
        slots = np.arange(first, len(self.words))
        self._long.update({word: first + place for place, word in keys.long.items()})
        if 2 * len(self.words) > len(self._slots):
            known = np.flatnonzero(self._slots >= 0)
            low, high, found = self._low[known], self._high[known], self._slots[known]
            self._allocate(2 * len(self._slots))
            while 2 * len(self.words) > len(self._slots):
                self._allocate(2 * len(self._slots))
            self._insert(low, high, found)
        short = np.ones(len(slots), bool)
        short[list(keys.long)] = False
        self._insert(keys.low[short], keys.high[short], slots[short])

    def _allocate(self, places: int) -> None:
        self._low, self._high = np.zeros(places, np.uint64), np.zeros(places, np.uint64)
        self._slots = np.full(places, -1, np.int64)
        self._shift = np.uint64(64 - (places.bit_length() - 1))

    def _places(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return (_mixed(low, high) >> self._shift).astype(np.int64)

    def _slots_at(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        places = self._places(low, high)
        slots = self._slots[places]
        left = np.flatnonzero(((self._low[places] != low) | (self._high[places] != high)) & (slots >= 0))
        while len(left):
            places[left] = (places[left] + 1) % len(self._slots)
            at = places[left]
            slots[left] = self._slots[at]
            other = (self._low[at] != low[left]) | (self._high[at] != high[left])
            left = left[other & (slots[left] >= 0)]
        return slots

    def _insert(self, low: np.ndarray, high: np.ndarray, slots: np.ndarray) -> None:
        places = self._places(low, high)
        left = np.arange(len(slots))
        while len(left):
            free = left[self._slots[places[left]] < 0]
            self._slots[places[free]] = slots[free]  # of several for one place, the last remains
            won = free[self._slots[places[free]] == slots[free]]
            self._low[places[won]], self._high[places[won]] = low[won], high[won]
            waiting = np.ones(len(slots), bool)
            waiting[won] = False
            left = left[waiting[left]]
            places[left] = (places[left] + 1) % len(self._slots)


def _mixed(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Hash of keys, uint64 `[W]`, whose upper bits are the best."""
    mixed = (low * _FACTORS[0]) ^ (high * _FACTORS[1])
    return (mixed ^ (mixed >> np.uint64(29))) * _FACTORS[0]
