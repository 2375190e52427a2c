"""Ranges of tokens that may hold a known gram, found without the bytes of any token.

    vocabulary ──> letters of each token: a sum, and where its words begin and end ──┐
    tokens ──────────────────────────────────────────────────────────────> one look-up each ──> running sum
    running sum at the beginnings of two words, n apart ──> difference ──> known? ──> ranges of tokens

Every letter has a value. The sum of a gram is that of its letters, whatever their order, their division into
tokens and the characters between words; so it is the difference of two running sums. Equal grams have equal
sums. Equal sums are only candidates: the caller compares words.

The letters of a token are one element, or one per word (`北京` has two):

    " the"   letters, a new word             "the"   letters; a new word only after an end
    "."      no letters, an end              "é"     as bytes of two tokens: unclear alone, looked up together

Unclear are parts of characters, marks, and characters that lower case or NFKC changes depending on their
neighbors. Up to three unclear tokens in a row are spelled together, each sequence once; what remains unclear
(rare characters, Chinese in an English vocabulary) is a candidate with n words before and behind.

Cost: a few look-ups and sums per token, three times as much where tokens have several words. Memory: 16 bytes
per token of a chunk, and 16 per token of the vocabulary.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packline.encoders.token_bytes import TokenText
from packline.evals.ngram_index import HashSet, letter_sums, value_of_ids
from packline.evals.words import BETWEEN, KIND, MARK, REORDERED, SINGLE, UNSTABLE, classes, split_words

FRESH, INSIDE, AFTER, UNCLEAR, SEVERAL = 1, 2, 4, 8, 16
"""Flags: the letters begin a word; there are letters; a word ends there; not known; not one element."""
CONTEXT = 2
"""Words on each side of a gram that a range includes: its first and last may be incomplete."""
MOST_TOGETHER = 3
ID_BITS = 21
ELEMENTS, FIRSTS = "elements.npy", "element_starts.npy"


class Letters:
    """Elements of every token of a vocabulary.

    Args:
        elements: elements of all tokens back to back, uint64.
        firsts: first element of each token, and the end, int64 `[V+1]`.
    """

    def __init__(self, elements: np.ndarray, firsts: np.ndarray) -> None:
        import pyarrow as pa

        counts = np.diff(firsts)
        self._one = np.full(len(counts), SEVERAL, np.uint64)
        self._one[counts == 1] = elements[firsts[:-1][counts == 1]]
        self._table = pa.array(self._one)
        self._several = TokenText(elements.view(np.uint8), firsts * elements.itemsize)

    @classmethod
    def load(cls, folder: Path) -> Letters:
        """Read the files written by `save_letters`."""
        return cls(np.load(folder / ELEMENTS), np.load(folder / FIRSTS))

    def of(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Elements of tokens, and the first of each token, or None if each has one.

        Args:
            tokens: contiguous ids within the vocabulary, unsigned.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.take(self._table, pa.array(tokens), boundscheck=False)
        elements = np.frombuffer(found.buffers()[1], np.uint64, len(tokens))
        if not int(np.bitwise_or.reduce(elements)) & SEVERAL:
            return elements, None
        data, begins = self._several.gather(tokens)
        return data.view(np.uint64), begins >> 3


def letters_of_ids(vocab_size: int) -> Letters:
    """Elements for grams of ids: each is a word."""
    return Letters(value_of_ids(np.arange(vocab_size)) | np.uint64(FRESH), np.arange(vocab_size + 1))


def save_letters(folder: Path, pieces: Sequence[bytes]) -> None:
    """Write the elements of a vocabulary for `Letters.load`.

    Args:
        pieces: bytes of each token, translated by `LOWER`.
    """
    elements, firsts = elements_of(pieces)
    np.save(folder / ELEMENTS, elements)
    np.save(folder / FIRSTS, firsts)


def elements_of(pieces: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Elements of pieces of text back to back, and the first of each piece, as `Letters` takes them."""
    words = split_words(np.frombuffer(b" ".join([*pieces, b""]), np.uint8))
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    begins = np.cumsum(sizes + 1) - sizes - 1
    owners = np.searchsorted(begins, words.starts, side="right") - 1
    sums = letter_sums(words.data)
    sums = sums[words.ends] - sums[words.starts]
    for number, form in words.changed.items():
        sums[number] = letter_sums(np.frombuffer(form, np.uint8))[-1]
    unclear, first, last = (np.zeros(len(pieces), np.bool_) for _ in range(3))
    for number, piece in enumerate(pieces):
        if not piece.isascii():
            text = piece.decode(
                "utf-8", "replace"
            )  # U+FFFD is a sign between words, but never in a vocabulary
            unclear[number] = text.encode() != piece or not all(map(_is_clear, text))
            first[number], last[number] = _is_single(text[0]), _is_single(text[-1])
    fresh = (words.starts > begins[owners]) | first[owners]
    after = (words.ends < (begins + sizes)[owners]) | last[owners]
    counts = np.bincount(owners, minlength=len(pieces))
    kept = ~unclear[owners]
    numbers = np.where(unclear, 1, np.where(sizes > 0, np.maximum(counts, 1), 0))
    firsts = np.concatenate([[0], np.cumsum(numbers)])
    elements = np.full(int(firsts[-1]), AFTER, np.uint64)
    elements[firsts[:-1][unclear]] = UNCLEAR
    at = firsts[owners] + np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
    flags = np.uint64(INSIDE) | fresh * np.uint64(FRESH) | after * np.uint64(AFTER)
    elements[at[kept]] = (sums | flags)[kept]
    return elements, firsts


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


class CandidateRanges(NamedTuple):
    """Ranges of a chunk of tokens that may hold known grams."""

    spans: list[tuple[int, int]]
    """Disjoint ranges of tokens, ascending."""
    again: int
    """Token from which the next chunk must begin, so that no gram is missed; 0 if that is not known."""


class Candidates:
    """Finds ranges of tokens that may hold a known gram.

    Args:
        letters: elements of the vocabulary.
        known: sums of the known grams (`letter_sums`).
        n: words per gram.
        spell: bytes of a token, translated by `LOWER`.
    """

    def __init__(self, letters: Letters, known: HashSet, n: int, spell: Callable[[int], bytes]) -> None:
        self._letters, self._known, self._n, self._spell = letters, known, n, spell
        self._together: dict[int, int] = {}

    def find(self, tokens: np.ndarray) -> CandidateRanges:
        """Find the ranges of a chunk.

        Args:
            tokens: contiguous ids within the vocabulary, unsigned `[T]`.
        """
        elements, firsts = self._letters.of(tokens)
        flags = elements.astype(np.uint8)
        unclear = np.flatnonzero(flags & UNCLEAR)
        if len(unclear):
            elements = elements.copy()
            unclear = self._spell_together(tokens, elements, flags, firsts, unclear)
        fresh = flags & FRESH
        fresh[1:] |= (flags[1:] >> 1) & (flags[:-1] >> 2) & 1
        fresh[0] |= flags[0] >> 1 & 1
        starts = np.flatnonzero(fresh.view(np.bool_))
        sums = np.zeros(len(elements) + 1, np.uint64)
        np.cumsum(elements & np.uint64(~31 & (1 << 64) - 1), out=sums[1:])
        places = np.append(starts, len(elements))
        edges = sums[places]
        grams = self._known.places(edges[self._n :] - edges[: -self._n])
        around = self._n + CONTEXT
        middles = np.searchsorted(starts, unclear)
        lows = np.concatenate([grams - CONTEXT, middles - around])
        highs = np.concatenate([grams + around, middles + around])
        last = len(starts)
        begins = np.where(lows < 0, 0, places[np.clip(lows, 0, last)])
        ends = np.where(highs < last, places[np.clip(highs, 0, last)], len(elements) - 1)
        back = places[-1 - around - CONTEXT :][:1] if last >= around + CONTEXT else np.zeros(1, np.int64)
        if firsts is not None:
            begins, ends, back = (
                np.searchsorted(firsts, one, side="right") - 1 for one in (begins, ends, back)
            )
            ends = np.where(highs < last, ends, len(tokens) - 1)
        return CandidateRanges(_joined(begins, ends), int(back[0]))

    def _spell_together(
        self,
        tokens: np.ndarray,
        elements: np.ndarray,
        flags: np.ndarray,
        firsts: np.ndarray | None,
        unclear: np.ndarray,
    ) -> np.ndarray:
        """Replace unclear elements by those of the text that they spell together; return what remains."""
        edges = np.flatnonzero(np.diff(unclear) > 1) + 1
        begins = np.concatenate([[0], edges])
        lengths = np.diff(np.append(begins, len(unclear)))
        short = lengths <= MOST_TOGETHER
        begins, lengths = begins[short], lengths[short]
        ids = tokens[unclear if firsts is None else np.searchsorted(firsts, unclear, side="right") - 1]
        ids = ids.astype(np.int64) + 1
        if int(ids.max()) >> ID_BITS:
            return unclear
        keys = ids[begins]
        for step in range(1, MOST_TOGETHER):
            longer = lengths > step
            keys[longer] |= ids[begins[longer] + step] << (ID_BITS * step)
        different, numbers = np.unique(keys, return_inverse=True)
        found = self._elements(different.tolist())[numbers]
        clear = found & np.uint64(UNCLEAR) == 0
        at = unclear[begins[clear]]
        left = np.ones(len(unclear), np.bool_)
        left[begins[clear]] = False
        elements[at] = found[clear]
        flags[at] = found[clear]
        for step in range(1, MOST_TOGETHER):
            longer = clear & (lengths > step)
            at = unclear[begins[longer] + step]
            left[begins[longer] + step] = False
            elements[at] = 0  # its letters are in the first; a word that ended there has ended here
            flags[at] = found[longer].astype(np.uint8) & AFTER
        return unclear[left]

    def _elements(self, keys: list[int]) -> np.ndarray:
        """Element of the text of up to three tokens each, `UNCLEAR` unless there is exactly one."""
        known = self._together
        if missing := [key for key in keys if key not in known]:
            steps = [ID_BITS * step for step in range(MOST_TOGETHER)]
            numbers = [[key >> step & (1 << ID_BITS) - 1 for step in steps] for key in missing]
            texts = [b"".join(self._spell(one - 1) for one in sequence if one) for sequence in numbers]
            elements, firsts = elements_of(texts)
            one = np.append(elements, np.uint64(UNCLEAR))[firsts[:-1]]
            one[np.diff(firsts) != 1] = UNCLEAR
            known.update(zip(missing, one.tolist(), strict=True))
        return np.array([known[key] for key in keys], np.uint64)


def _joined(firsts: np.ndarray, lasts: np.ndarray) -> list[tuple[int, int]]:
    """Disjoint ranges from the first and last token of each; those that overlap are joined."""
    if not len(firsts):
        return []
    order = np.argsort(firsts)
    starts, stops = firsts[order], np.maximum.accumulate(lasts[order] + 1)
    new = np.flatnonzero(starts[1:] > stops[:-1]) + 1
    starts, stops = starts[np.append(0, new)], stops[np.append(new - 1, len(stops) - 1)]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
