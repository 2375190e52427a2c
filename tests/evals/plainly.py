"""Words and overlaps a second way: docs/evals.md in plain Python over texts, a character at a time.

Nothing of packline's own cutting or searching is used; scripts are Unicode's blocks and not names of
characters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packline
from packline.facade import Store

WriteJsonl = Callable[..., Path]
SPACELESS = (
    (0xE01, 0xE4E), (0xE81, 0xEDF), (0x1000, 0x109F), (0x1780, 0x17DD), (0x1950, 0x1974),
    (0x1980, 0x19DF), (0x1A20, 0x1AAD), (0x1B00, 0x1B4C), (0x2E80, 0x2FD5), (0x3005, 0x3007),
    (0x3021, 0x3029), (0x3031, 0x3035), (0x3038, 0x303C), (0x3041, 0x3096), (0x309D, 0x30FF),
    (0x3105, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
    (0xA000, 0xA48C), (0xA980, 0xA9DF), (0xA9E0, 0xA9FE), (0xAA60, 0xAADF), (0xF900, 0xFAD9),
    (0xFF66, 0xFF9D), (0x16FE0, 0x16FE4), (0x17000, 0x18D7F), (0x1AFF0, 0x1B2FB), (0x11700, 0x11746),
    (0x20000, 0x3FFFF), (0x17F0, 0x17F9), (0x1B6B, 0x1B73), (0x302A, 0x302D), (0x3192, 0x3195),
    (0x1D372, 0x1D376),
)  # fmt: skip
"""Blocks of the scripts that docs/evals.md names, from Unicode's Scripts.txt."""
SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))


def within(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(first <= ord(character) <= last for first, last in ranges)


def plain_kind(character: str) -> str:
    """What docs/evals.md says that a character is."""
    category = unicodedata.category(character)
    if character.isascii():
        return "letter" if character.isalnum() else "between"
    if character in "\u3099\u309a\uff9e\uff9f":
        return "mark"
    if 0x2E80 <= ord(character) <= 0x2FD5 and category == "So":
        return "single"
    if within(character, SELECTORS) or category[0] in "PSZ" or category in ("Cc", "Cf"):
        return "between"
    if category in ("Nd", "Cn", "Co") and not within(character, ((0x20000, 0x3FFFF),)):
        return "letter"
    if within(character, SPACELESS):
        return "mark" if category[0] == "M" else "single"
    return "letter"


def plain_words(text: str) -> list[str]:
    """The words of docs/evals.md, a character at a time."""
    words: list[str] = []
    before = "between"
    for character in text:
        kind = plain_kind(character)
        joined = before != "between" and (kind == "mark" or (kind == "letter" and before == "letter"))
        if joined:
            words[-1] += character
        elif kind != "between":
            words.append(character)
        before = kind
    return [plain_form(word) for word in words]


def plain_form(word: str) -> str:
    form = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).lower())
    return "".join(one for one in form if not one.isascii() or one.isalnum())


def plain_grams(words: list[Any], n: int) -> set[tuple[Any, ...]]:
    grams = {tuple(words[place : place + n]) for place in range(len(words) - n + 1)}
    return {gram for gram in grams if 2 * len(set(gram)) >= n}


def build(folder: Path, texts: list[str], tokenizer_json: Path, write_jsonl: WriteJsonl) -> Store:
    corpus = write_jsonl(
        folder / "corpus.jsonl", [{"text": one, "id": f"n{n}"} for n, one in enumerate(texts)]
    )
    packline.build(corpus, tokenizer_json, out=folder / "store", workers=0)
    return packline.open(folder / "store")
