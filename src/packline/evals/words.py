"""Words of a text, independent of case, punctuation and Unicode form: as bytes, with a hash of each.

    "Don't  stop -- believing!"  ->  don t stop believing
    "GPT模型，ＧＰＴ"              ->  gpt 模 型 gpt

Each character has a class:

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

A single letter is a word alone, with the marks that follow it. Words are in lower case and in
NFKC form, so half width, full width and decomposed letters become the usual ones.

Word boundaries depend on neighboring characters alone, so a part of a text is split like the whole text,
except for its first and its last word. Python strings are made only for words beyond ASCII that lower case or
NFKC may change.

A word is hashed eight bytes at a time, `sum(mix(block[i]) * BASE**i)`: nearly all words are one block, which
is one read of the text. Cost: about 3 ns per byte of ASCII, of which 2 for hashes.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from packline.ragged import distinct_values

BASE = 0x9E3779B97F4A7C15
"""Odd multiplier of hashes, of words and of grams."""
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
SPACE = 32
LOWER = bytes(
    byte + 32 if 65 <= byte <= 90 else byte if byte >= 128 or chr(byte).isalnum() else SPACE
    for byte in range(256)
)
"""Table for `bytes.translate` that handles all of ASCII."""
BLOCK = 8
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(BLOCK + 1)], np.uint64)
"""Masks for the bytes of a partly filled block, by their number."""

_NOWHERE = np.empty(0, np.int64)


class Words(NamedTuple):
    """Words of a text."""

    data: np.ndarray
    """The text, uint8, with spaces in place of characters that belong to no word."""
    starts: np.ndarray
    """Start of each word in `data`, int64 `[W]`."""
    ends: np.ndarray
    """End of each word, int64 `[W]`."""
    hashes: np.ndarray
    """uint64 `[W]`, equal for equal words."""
    changed: dict[int, bytes]
    """Words that lower case or NFKC changes, by number."""

    def spellings(self, first: int, last: int) -> list[bytes]:
        """Words `first` to `last` (exclusive).

        >>> words = split_words(np.frombuffer("ＧＰＴ模型".encode(), np.uint8))
        >>> words.spellings(0, 2) == [b"gpt", "模".encode()]
        True
        """
        if first >= last:
            return []
        offset = int(self.starts[first])
        whole = self.data[offset : self.ends[last - 1]].tobytes()
        places = zip(
            (self.starts[first:last] - offset).tolist(),
            (self.ends[first:last] - offset).tolist(),
            strict=True,
        )
        found = [whole[start:end] for start, end in places]
        if self.changed:
            found = [self.changed.get(first + place, word) for place, word in enumerate(found)]
        return found


def split_words(text: np.ndarray) -> Words:
    """Split a text into words.

    Args:
        text: uint8, translated by `LOWER`. It is not changed.

    >>> words = split_words(np.frombuffer("Don’t stop!".encode().translate(LOWER), np.uint8))
    >>> words.spellings(0, 3)
    [b'don', b't', b'stop']
    """
    size = len(text)
    # The last word may be less than a block, but a block is read as a whole.
    padded = np.full(size + BLOCK, SPACE, np.uint8)
    data = padded[:size]
    data[:] = text
    fresh: np.ndarray | None = None
    suspects = _NOWHERE
    if size and int(data.max()) >= 0x80:
        fresh, suspects = _look_up(padded, size)
    inside = np.zeros(size + 2, np.bool_)
    np.not_equal(data, SPACE, out=inside[1:-1])
    edges = inside[1:] != inside[:-1]
    if fresh is None:
        places = np.flatnonzero(edges)
        starts, ends = places[::2], places[1::2]
    else:
        fresh &= inside[1:]
        fresh &= inside[:-1]  # a word begins there, and another ends
        starts, ends = np.flatnonzero(edges & inside[1:] | fresh), np.flatnonzero(edges & inside[:-1] | fresh)
    hashes = _hashes(padded, starts, ends)
    changed: dict[int, bytes] = {}
    if len(suspects):
        numbers = distinct_values(np.searchsorted(starts, suspects, side="right") - 1)
        for number in numbers.tolist():
            word = data[starts[number] : ends[number]].tobytes()
            if (form := _normal(word)) != word:
                changed[number] = form
    if changed:
        sizes = np.array([len(word) for word in changed.values()])
        behind = np.cumsum(sizes)
        joined = np.frombuffer(b"".join([*changed.values(), b" " * BLOCK]), np.uint8)
        hashes[list(changed)] = _hashes(joined, behind - sizes, behind)
    return Words(data, starts, ends, hashes, changed)


def _look_up(padded: np.ndarray, size: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Replace characters between words by spaces, in place, and find the boundaries that spaces do not show.

    Returns:
        True where a word begins whatever is before it, bool `[size + 1]`, or None if there is no such
        position; and positions of characters that may not be in lower case and NFKC.
    """
    leads = np.flatnonzero(padded[:size] >= 0xC0)
    widths, entries, broken = _entries(padded, leads)
    kinds = entries & KIND
    between = kinds == BETWEEN
    places, sizes = leads[between], widths[between]
    for step in range(4):
        if step >= 2:
            places = places[sizes > step]
            sizes = sizes[sizes > step]
        padded[places + step] = SPACE
    fresh: np.ndarray | None = None
    alone = kinds >= SINGLE
    if alone.any():
        fresh = np.zeros(size + 1, np.bool_)
        fresh[leads[kinds == SINGLE]] = True
        fresh[leads[alone] + widths[alone]] = True
        fresh[leads[kinds == MARK]] = False
        fresh[leads[broken]] = False  # it may be a mark
    moved = (entries & REORDERED) != 0
    suspect = (entries & UNSTABLE) != 0
    suspect[1:] |= moved[1:] & moved[:-1] & (leads[1:] == leads[:-1] + widths[:-1])
    return fresh, leads[suspect]


def _entries(padded: np.ndarray, leads: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes, entries in `classes`, and brokenness of the characters that begin at some positions.

    Broken means invalid UTF-8, such as half a character at the edge of a chunk: each byte counts as a letter
    of the word before.
    """
    lead, one, two = (padded[leads + step] for step in range(3))
    widths = np.full(len(leads), 2, np.int64)
    widths[lead >= 0xE0] = 3
    well = one & 0xC0 == 0x80
    well &= (lead < 0xE0) | (two & 0xC0 == 0x80)
    codes = (lead & np.uint8(0x1F)).astype(np.int32) << 6 | one & np.uint8(0x3F)
    longer = lead >= 0xE0
    codes[longer] = (codes[longer] & 0x3FF) << 6 | two[longer] & np.uint8(0x3F)
    if len(lead) and int(lead.max()) >= 0xF0:
        wide = np.flatnonzero(lead >= 0xF0)
        widths[wide] = 4
        three = padded[leads[wide] + 3]
        codes[wide] = codes[wide] << 6 | three & np.uint8(0x3F)
        well[wide] &= (three & 0xC0 == 0x80) & (codes[wide] <= 0x10FFFF)
    broken = ~well
    codes[broken], widths[broken] = 0, 1
    return widths, classes()[codes], broken


@lru_cache(maxsize=1 << 16)
def _normal(word: bytes) -> bytes:
    """Convert a word to lower case and NFKC form; never empty."""
    form = unicodedata.normalize("NFKC", word.decode("utf-8", "surrogateescape")).lower()
    form = unicodedata.normalize("NFKC", form)
    return b"".join(form.encode("utf-8", "surrogateescape").translate(LOWER).split()) or word


def spelled(words: list[bytes]) -> str:
    """Join words for display: with spaces between them, except in scripts that have none.

    >>> spelled([b"gpt", "模".encode(), "型".encode()])
    'gpt 模型'
    """
    table = classes()
    found = ""
    for word in words:
        text = word.decode("utf-8", "replace")
        alone = found and (table[ord(found[-1])] & KIND) >= SINGLE and (table[ord(text[0])] & KIND) >= SINGLE
        found += text if alone or not found else f" {text}"
    return found


def _hashes(padded: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Compute hashes of words.

    Args:
        padded: uint8, with `BLOCK` bytes more than the last word needs.
    """
    # The eight bytes from each position.
    blocks = np.ndarray((len(padded) - BLOCK + 1,), "<u8", padded.data, strides=(1,))
    lengths = ends - starts
    hashes = _mixed(blocks[starts] & _MASKS[np.minimum(lengths, BLOCK)])
    longer = np.flatnonzero(lengths > BLOCK)
    if len(longer):
        counts = (lengths[longer] - 1) // BLOCK
        firsts = np.cumsum(counts) - counts
        steps = np.arange(1, int(counts.sum()) + 1) - np.repeat(firsts, counts)
        at = np.repeat(starts[longer], counts) + steps * BLOCK
        left = np.minimum(np.repeat(ends[longer], counts) - at, BLOCK)
        powers = np.multiply.accumulate(np.full(int(counts.max()), BASE, np.uint64))
        rest = _mixed(blocks[at] & _MASKS[left]) * powers[steps - 1]
        hashes[longer] += np.add.reduceat(rest, firsts)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(BASE)
    return hashes ^ (hashes >> np.uint64(32))


def _mixed(blocks: np.ndarray) -> np.ndarray:
    """Mix high bits of each block into its low ones and vice versa: a product alone only moves bits up."""
    return (blocks ^ (blocks >> np.uint64(32))) * np.uint64(BASE)


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
        table[code] = character_class(character)
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
