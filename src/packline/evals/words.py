"""Words of a text, independent of case, punctuation and Unicode form.

    "Don't  stop -- believing!"  ->  don t stop believing
    "GPT模型，ＧＰＴ"              ->  gpt 模 型 gpt

Each character has a class:

    between   categories P, S, Z, Cc and Cf; variation selectors     “ ， ؟ ། · → € U+200D U+FE0F
    letter    everything else: joined with its neighbors             é ж 한 व ﬁ Ｇ ٣
    single    letters of scripts without spaces between words     北 ひ カ ー ㄅ ท ລ ខ မ
    mark      marks of these scripts: belong to the letter before     U+0E34 (Thai), U+102D (Myanmar), U+3099
    broken    bytes of an incomplete character: belong to the word before

A script has no spaces between words if it is Han, Hiragana, Katakana, Bopomofo, Yi, Tangut, Nushu, Khitan,
Thai, Lao, Khmer, Myanmar, Tai Le, New Tai Lue, Tai Tham, Tai Viet, Ahom, Javanese or Balinese: the letters of
the classes ID, CJ and SA of UAX #14 (line breaking), and the two of its Brahmic scripts (AK) that are written
today. The script is taken from the character's name. Digits are letters in every script, so a number is one
word. Tibetan needs no rule: its syllables are separated by U+0F0B, which is punctuation. Korean and
Vietnamese have spaces.

The classes are those of this Python's Unicode; a table of all code points takes 1.1 MB and 0.15 s, once per
process that sees a character beyond ASCII.

A single letter is a word alone, with the marks that follow it. Words are in lower case and in NFKC form, so
half width, full width and decomposed letters become the usual ones. Word boundaries depend on neighboring
characters alone, so a part of a text is split like the whole text, except for its first and its last word.

Arrow finds the distinct words of a text; only those of them that are beyond ASCII become Python strings.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

LETTER, BETWEEN, SINGLE, MARK, BROKEN = range(5)

PREFIXES = (
    "CJK ", "KANGXI ", "IDEOGRAPHIC ", "HANGZHOU ", "OLD CHINESE ", "BOPOMOFO ", "YI ", "TANGUT ", "NUSHU ",
    "KHITAN ", "HIRAGANA ", "KATAKANA", "HALFWIDTH KATAKANA", "HENTAIGANA ", "VERTICAL KANA ", "MASU ",
    "VERTICAL IDEOGRAPHIC ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TAI ", "NEW TAI ", "AHOM ", "JAVANESE ",
    "BALINESE ",
)  # fmt: skip
"""Prefixes of the names of characters of these scripts."""
VOICED = "\u3099\u309a\uff9e\uff9f"
"""Voiced sound marks of kana, full and half width."""
ALIKE = (
    (0x3400, 0x4DBF, SINGLE),
    (0x4E00, 0x9FFF, SINGLE),
    (0x17000, 0x18D7F, SINGLE),
    (0xAC00, 0xD7A3, LETTER),
)
"""Han, Tangut with Khitan, and Hangul syllables: large blocks of one class."""
PLANES = 2
"""Planes 0 and 1 are looked up per character; 2 and 3 contain only Han, 14 tags and variation selectors."""
SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))
SPACE = 32
LOWER = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or chr(byte).isalnum() else SPACE
    for byte in range(256)
)
"""Table for `bytes.translate` that handles all of ASCII."""


class Words(NamedTuple):
    """Words of a text."""

    distinct: pa.Array
    """Spellings, binary; the same one may be there more than once."""
    numbers: np.ndarray
    """Number of each word in `distinct`, int32 `[W]`."""
    starts: np.ndarray
    """First byte of each word in the text, int64 `[W]`."""

    def spellings(self) -> list[bytes]:
        """All words in order."""
        found: list[bytes] = self.distinct.take(pa.array(self.numbers)).to_pylist()
        return found


def split_words(text: np.ndarray) -> Words:
    """Split a text (uint8, at most 2 GB, translated by `LOWER`) into words.

    >>> split_words(np.frombuffer("Don’t stop!".encode().translate(LOWER), np.uint8)).spellings()
    [b'don', b't', b'stop']
    """
    starts = _starts(text)
    # Each piece ends where the next word begins: what is between them is removed from the distinct ones.
    offsets = np.append(starts, len(text)).astype(np.int32)
    pieces = pa.Array.from_buffers(
        pa.string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text))]
    ).dictionary_encode()
    trimmed = pc.ascii_rtrim_whitespace(pieces.dictionary)
    beyond = pc.invert(pc.string_is_ascii(trimmed))
    distinct = trimmed.cast(pa.binary())
    forms = [_normal(word) for word in distinct.filter(beyond).to_pylist()]
    if forms:
        distinct = pc.replace_with_mask(distinct, beyond, pa.array(forms, pa.binary()))
    return Words(distinct, pieces.indices.to_numpy(), starts)


def _starts(text: np.ndarray) -> np.ndarray:
    """First byte of each word, int64."""
    if not len(text) or int(text.max()) < 0x80:
        inside = text != SPACE
        inside[1:] &= text[:-1] == SPACE
        return np.flatnonzero(inside)
    decoded = text.tobytes().decode("utf-8", "surrogateescape")
    codes = np.frombuffer(decoded.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = classes()[codes]
    before = np.concatenate([np.array([BETWEEN], np.uint8), kinds[:-1]])
    begins = (kinds == LETTER) & (before != LETTER) & (before != BROKEN)
    begins |= (kinds == SINGLE) | ((before == BETWEEN) & (kinds != BETWEEN))
    widths = (codes >= 0x80).astype(np.uint8)
    widths += codes >= 0x800
    widths += codes >= 0x10000
    widths[kinds == BROKEN] = 0
    places = np.flatnonzero(begins)
    return places + (np.cumsum(widths, dtype=np.int64) - widths)[places]


@lru_cache(maxsize=1 << 16)
def _normal(word: bytes) -> bytes:
    """Convert a word to lower case and NFKC form, without characters between words; never empty."""
    table = classes()
    own = "".join(one for one in word.decode("utf-8", "surrogateescape") if table[ord(one)] != BETWEEN)
    form = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", own).lower())
    plain = b"".join(form.encode("utf-8", "surrogateescape").translate(LOWER).split())
    return plain or own.encode("utf-8", "surrogateescape")


def spelled(words: list[bytes]) -> str:
    """Join words for display: with spaces between them, except in scripts that have none.

    >>> spelled([b"gpt", "模".encode(), "型".encode()])
    'gpt 模型'
    """
    table = classes()
    found = ""
    for word in words:
        text = word.decode("utf-8", "replace")
        alone = found and all(table[ord(one)] in (SINGLE, MARK) for one in (found[-1], text[0]))
        found += text if alone or not found else f" {text}"
    return found


def character_class(character: str) -> int:
    """Class of one character.

    >>> [character_class(one) for one in "é，北\u0e34"] == [LETTER, BETWEEN, SINGLE, MARK]
    True
    """
    code, category = ord(character), unicodedata.category(character)
    for first, last, kind in ALIKE:
        if first <= code <= last:
            return kind
    if any(first <= code <= last for first, last in SELECTORS):
        return BETWEEN
    if character in VOICED:
        return MARK
    name = unicodedata.name(character, "")
    own = name.startswith(PREFIXES)
    if name.startswith(("CJK RADICAL", "KANGXI ")):  # symbols that represent the character of the same form
        return SINGLE
    if category[0] in "PSZ" or category in ("Cc", "Cf"):
        return BETWEEN
    if not own or category == "Nd":
        return LETTER
    return MARK if category[0] == "M" else SINGLE


@lru_cache(maxsize=1)
def classes() -> np.ndarray:
    """Class of every code point, uint8 `[0x110000]`.

    >>> int(classes()[ord("北")]) == SINGLE
    True
    """
    table = np.zeros(0x110000, np.uint8)
    table[:0x80] = np.where(np.frombuffer(LOWER[:0x80], np.uint8) == SPACE, BETWEEN, LETTER)
    for code in range(0x80, PLANES << 16):
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs"):
            table[code] = character_class(chr(code))
    for first, last, kind in ALIKE:
        table[first : last + 1] = kind
    table[0xDC80:0xDD00] = BROKEN
    table[0x20000:0x40000] = SINGLE
    table[0xE0000:0xE1000] = BETWEEN
    return table
