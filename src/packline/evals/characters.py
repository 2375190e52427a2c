"""Classes of characters in words: between words, part of a word, or a word alone.

    between   categories P, S, Z, Cc and Cf; variation selectors     “ ， ؟ ། · → € U+200D U+FE0F
    letter    everything else: joined with its neighbors             é ж 한 व ﬁ Ｇ ٣
    single    letters of scripts without spaces between words     北 ひ カ ー ㄅ ท ລ ខ မ
    mark      marks of these scripts: belong to the letter before     U+0E34 (Thai), U+102D (Myanmar), U+3099

A script has no spaces between words if it is Han, Hiragana, Katakana, Bopomofo, Yi, Tangut, Nushu, Khitan,
Thai, Lao, Khmer, Myanmar, Tai Le, New Tai Lue, Tai Tham, Tai Viet, Ahom, Javanese or Balinese: the letters of
the classes ID, CJ and SA of UAX #14 (line breaking), and the two of its Brahmic scripts (AK) that are written
today. The script is taken from the character's name. Digits are letters in every script, so a number is one
word. Tibetan needs no rule: its syllables are separated by U+0F0B, which is punctuation. Korean and
Vietnamese have spaces.

The classes are those of this Python's Unicode; a table of all code points takes 1.1 MB and 0.15 s, once per
process that sees a character beyond ASCII.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import numpy as np

LETTER, BETWEEN, SINGLE, MARK = range(4)
KIND = 3
"""Bits of a table entry for its class; the others are `UNSTABLE` and `REORDERED`."""
UNSTABLE = 4
"""Flag: lower case or NFKC changes this character, or may join it to the one before."""
REORDERED = 8
"""Flag: has a combining class, so NFKC may swap two of these that follow each other."""

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
"""Han, Tangut with Khitan, and Hangul syllables: large blocks of one class, which NFKC leaves unchanged."""
PLANES = 2
"""Planes 0 and 1 are looked up per character; 2 and 3 contain only Han, 14 tags and variation selectors."""
SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))


def class_of(character: str) -> int:
    """Class of one character.

    >>> [class_of(one) for one in "é，北\u0e34"] == [LETTER, BETWEEN, SINGLE, MARK]
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
    """Class and flags of every code point, uint8 `[0x110000]`.

    >>> int(classes()[ord("北")]) == SINGLE
    True
    """
    table = np.zeros(0x110000, np.uint8)
    joined = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # jamo
    for first, last, kind in ALIKE:
        table[first : last + 1] = kind
    alike = {code for first, last, _ in ALIKE for code in range(first, last + 1)}
    for code in range(0x80, PLANES << 16):
        character = chr(code)
        category = unicodedata.category(character)
        if code in alike or category in ("Cn", "Co", "Cs"):
            continue
        table[code] = class_of(character)
        parts = unicodedata.decomposition(character)
        if character.lower() != character or (parts and not unicodedata.is_normalized("NFKC", character)):
            table[code] |= UNSTABLE
        if parts and parts[0] != "<" and " " in parts:
            joined.add(int(parts.rpartition(" ")[2], 16))
        if category[0] == "M" and unicodedata.combining(character):
            table[code] |= REORDERED
    table[sorted(joined)] |= UNSTABLE  # these may be joined to the one before
    table[(table & KIND) == BETWEEN] = BETWEEN
    table[0x20000:0x40000] = SINGLE
    table[0x2F800:0x2FA20] |= UNSTABLE  # CJK Compatibility Ideographs Supplement
    table[0xE0000:0xE1000] = BETWEEN
    return table
