"""The Unigram model for many short ASCII words at once, in array operations.

The reference takes 10 us for a new word. Here a trie finds the pieces in all words, one array operation for
each step, and those with the largest sum of scores follow. 1 to 2 us for each of some thousand words.

Words for which the result could depend on anything else are left to the reference: longer ones, others than
ASCII, and those with two divisions of almost the same score, where the last bit of a sum would decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from packline.ragged import Ragged, offsets_of

ALIKE = 1e-6
"""Difference of scores below which two divisions of a word are almost the same."""
UNKNOWN = 10.0
"""Difference between the score of a character that is no piece and the least score of a piece."""
LONGEST = 32
"""Bytes of the longest words that are encoded here."""
WIDTHS = (8, 16, LONGEST)
"""Bounds of the sizes of words that are encoded together: memory grows with the square."""
PRINTABLE = re.compile("[ -~]+")
LETTERS = 96
SPACE = 1
ASCII = np.zeros(256, np.uint8)
ASCII[0x20:0x7F] = np.arange(SPACE, LETTERS)
"""Letters by byte: 1 to 95 for ASCII from the space on, 0 for all others."""


class Unigrams:
    """The Unigram model on words that begin with white space, and on parts, whose first byte has bit 7.

    Args:
        model: the model of a tokenizer.json.
        normalize: normalizes a string.
        spaces: white space that becomes a space.

    >>> pieces = [["<unk>", 0.0], ["▁", -2.0], ["a", -2.0], ["b", -2.0], ["▁ab", -3.0]]
    >>> model = Unigrams({"vocab": pieces, "unk_id": 0}, str, b" ")
    >>> text = np.frombuffer(b" ab aabab cc" + bytes(LONGEST), np.uint8)
    >>> tokens, known = model.encode(text, np.array([0, 3, 7, 9]), np.array([3, 4, 2, 3]))
    >>> tokens.tokens.tolist(), tokens.offsets.tolist(), known.tolist()
    ([4, 1, 2, 2, 3, 1, 0], [0, 1, 5, 5, 7], [True, True, False, True])
    """

    def __init__(self, model: dict[str, Any], normalize: Callable[[str], str], spaces: bytes) -> None:
        ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])}
        self._trie = Trie({piece.replace("▁", " "): id for piece, id in ids.items() if " " not in piece})
        scores = [score for _, score in model["vocab"]]
        self._unknown, self._unknown_id = len(scores), model.get("unk_id")
        self._scores = np.array([*scores, min(scores) - UNKNOWN, -np.inf])
        fuses = self._unknown_id is not None and not model.get("byte_fallback") and min(scores) < 0
        self._letters = _letters(normalize, lambda letter: "▁" in ids and (fuses or letter in ids))
        self._firsts = np.append(np.zeros(128, np.uint8), self._letters[:128])
        self._firsts[list(spaces)] = SPACE

    def encode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[Ragged, np.ndarray]:
        """Encode words: those of `sizes` bytes at `starts`, int64 `[W]`, of `data`, uint8.

        Returns:
            Tokens of each word, and whether they are known, bool `[W]`; if not, there are none.
        """
        letters = self._matrix(data, starts, sizes)
        sizes = np.count_nonzero(letters, axis=1)
        known = np.zeros(len(sizes), bool)
        ids, number = np.full(letters.shape, -1), np.zeros(len(sizes), np.int64)
        sizes[(sizes == 1) & (letters[:, 0] == SPACE)] = 0  # white space alone may be removed
        order = np.argsort(sizes, kind="stable")
        first = int(np.searchsorted(sizes[order], 1))
        for width in WIDTHS:
            last = int(np.searchsorted(sizes[order], width, side="right"))
            some, first = order[first:last], last
            if len(some):
                known[some] = self._encode(letters[some, : width + 1], sizes[some], ids, number, some)
        if self._unknown_id is not None:
            spelled = (ids == self._unknown_id).any(axis=1)  # the name of the unknown token, as text
            ids[spelled], number[spelled], known[spelled] = -1, 0, False
        fused = (ids[:, 1:] == self._unknown) & (ids[:, :-1] == self._unknown)
        ids[:, 1:][fused] = -1
        number -= np.count_nonzero(fused, axis=1)
        tokens = ids[ids >= 0]
        if self._unknown_id is not None:
            tokens[tokens == self._unknown] = self._unknown_id
        return Ragged(tokens.astype(np.uint32), offsets_of(number)), known

    def _matrix(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Letters of words, uint8 `[W, LONGEST + 1]`: 0 after the last one, and for words with others."""
        places = np.minimum(starts[:, None] + np.arange(LONGEST + 1), len(data) - 1)
        raw = data[places]
        found = self._letters[raw]
        found[:, 0] = self._firsts[raw[:, 0]]
        found[np.arange(LONGEST + 1) >= sizes[:, None]] = 0
        found[(sizes > LONGEST) | (np.count_nonzero(found, axis=1) != sizes)] = 0
        return found

    def _encode(
        self, letters: np.ndarray, sizes: np.ndarray, ids: np.ndarray, number: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Set ids and their number for some rows, in order of their sizes; return whether they are known."""
        parts = self._trie.parts(letters)
        words, starts = np.nonzero(letters)
        single = parts[starts + 1, words, starts]
        parts[starts + 1, words, starts] = np.where(single < 0, self._unknown, single)
        known = np.ones(len(sizes), bool)
        best, back = np.full(letters.shape, -np.inf), np.zeros(letters.shape, np.int64)
        best[:, 0] = 0.0
        for end in range(1, letters.shape[1]):
            some = slice(int(np.searchsorted(sizes, end)), None)
            sums = self._scores[parts[end, some, :end]]
            sums += best[some, :end]
            most = sums.max(axis=1)
            best[some, end], back[some, end] = most, sums.argmax(axis=1)
            known[some] &= np.count_nonzero(sums > most[:, None] - ALIKE, axis=1) == 1
        at = np.where(known, sizes, 0)
        left = np.flatnonzero(at)
        while len(left):
            start = back[left, at[left]]
            number[rows[left]] += 1
            ids[rows[left], -number[rows[left]]] = parts[at[left], left, start]
            at[left] = start
            left = left[start > 0]
        return known


class Trie:
    """Pieces of ASCII letters, as a table of steps from node to node; letter 0 ends a word.

    >>> trie = Trie({"a": 5, "ab": 6})
    >>> trie.parts(ASCII[[*b"ab", 0]][None])[:, 0].tolist()
    [[-1, -1], [5, -1], [6, -1]]
    """

    def __init__(self, pieces: dict[str, int]) -> None:
        some = {piece: id for piece, id in pieces.items() if piece.isascii() and len(piece) <= LONGEST}
        sizes = np.fromiter(map(len, some), np.int64, len(some))
        letters = np.zeros((len(some), LONGEST), np.uint8)
        letters[np.arange(LONGEST) < sizes[:, None]] = ASCII[np.frombuffer("".join(some).encode(), np.uint8)]
        ours = (np.count_nonzero(letters, axis=1) == sizes) & (sizes > 0)
        letters, ids = letters[ours], np.fromiter(some.values(), np.int32, len(some))[ours]
        at, steps = np.zeros(len(ids), np.int64), [np.zeros((1, LETTERS), np.int32)]
        nodes = 1
        for column in letters.T:
            longer = np.flatnonzero(column)
            taken, number = np.unique(at[longer] * LETTERS + column[longer], return_inverse=True)
            steps.append(np.zeros((len(taken), LETTERS), np.int32))
            before = nodes - len(steps[-2])
            steps[-2].reshape(-1)[taken - before * LETTERS] = nodes + np.arange(len(taken))
            at[longer] = nodes + number
            nodes += len(taken)
        self._steps = np.concatenate(steps).reshape(-1)
        self._ids = np.full(nodes, -1, np.int32)
        self._ids[at] = ids

    def parts(self, letters: np.ndarray) -> np.ndarray:
        """Ids of all pieces in words, int32 `[L+1, W, L]` by end, word and start; -1 for none."""
        words, width = letters.shape
        parts = np.full((width, words, width - 1), -1, np.int32)
        rows, starts = np.nonzero(letters)
        for step, walking, ids in self._walk(letters, rows, starts):
            hits = walking[ids >= 0]
            parts[starts[hits] + step, rows[hits], starts[hits]] = ids[ids >= 0]
        return parts

    def _walk(
        self, letters: np.ndarray, rows: np.ndarray, starts: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Follow letters from places on: length, the places where pieces go that far, and their ids."""
        buffer = letters.reshape(-1)
        places = rows * letters.shape[1] + starts
        walking, nodes = np.arange(len(rows)), np.zeros(len(rows), np.int64)
        for step in range(letters.shape[1]):
            nodes = self._steps[nodes * LETTERS + buffer[places]]
            going = np.flatnonzero(nodes)
            if not len(going):
                return
            walking, nodes, places = walking[going], nodes[going].astype(np.int64), places[going] + 1
            yield step + 1, walking, self._ids[nodes]


def _letters(normalize: Callable[[str], str], kept: Callable[[str], bool]) -> np.ndarray:
    """Letters of ASCII characters after normalizing, uint8 `[256]`; 0: left to the reference."""
    found = np.zeros(256, np.uint8)
    for number in range(0x21, 0x7F):
        normal = normalize(chr(number))
        if PRINTABLE.fullmatch(normal) and len(normal) == 1 and kept(normal):
            found[number] = ASCII[ord(normal)]
    return found
