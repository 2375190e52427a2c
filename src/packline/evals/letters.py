"""Letters and words of every token of a vocabulary, looked up at once: one entry per token.

    " the"   a word begins                   "the"   a word begins only if one ended before
    "."      no letters, an end              "é"     as bytes of two tokens: unclear alone, looked up together
    "北京"   two words begin, the last one ends

An entry is the sum of the token's letters (`letter_sums`), and above it, in its highest byte, the number of
words that begin in any case and four flags. Sums are added up with the flags in place: they overflow only
upwards, out of the number.

Unclear are parts of characters, marks, and characters that lower case or NFKC changes depending on their
neighbors. Up to three unclear tokens in a row that spell whole characters are looked up together, in a table
of a fixed size that is filled on demand. What remains unclear (rare characters, Chinese in an English
vocabulary) is for the caller to look at. Memory: 32 bytes per token of the vocabulary, and 1 MB.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packline.evals.ngram_index import letter_sums
from packline.evals.words import BETWEEN, KIND, MARK, REORDERED, SINGLE, UNSTABLE, classes, split_words
from packline.ragged import distinct_values

SUM_BITS = 56
SUM_MASK = (1 << SUM_BITS) - 1
COUNT, JOINS, AFTER, WHOLE, UNCLEAR = 15, 16, 32, 64, 128
"""In the highest byte: number of words that begin in any case; letters before the first of them; a word ends
at the end; a character begins at the beginning; not known."""
MOST_TOGETHER = 3
ID_BITS = 21
MOST_KNOWN = 1 << 16
"""Sequences of unclear tokens to remember."""
ENTRIES, INNER, FIRSTS = "entries.npy", "inner_sums.npy", "first_words.npy"


class Entries(NamedTuple):
    """Entries of pieces of text."""

    entries: np.ndarray
    """uint64 `[V]`."""
    inner: np.ndarray
    """Sum of the letters before each word of each piece, from the beginning of the piece on, uint64."""
    firsts: np.ndarray
    """First word of each piece in `inner`, int64 `[V]`."""

    def save(self, folder: Path) -> None:
        """Write files for `load`."""
        for name, array in zip((ENTRIES, INNER, FIRSTS), self, strict=True):
            np.save(folder / name, array)

    @classmethod
    def load(cls, folder: Path) -> Entries:
        """Read the files written by `save`."""
        return cls(*(np.load(folder / name) for name in (ENTRIES, INNER, FIRSTS)))


class TokenLetters(NamedTuple):
    """Letters of the tokens of a chunk."""

    entries: np.ndarray
    """uint64 `[T]`."""
    flags: np.ndarray
    """Highest byte of each, uint8 `[T]`."""
    unclear: np.ndarray
    """Tokens about which nothing is known, int64."""


class Letters:
    """Entries of the tokens of texts.

    Args:
        table: entries of the vocabulary.
        spell: bytes of a token, translated by `LOWER`.
    """

    def __init__(self, table: Entries, spell: Callable[[int], bytes]) -> None:
        import pyarrow as pa

        self._array = pa.array(table.entries)
        self._inner, self._firsts, self._spell = table.inner, table.firsts, spell
        self._together = len(table.entries) < 1 << ID_BITS
        # No sequence has the last key, which makes every search end within the array.
        self._keys = np.array([np.iinfo(np.int64).max])
        self._found = np.zeros((1, MOST_TOGETHER), np.uint64)

    def of(self, tokens: np.ndarray) -> TokenLetters:
        """Letters of tokens.

        Args:
            tokens: contiguous ids within the vocabulary, unsigned `[T]`.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.take(self._array, pa.array(tokens), boundscheck=False)
        entries = np.frombuffer(found.buffers()[1], np.uint64, len(tokens))
        flags = (entries >> np.uint64(SUM_BITS)).astype(np.uint8)
        unclear = np.flatnonzero(flags >= UNCLEAR)
        if len(unclear) and self._together:
            entries = entries.copy()
            unclear = self._spell_together(tokens, entries, flags, unclear)
        return TokenLetters(entries, flags, unclear)

    def inner(self, tokens: np.ndarray, words: np.ndarray) -> np.ndarray:
        """Sum of the letters of each token before one of its words."""
        return self._inner[self._firsts[tokens] + words]

    def _spell_together(
        self, tokens: np.ndarray, entries: np.ndarray, flags: np.ndarray, unclear: np.ndarray
    ) -> np.ndarray:
        """Replace unclear entries by those of the text that they spell together; return what remains."""
        new = np.ones(len(unclear), np.bool_)
        new[1:] = (np.diff(unclear) > 1) | (flags[unclear[1:]] & WHOLE != 0)
        begins = np.flatnonzero(new)
        lengths = np.diff(np.append(begins, len(unclear)))
        short = lengths <= MOST_TOGETHER
        begins, lengths = begins[short], lengths[short]
        ids = tokens[unclear].astype(np.int64) + 1
        keys = ids[begins]
        for step in range(1, MOST_TOGETHER):
            longer = lengths > step
            keys[longer] |= ids[begins[longer] + step] << (ID_BITS * step)
        found = self._entries(keys)
        clear = found[:, 0] < np.uint64(UNCLEAR << SUM_BITS)
        found, begins, lengths = found[clear], begins[clear], lengths[clear]
        left = np.ones(len(unclear), np.bool_)
        for step in range(MOST_TOGETHER):
            longer = lengths > step
            at = begins[longer] + step
            left[at] = False
            entries[unclear[at]] = found[longer, step]
            flags[unclear[at]] = found[longer, step] >> np.uint64(SUM_BITS)
        return unclear[left]

    def _entries(self, keys: np.ndarray) -> np.ndarray:
        """Entries of sequences of up to three tokens each, uint64 `[S, 3]`; `UNCLEAR` where not known."""
        at = np.searchsorted(self._keys, keys)
        missing = distinct_values(keys[self._keys.take(at, mode="clip") != keys])
        if len(missing):
            if len(self._keys) + len(missing) > MOST_KNOWN:
                missing, self._keys, self._found = distinct_values(keys), self._keys[-1:], self._found[-1:]
            steps = [ID_BITS * step for step in range(MOST_TOGETHER)]
            numbers = [[key >> step & (1 << ID_BITS) - 1 for step in steps] for key in missing.tolist()]
            entries = self._divided(numbers)
            self._keys, order = np.unique(np.concatenate([missing, self._keys]), return_index=True)
            self._found = np.concatenate([entries, self._found])[order]
            at = np.searchsorted(self._keys, keys)
        return self._found[at]

    def _divided(self, sequences: list[list[int]]) -> np.ndarray:
        """Entries of sequences of ids above 0, else 0: each token has one word of the text, or none."""
        table = entries_of([b"".join(self._spell(one - 1) for one in ids if one) for ids in sequences])
        flags = (table.entries >> np.uint64(SUM_BITS)).astype(np.int64)
        joins = flags & JOINS
        counts = (flags & COUNT) + (joins > 0)
        inner = np.append(table.inner, np.zeros(MOST_TOGETHER + 1, np.uint64))
        found = np.zeros((len(sequences), MOST_TOGETHER), np.uint64)
        for step in range(MOST_TOGETHER):
            ends = np.where(step + 1 < counts, inner[table.firsts + step + 1], table.entries)
            sums = np.where(step < counts, ends - inner[table.firsts + step], 0) & np.uint64(SUM_MASK)
            own = np.where(step + 1 < counts, AFTER, flags & AFTER)
            own |= np.where(step < counts, 1 if step else np.where(joins, JOINS, 1), 0)
            found[:, step] = sums | own.astype(np.uint64) << np.uint64(SUM_BITS)
        tokens = np.count_nonzero(sequences, axis=1)
        found[(flags & UNCLEAR != 0) | (counts > tokens)] = UNCLEAR << SUM_BITS
        return found


def entries_of(pieces: Sequence[bytes]) -> Entries:
    """Entries of pieces of text.

    Args:
        pieces: bytes of each, translated by `LOWER`.

    >>> found = entries_of([b"the", b" cat", b" ", "北京".encode()])
    >>> flags = found.entries >> np.uint64(SUM_BITS)
    >>> [int(one) & COUNT for one in flags], [bool(int(one) & AFTER) for one in flags]
    ([0, 1, 0, 2], [False, False, True, True])
    """
    words = split_words(np.frombuffer(b" ".join([*pieces, b""]), np.uint8))
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    begins = np.cumsum(sizes + 1) - sizes - 1
    owners = np.searchsorted(begins, words.starts, side="right") - 1
    letters = letter_sums(words.data)
    letters = letters[words.ends] - letters[words.starts]
    for number, form in words.changed.items():
        letters[number] = letter_sums(np.frombuffer(form, np.uint8))[-1]
    unclear, first, last = (np.zeros(len(pieces), np.bool_) for _ in range(3))
    for number, piece in enumerate(pieces):
        if not piece.isascii():
            text = piece.decode("utf-8", "replace")  # U+FFFD separates words, but no vocabulary has it
            unclear[number] = text.encode() != piece or not all(map(_is_clear, text))
            first[number], last[number] = _is_single(text[0]), _is_single(text[-1])
    counts = np.bincount(owners, minlength=len(pieces))
    firsts = np.cumsum(counts) - counts
    sums = np.zeros(len(owners) + 1, np.uint64)
    np.cumsum(letters, out=sums[1:])
    joins = np.zeros(len(pieces), np.bool_)
    joins[owners[words.starts == begins[owners]]] = True
    joins &= ~first
    after = counts == 0
    filled = np.flatnonzero(counts)
    ends = words.ends[firsts[filled] + counts[filled] - 1]
    after[filled] = (ends < (begins + sizes)[filled]) | last[filled]
    begun = counts - joins
    unclear |= (sizes == 0) | (begun > COUNT)
    whole = np.array([piece[:1] < b"\x80" or piece[:1] >= b"\xc0" for piece in pieces], np.bool_)
    flags = np.where(unclear, UNCLEAR, begun + joins * JOINS + after * AFTER) + whole * WHOLE
    entries = np.where(unclear, np.uint64(0), sums[firsts + counts] - sums[firsts])
    entries &= np.uint64(SUM_MASK)
    entries |= flags.astype(np.uint64) << np.uint64(SUM_BITS)
    return Entries(entries, sums[:-1] - sums[firsts[owners]], firsts)


@lru_cache(maxsize=1 << 17)
def _is_clear(character: str) -> bool:
    """True if the word form of a character does not depend on its neighbors."""
    if character.isascii():
        return True
    entry = int(classes()[ord(character)])
    if entry & KIND == BETWEEN:
        return True
    form = unicodedata.normalize("NFKC", character)
    if "\N{GREEK CAPITAL LETTER SIGMA}" in form:  # lower case depends on its place in the word
        return False
    form = unicodedata.normalize("NFKC", form.lower())
    return entry & KIND != MARK and bool(form) and all(map(_is_stable, form))


def _is_stable(character: str) -> bool:
    if character.isascii():
        return character.isalnum() and character == character.lower()
    entry = int(classes()[ord(character)])
    return entry & KIND != MARK and not entry & (UNSTABLE | REORDERED)


def _is_single(character: str) -> bool:
    return int(classes()[ord(character)]) & KIND == SINGLE
