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
"""Bounds of the sizes of words that are encoded together: memory grows with the product of size and piece."""
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
        pieces = {piece.replace("▁", " "): id for piece, id in ids.items() if " " not in piece}
        self._trie = Trie(pieces)
        scores = [score for _, score in model["vocab"]]
        self._unknown, self._unknown_id = len(scores), model.get("unk_id")
        single = [pieces.get(chr(number), self._unknown) for number in range(0x1F, 0x7F)]
        self._single = np.array(single, np.int32)
        """Ids of letters."""
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
        known = np.zeros(len(sizes), bool)
        ids = np.full((len(sizes), LONGEST if sizes.max(initial=0) > WIDTHS[0] else WIDTHS[0]), -1)
        order = np.argsort(sizes, kind="stable")
        edges = np.searchsorted(sizes[order], WIDTHS, side="right").tolist()
        for width, first, last in zip(WIDTHS, [0, *edges], edges, strict=False):
            rows = order[first:last]
            letters = self._matrix(data, starts[rows], sizes[rows], width)
            fit = np.flatnonzero((letters != 0).sum(axis=0) == sizes[rows])
            fit = fit[(sizes[rows[fit]] > 1) | (letters[0, fit] != SPACE)]  # white space alone may be removed
            if len(fit):
                rows = rows[fit]
                known[rows] = self._encode(letters[:, fit], sizes[rows], ids, rows)
        if self._unknown_id is not None:
            known &= ~(ids == self._unknown_id).any(axis=1)  # the name of the unknown token, as text
        ids[~known] = -1
        ids[:, 1:][(ids[:, 1:] == self._unknown) & (ids[:, :-1] == self._unknown)] = -1  # fused
        there = ids >= 0
        tokens = ids[there]
        if self._unknown_id is not None:
            tokens[tokens == self._unknown] = self._unknown_id
        return Ragged(tokens.astype(np.uint32), offsets_of(there.sum(axis=1))), known

    def _matrix(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, width: int) -> np.ndarray:
        """Letters of words, uint8 `[width + 1, W]`: 0 after the last one, and for others."""
        steps = np.arange(width + 1)[:, None]
        raw = data[np.minimum(starts + steps, len(data) - 1)]
        found = self._letters[raw]
        found[0] = self._firsts[raw[0]]
        found[steps >= sizes] = 0
        return found

    def _encode(
        self, letters: np.ndarray, sizes: np.ndarray, ids: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Set ids of some rows, in order of their sizes; return whether they are known."""
        width, words = letters.shape[0] - 1, letters.shape[1]
        longest = min(width, self._trie.longest)
        pieces = np.empty((longest * width, words), np.int32)  # by size - 1 and start
        scores = np.full((longest * width, words), -np.inf)
        pieces[:width] = self._single[letters[:-1]]
        scores[:width] = self._scores[pieces[:width]]
        for places, found in self._trie.walk(letters):
            pieces.reshape(-1)[places] = found
            scores.reshape(-1)[places] = self._scores[found]
        best, back = np.zeros((width + 1, words)), np.zeros((width + 1, words), np.uint8)
        tied = np.zeros((width + 1, words), bool)
        lengths = np.arange(1, longest + 1, dtype=np.uint8)[:, None]
        for end in range(1, width + 1):
            some = slice(int(np.searchsorted(sizes, end)), None)
            sums = scores[end - 1 :: width - 1, some][: min(end, longest)]
            sums += best[end - 1 :: -1, some][: len(sums)]
            best[end, some] = sums.max(axis=0)
            near = (sums > best[end, some] - ALIKE).view(np.uint8)
            back[end, some] = (near * lengths[: len(near)]).max(axis=0)
            tied[end, some] = near.sum(axis=0, dtype=np.uint8) > 1
        known = np.ones(words, bool)
        at, left = sizes.copy(), np.arange(words)
        for column in range(ids.shape[1]):
            known[left] &= ~tied[at, left]
            size = back[at, left].astype(np.int64)
            at -= size
            ids[rows[left], -1 - column] = pieces[(size - 1) * width + at, left]
            going = np.flatnonzero(at)
            if not len(going):
                break
            at, left = at[going], left[going]
        return known


class Trie:
    """Pieces of ASCII letters: children of a node are numbered one after the other; letter 0 ends a word.

    >>> trie = Trie({"a": 5, "ab": 6})
    >>> [(places.tolist(), ids.tolist()) for places, ids in trie.walk(ASCII[[[*b"ab"], [*b"ba"], [0, 0]]])]
    [([4], [6])]
    """

    def __init__(self, pieces: dict[str, int]) -> None:
        some = {piece: id for piece, id in pieces.items() if piece.isascii() and len(piece) <= LONGEST}
        sizes = np.fromiter(map(len, some), np.int64, len(some))
        letters = np.zeros((len(some), LONGEST), np.uint8)
        letters[np.arange(LONGEST) < sizes[:, None]] = ASCII[np.frombuffer("".join(some).encode(), np.uint8)]
        ours = np.flatnonzero((np.count_nonzero(letters, axis=1) == sizes) & (sizes > 0))
        ours = ours[np.argsort(letters[ours].view(f"S{LONGEST}").reshape(-1))]
        letters, sizes = letters[ours], sizes[ours]
        self.longest = int(sizes.max(initial=1))
        """Letters of the longest piece."""
        new = np.append([True], np.zeros(len(ours), bool))[: len(ours)]
        at, nodes, steps = np.zeros(len(ours), np.int64), 1, []
        for column in letters[:, : self.longest].T:
            new[1:] |= column[1:] != column[:-1]
            begins = new & (column > 0)
            steps.append(at[begins] * LETTERS + column[begins])
            at = np.where(column > 0, nodes - 1 + np.cumsum(begins), at)
            nodes += len(steps[-1])
        taken, number = np.concatenate(steps), np.arange(1, nodes)
        parents = taken // LETTERS
        self._before, self._ranks = np.zeros(nodes, np.int64), np.zeros(nodes * LETTERS, np.uint8)
        self._before[parents[::-1]] = number[::-1] - 1  # of several for one place, the last remains
        self._ranks[taken] = number - self._before[parents]
        self._ids = np.full(nodes, -1, np.int32)
        self._ids[at] = np.fromiter(some.values(), np.int32, len(some))[ours]

    def walk(self, letters: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Find all pieces of two letters or more in words.

        Args:
            letters: uint8 `[L+1, W]`, words as columns.

        Returns:
            For each size: places in an array `[size - 1, L, W]` by the start of the piece, and ids.
        """
        buffer, (rows, words) = letters.reshape(-1), letters.shape
        places = np.flatnonzero(letters[1:])
        nodes = np.zeros(len(places), np.int64)
        for step in range(self.longest):
            ranks = self._ranks[nodes * LETTERS + buffer[places + step * words]]
            going = np.flatnonzero(ranks)
            nodes, places = self._before[nodes[going]] + ranks[going], places[going]
            if step:
                ids = self._ids[nodes]
                hits = np.flatnonzero(ids >= 0)
                yield step * (rows - 1) * words + places[hits], ids[hits]


def _letters(normalize: Callable[[str], str], kept: Callable[[str], bool]) -> np.ndarray:
    """Letters of ASCII characters after normalizing, uint8 `[256]`; 0: left to the reference."""
    found = np.zeros(256, np.uint8)
    for number in range(0x21, 0x7F):
        normal = normalize(chr(number))
        if PRINTABLE.fullmatch(normal) and len(normal) == 1 and kept(normal):
            found[number] = ASCII[ord(normal)]
    return found
