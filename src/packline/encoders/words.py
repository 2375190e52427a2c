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
                                                      normalizer makes neither white space nor nothing;
                                                      before punctuation at the end of a word, if no piece
                                                      has both it and the character before it

`engines.SUPPORTED` lists the normalizers and pre-tokenizers of which this is true. Text with added tokens is
encoded by the reference as a whole.

Cost: 15 to 30 ms per MB of text where all words are known; 2 us for a new word (`unigrams`), 10 us for one
that only the reference can encode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from packline.encoders import EngineName
from packline.encoders.features import steps_of
from packline.encoders.unigrams import Unigrams
from packline.encoders.word_table import MOST, PADDING, Keys, WordTable
from packline.ragged import Ragged, concatenate
from packline.sources.batch import Texts

if TYPE_CHECKING:
    import tokenizers

OTHER, WHITE_SPACE, PUNCTUATION = 0, 1, 2
AT_ONCE = 4096
"""New words that are encoded together."""
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
            self._table = self._cutter.new_table()
        if len(self._table) > MOST:
            self._table = self._cutter.new_table()
        offsets = texts.offsets
        data = np.zeros(int(offsets[-1]) + PADDING, np.uint8)
        data[:-PADDING] = np.frombuffer(texts.data, np.uint8)
        starts, sizes, first = self._cutter.cut(data, offsets)
        keys = Keys(data, starts, sizes)
        slots = self._table.find(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            slots[missing] = self._learn(data, starts[missing], sizes[missing])
        words = self._table.words.take(slots)
        return Ragged(words.tokens, words.offsets[first])

    def _learn(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Add words that the table lacks, and return the slot of each, int64 `[W]`."""
        text, first = data.tobytes(), len(self._table)
        words = [
            text[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        ]
        numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
        which = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        _, once = np.unique(which, return_index=True)
        for some in range(0, len(once), AT_ONCE):
            part = once[some : some + AT_ONCE]
            self._table.add(Keys(data, starts[part], sizes[part]), self._encode([words[one] for one in part]))
        return first + which

    def _encode(self, words: list[bytes]) -> Ragged:
        """Encode distinct words."""
        if self._model is None:
            return self._reference.encode(Texts.of([word.decode() for word in words]))
        tokens, known = self._model.encode(words)
        if known.all():
            return tokens
        left = np.flatnonzero(~known)
        rest = self._reference.encode(Texts.of([words[one].decode() for one in left]))
        places = np.arange(len(words))
        places[left] = len(words) + np.arange(len(left))
        return concatenate([tokens, rest]).take(places)


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

    def new_table(self) -> WordTable:
        """Table with all words that are not to be encoded by themselves."""
        return WordTable()


class SpacedCutter(Cutter):
    """Cuts before white space between plain characters, which becomes part of the next word.

    Args:
        normalize: normalizes a string.
        pieces: pieces of a Unigram model and their ids; for other models none.
    """

    def __init__(self, normalize: Callable[[str], str], pieces: dict[str, int]) -> None:
        super().__init__()
        self._plain = plain_characters(normalize)
        self.spaces = bytes(byte for byte in WHITE if normalize(f"x{chr(byte)}x") == "x x")
        """White space that becomes a space."""
        both = [f"x{chr(one)}{chr(other)}x" for one in self.spaces for other in self.spaces]
        self._runs = all(normalize(text) in ("x x", "x▁x") for text in both)
        """True if any run of white space is one space."""
        self._kinds[:] = OTHER
        self._kinds[list(self.spaces)] = WHITE_SPACE
        self._ends, self._parted = final_marks(normalize, pieces)

    def cut(self, data: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cut texts into words (see `Cutter.cut`); punctuation that ends a word gets bit 7."""
        length = len(data) - PADDING
        begins = np.zeros(length + 1, bool)
        begins[offsets] = True
        white = self._kinds[data[: length + 1]] == WHITE_SPACE  # the padding is not
        edges = begins[1:] | ~white[1:]
        lasts = np.flatnonzero(white[:-1] & edges)
        firsts = np.flatnonzero(white[:-1] & np.append([True], (begins[1:] | ~white[:-1])[:-1]))
        before, after = _character_before(data, firsts), _character_at(data, lasts + 1)
        cut = ~begins[firsts] & self._plain[before] & ((after < 0x80) | self._plain[after])
        firsts, lasts = firsts[cut], lasts[cut]
        cuts = begins[:-1].copy()
        cuts[firsts] = True
        ends = np.concatenate([firsts, offsets[1:][np.diff(offsets) > 1]])
        ends = ends[ends > 1]
        marks = ends[self._parted[data[ends - 2], data[ends - 1]]] - 1
        marks = marks[~begins[marks]]
        cuts[marks] = True
        data[marks] |= 0x80
        starts = np.flatnonzero(cuts)
        sizes, numbers = np.diff(starts, append=length), np.searchsorted(starts, offsets)
        if self._runs:
            skipped = np.zeros(length, np.int64)
            skipped[firsts] = lasts - firsts
            data[lasts] = ord(" ")
            starts, sizes = starts + skipped[starts], sizes - skipped[starts]
        return starts, sizes, numbers

    def new_table(self) -> WordTable:
        """Table with punctuation that ends a word, as no text has it: with bit 7."""
        table = WordTable()
        data = np.array([mark | 0x80 for mark in self._ends] + [0] * PADDING, np.uint8)
        every = np.arange(len(self._ends))
        ids = np.array(list(self._ends.values()), np.uint32)
        table.add(Keys(data, every, np.ones_like(every)), Ragged(ids, np.arange(len(ids) + 1)))
        return table


def methods_of(json: str, reference: tokenizers.Tokenizer) -> tuple[Cutter, Unigrams | None]:
    """Cuts and model for a tokenizer.json, all of whose features are in `engines.SUPPORTED`."""
    whole = msgspec.json.decode(json)
    model, steps = whole["model"], [*steps_of(whole["pre_tokenizer"], "pretokenizers")]
    normalizer = reference.normalizer
    normalize = str if normalizer is None else normalizer.normalize_str
    kind = steps[-1]["type"] if steps else None
    if kind in REMOVING and (whole["normalizer"] or {}).get("type") in (None, "BertNormalizer"):
        return Cutter(punctuation=kind == "BertPreTokenizer"), None
    unigram = model["type"] == "Unigram"
    ids = {piece: number for number, (piece, _) in enumerate(model["vocab"])} if unigram else {}
    cutter = SpacedCutter(normalize, ids)
    return cutter, Unigrams(model, normalize, cutter.spaces) if unigram and kind == "Metaspace" else None


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


def final_marks(normalize: Callable[[str], str], pieces: dict[str, int]) -> tuple[dict[int, int], np.ndarray]:
    """Ids of ASCII punctuation as pieces, and after which characters it is a token at the end of any word.

    A best path of pieces goes through every place that no piece covers, and one character has one path.

    Returns:
        Ids by byte, and whether the second of two bytes is always a token, bool `[256, 256]`.
    """
    parted = np.zeros((256, 256), bool)
    pairs = {pair for piece in pieces for pair in map("".join, pairwise(piece))}
    single = {mark: normalize(chr(mark)) for mark in range(0x21, 0x7F)}
    ends = {mark: pieces[single[mark]] for mark in MARKS if len(single[mark]) == 1 and single[mark] in pieces}
    for mark in ends:
        for before, normal in single.items():
            both = normal + single[mark]
            alone = bool(normal) and both[-2:] not in pairs
            parted[before, mark] = alone and normalize(chr(before) + chr(mark)) == both
    return ends, parted


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
