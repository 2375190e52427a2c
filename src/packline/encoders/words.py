"""Words engine: Unigram and WordLevel tokenizers, each distinct word encoded once.

Text is cut where the reference cuts it too, whatever comes before and after; the tokens of a text are then
those of its words, one after the other:

    "The cat, the cat"  ──>  The | cat | , | the | cat   ──>  known words: their tokens (`word_table`)
                                                              others: the reference, once

Every cut is one at which normalizer, pre-tokenizer and model begin anew:

    BertPreTokenizer, Whitespace, WhitespaceSplit     before ASCII white space; the first of them also before
                                                      and after ASCII punctuation
    Metaspace                                         before ASCII white space between plain characters: those
                                                      that form no grapheme with a space, and that the
                                                      normalizer makes neither white space nor nothing
    Metaspace, Unigram                                between two ASCII characters that no piece has side by
                                                      side, such as a letter and most punctuation: the best
                                                      path of pieces goes through that place

What follows a cut of the last kind is called a part. Rounding may decide between divisions of almost the same
score, and it depends on what comes before; words with such a part are looked up as a whole.

`supported.SUPPORTED` lists the normalizers and pre-tokenizers of which this is true. Text with added tokens
is encoded by the reference as a whole.

Cost: 15 to 25 ms per MB of text where all words are known; 1 to 2 us for a new word (`unigrams`), 10 us for
one that only the reference can encode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from packline.encoders import EngineName
from packline.encoders.features import steps_of
from packline.encoders.unigrams import Unigrams
from packline.encoders.word_table import MOST, PADDING, WordTable
from packline.ragged import Ragged, concatenate

if TYPE_CHECKING:  # imported where it is used: a process that loads another engine does without Arrow
    import tokenizers

    from packline.sources.batch import Texts

OTHER, WHITE_SPACE, PUNCTUATION = 0, 1, 2
PART, FIRST, LAST, KEPT, WIDE = 1, 2, 4, 8, 16
"""Flags of a place: a part begins, white space begins, has ended, stays in its word, no ASCII next to it."""
LONG = 1 << 16
"""Bytes of the longest words with parts: sums of more scores are too inexact."""
WHITE = b" \n\r\t"
MARKS = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
REMOVING = ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
"""Pre-tokenizers that remove white space, and then decide within a word alone."""
UNCERTAIN = re.compile(r"\s")
PLAIN = (
    (0x21, 0x7E),
    (0xC0, 0x24F),
    (0x388, 0x3E1),
    (0x400, 0x481),
    (0x48A, 0x52F),
    (0x531, 0x556),
    (0x561, 0x586),
    (0x5D0, 0x5EA),
    (0x620, 0x64A),
    (0x671, 0x673),
    (0x679, 0x6D3),
    (0x904, 0x939),
    (0x1E00, 0x1E99),
    (0x1EA0, 0x1EFF),
    (0x2010, 0x2016),
    (0x2018, 0x2027),
    (0x2030, 0x2038),
    (0x20A0, 0x20BF),
    (0x3001, 0x3003),
    (0x3008, 0x3011),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0xAC00, 0xD7A3),
)
"""Ranges of characters, first and last, that never form a grapheme with a space (Unicode annex 29)."""
_PREPENDED = "d880 d881 d882 d883 d884 d885 db9d dc8f e0a290 e0a291 e0a3a2 e0b58e f091"
PREPENDED = tuple(bytes.fromhex(beginning) for beginning in _PREPENDED.split())
"""UTF-8 prefixes of the characters that form a grapheme with whatever follows them."""


class Loaded(Protocol):
    """The reference as an engine."""

    tokenizer: tokenizers.Tokenizer

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text."""


class WordsEngine:
    """The reference for words that have not occurred yet, a table for those that have.

    Args:
        json: the tokenizer.json.
        reference: returns the reference; called at the first text.
    """

    name: EngineName = "words"

    def __init__(self, json: str, reference: Callable[[], Loaded]) -> None:
        self._json, self._load = json, reference
        self._cutter: Cutter | None = None

    def encode(self, texts: Texts) -> Ragged:
        """Encode each text: `tokens` uint32 `[T]`, `offsets` int64 `[D+1]`."""
        if self._cutter is None:
            self._reference = self._load()
            self._cutter, self._model = methods_of(self._json, self._reference.tokenizer)
            self._table = WordTable(self._encode)
        if len(self._table) > MOST:
            self._table = WordTable(self._encode)
        offsets = texts.offsets
        data = np.zeros(int(offsets[-1]) + PADDING, np.uint8)
        data[:-PADDING] = np.frombuffer(texts.data, np.uint8)
        starts, sizes, first = self._cutter.cut(data, offsets)
        slots = self._table.find(data, starts, sizes)
        if len(lacking := np.flatnonzero(~self._table.known[slots])):
            self._find_whole(data, starts, sizes, slots, lacking)
        words = self._table.words.take(slots)
        return Ragged(words.tokens, words.offsets[first])

    def _find_whole(
        self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, slots: np.ndarray, lacking: np.ndarray
    ) -> None:
        """Set the slots of the words of which some parts are not known: of the word, and none."""
        heads = np.flatnonzero(~are_parts(data, starts, sizes))
        whole = np.zeros(len(heads), bool)
        whole[np.searchsorted(heads, lacking, side="right") - 1] = True
        nexts = np.append(heads[1:], len(starts))
        inside = np.repeat(whole, nexts - heads)
        inside[heads] = False
        data[starts[inside]] &= 0x7F
        slots[inside] = 0
        heads, lasts = heads[whole], nexts[whole] - 1
        slots[heads] = self._table.find(data, starts[heads], starts[lasts] + sizes[lasts] - starts[heads])

    def _encode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> tuple[Ragged, np.ndarray]:
        """Encode distinct words; return their tokens and whether they are known, bool `[W]`."""
        if self._model is None:
            return self._by_reference(data, starts, sizes), np.ones(len(starts), bool)
        tokens, known = self._model.encode(data, starts, sizes)
        left = np.flatnonzero(~known & ~are_parts(data, starts, sizes))
        if not len(left):
            return tokens, known
        rest = self._by_reference(data, starts[left], sizes[left])
        places = np.arange(len(starts))
        places[left] = len(starts) + np.arange(len(left))
        known[left] = True
        return concatenate([tokens, rest]).take(places), known

    def _by_reference(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> Ragged:
        from packline.sources.batch import Texts

        ends = (starts + sizes).tolist()
        pairs = zip(starts.tolist(), ends, strict=True)
        return self._reference.encode(Texts.of([data[start:end].tobytes().decode() for start, end in pairs]))


def are_parts(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Find the words that are parts, bool `[W]`: with bit 7 in a first byte that is no beginning of UTF-8."""
    return (data[starts] >= 0x80) & ((sizes == 1) | (data[starts + 1] < 0x80))


class Cutter:
    """Cuts where white space begins, for pre-tokenizers that remove it.

    Args:
        punctuation: cut before and after ASCII punctuation, too.
    """

    def __init__(self, punctuation: bool = False) -> None:
        self._kinds = np.zeros(256, np.uint8)
        self._kinds[list(WHITE)] = WHITE_SPACE
        if punctuation:
            self._kinds[list(MARKS)] = PUNCTUATION

    def cut(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut texts into words.

        Args:
            data: uint8 `[N + PADDING]`, the texts back to back; bytes may be changed.
            offsets: int64 `[D+1]`, of the texts.

        Returns:
            Start and size of each word, int64 `[W]`, and the number of words before each text and in all,
            int64 `[D+1]`.
        """
        kinds = self._kinds[np.append(data[:-PADDING], WHITE[0])]
        begins = np.zeros(len(kinds), bool)
        begins[offsets] = True
        edges = begins[1:] | (kinds[1:] != OTHER) | (kinds[:-1] != OTHER)
        starts = np.append([True], edges)[:-1] & (kinds[:-1] != WHITE_SPACE)
        places = np.flatnonzero(starts)
        ends = np.flatnonzero(edges & (kinds[:-1] != WHITE_SPACE)) + 1
        return places, ends - places, np.searchsorted(places, offsets)


class SpacedCutter(Cutter):
    """Cuts before white space between plain characters, which becomes part of the next word.

    Args:
        normalize: normalizes a string.
        pieces: pieces of a Unigram model; for other models none.
        strips: whether the normalizer removes white space at the beginning of a text, as it would of a word.
        alike: characters that the pre-tokenizer treats like a space.
    """

    def __init__(
        self, normalize: Callable[[str], str], pieces: set[str], strips: bool = False, alike: str = " "
    ) -> None:
        super().__init__()
        self._plain = plain_characters(normalize)
        self.spaces = bytes(byte for byte in WHITE if normalize(f"x{chr(byte)}x") == "x x")
        """White space that becomes a space."""
        both = [f"x{chr(one)}{chr(other)}x" for one in self.spaces for other in self.spaces]
        self._runs = all(normalize(text) in [f"x{space}x" for space in alike] for text in both)
        """True if any run of white space is one space."""
        if strips and not self._runs:
            self._plain[:] = False
        self._after = self._plain.copy()
        """Characters that may follow a cut and its white space; if it strips, none that are removed."""
        self._after[:0x80] |= not strips
        self._white = np.isin(np.arange(256), list(self.spaces))
        self._at_end = LAST if self._after[0] else LAST | KEPT
        before, after = (np.where(allowed[:256], 0, KEPT) for allowed in (self._plain, self._after))
        before[0x80:] = after[0x80:] = WIDE
        flags = np.where(parted(normalize, pieces), PART, 0)
        flags[self._white[:, None] & ~self._white] = np.tile(FIRST | before[~self._white], len(self.spaces))
        flags[~self._white[:, None] & self._white] = np.repeat(LAST | after[~self._white], len(self.spaces))
        self._pairs = flags.astype(np.uint8).reshape(-1)
        """Flags of the place between two bytes, by the second and the first."""

    def cut(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut texts into words (see `Cutter.cut`); the first byte of a part gets bit 7.

        Where a run of white space becomes one space, all but its last byte are a word of size 0.
        """
        length = len(data) - PADDING
        flags = np.empty(length + 1, np.uint8)
        flags[1:] = self._pairs.take(np.ndarray((length,), "<u2", data, strides=(1,)))
        begins, after = self._white[data[offsets]], self._white[data[offsets - 1]]  # the padding is not
        flags[offsets] = np.where(begins, FIRST | KEPT, 0) | np.where(after, self._at_end, 0)
        firsts, ends = np.flatnonzero(flags & FIRST != 0), np.flatnonzero(flags & LAST != 0)
        before, after = flags[firsts], flags[ends]
        kept = ((before | after) & KEPT) > 0
        if len(wide := np.flatnonzero(before & WIDE != 0)):
            kept[wide] |= ~self._plain[_character_before(data, firsts[wide])]
        if len(wide := np.flatnonzero(after & WIDE != 0)):
            kept[wide] |= ~self._after[_character_at(data, ends[wide])]
        firsts, lasts = firsts[~kept], ends[~kept] - 1
        cuts = np.zeros(length + 1, np.uint8)
        cuts[offsets] = 1
        cuts[firsts] = 1
        parts = np.flatnonzero(flags & PART != 0)
        parts = parts[data[parts + 1] < 0x80]
        words = np.flatnonzero(cuts != 0)
        if len(long := np.flatnonzero(np.diff(words) > LONG)):
            parts = parts[~np.isin(np.searchsorted(words, parts, side="right") - 1, long)]
        cuts[parts] = 1
        data[parts] |= 0x80
        if self._runs:
            data[lasts] = ord(" ")
            longer = lasts > firsts
            cuts[lasts] = 1
            cuts[firsts[longer]] = 2
        starts = np.flatnonzero(cuts[:-1] != 0)
        sizes = np.diff(starts, append=length)
        if self._runs:
            sizes[cuts[starts] == 2] = 0
        return starts, sizes, np.searchsorted(starts, offsets)


def methods_of(json: str, reference: tokenizers.Tokenizer) -> tuple[Cutter, Unigrams | None]:
    """Cuts and model for a tokenizer.json, all of whose features are in `supported.SUPPORTED`."""
    whole = msgspec.json.decode(json)
    model, steps = whole["model"], [*steps_of(whole["pre_tokenizer"], "pretokenizers")]
    normalizer = reference.normalizer
    normalize_all = str if normalizer is None else normalizer.normalize_str
    first_steps = [*steps_of(whole["normalizer"], "normalizers")]
    replaced = {letter for step in first_steps for letter in (step.get("pattern") or {}).get("String", "")}

    def normalize(text: str) -> str:
        """Normalize; nothing for a character whose result depends on its neighbors."""
        return "" if text in replaced else normalize_all(text)

    kind = steps[-1]["type"] if steps else None
    if kind in REMOVING and (whole["normalizer"] or {}).get("type") in (None, "BertNormalizer"):
        return Cutter(punctuation=kind == "BertPreTokenizer"), None
    unigram = model["type"] == "Unigram"
    strips = any(step.get("strip_left") for step in first_steps)
    if not (unigram and kind == "Metaspace"):
        return SpacedCutter(normalize, set(), strips), None
    alike = " ▁" if len(steps) == 1 else " "  # WhitespaceSplit removes a space at the end, but no ▁
    cutter = SpacedCutter(normalize, {piece for piece, _ in model["vocab"]}, strips, alike)
    return cutter, Unigrams(model, normalize, cutter.spaces)


def plain_characters(normalize: Callable[[str], str]) -> np.ndarray:
    """Characters between which and a space text may be cut, bool `[0x10001]`, the last for all others.

    >>> np.flatnonzero(plain_characters(str))[[0, -1]].tolist() == [0x21, 0xD7A3]
    True
    """
    plain = np.zeros(0x10001, bool)
    numbers = [number for first, last in PLAIN for number in range(first, last + 1)]
    found = normalize(" ".join(f"x{chr(number)} {chr(number)}x" for number in numbers)).split(" ")
    if len(found) == 2 * len(numbers) and not any(map(UNCERTAIN.search, found)):
        for number, before, after in zip(numbers, found[::2], found[1::2], strict=True):
            plain[number] = len(before) > 1 and before[0] == "x" and len(after) > 1 and after[-1] == "x"
    return plain


def parted(normalize: Callable[[str], str], pieces: set[str]) -> np.ndarray:
    """Pairs of ASCII characters between which every best path of pieces has an edge, bool `[256, 256]`.

    These are two that no piece has side by side. Each of them is a piece, so neither is unknown: unknown
    characters side by side become one token.

    Returns:
        By the second character and the first.

    >>> [f"{x:c}{y:c}" for y, x in np.argwhere(parted(str, {"a", ".", "aa"}))]
    ['..', 'a.', '.a']
    """
    found = np.zeros((256, 256), bool)
    spelled = np.frombuffer("\0".join(pieces).encode() + b"\0", np.uint8)
    together = np.zeros((256, 256), bool)
    together[spelled[:-1], spelled[1:]] = True
    marks = [chr(number) for number in range(0x21, 0x7F) if normalize(chr(number)) in pieces]
    single = [(mark, normal) for mark in marks if "!" <= (normal := normalize(mark)) <= "~"]
    pairs = [(x + y, a + b) for x, a in single for y, b in single if not together[ord(a), ord(b)]]
    normals = normalize(" ".join(pair for pair, _ in pairs)).split(" ")
    if len(normals) == len(pairs):
        for (pair, normal), other in zip(pairs, normals, strict=True):
            found[ord(pair[1]), ord(pair[0])] = normal == other
    return found


def _character_before(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Character that ends before each place, int64; 0x10000 for those of four bytes."""
    found = data[places - 1].astype(np.int64)
    wide = np.flatnonzero(found >= 0x80)
    third, second = data[places[wide] - 3].astype(np.int64), data[places[wide] - 2].astype(np.int64)
    last = found[wide] & 0x3F
    two, three = (second & 0x1F) << 6 | last, (third & 0xF) << 12 | (second & 0x3F) << 6 | last
    found[wide] = np.where(second >= 0xC0, two, np.where(third >= 0xE0, three, 0x10000))
    return found


def _character_at(data: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Character that begins at each place, int64; 0x10000 for those of four bytes."""
    found = data[places].astype(np.int64)
    wide = np.flatnonzero(found >= 0x80)
    first = found[wide]
    second, third = (data[places[wide] + step].astype(np.int64) & 0x3F for step in (1, 2))
    three = (first & 0xF) << 12 | second << 6 | third
    found[wide] = np.where(first < 0xE0, (first & 0x1F) << 6 | second, np.where(first < 0xF0, three, 0x10000))
    return found
