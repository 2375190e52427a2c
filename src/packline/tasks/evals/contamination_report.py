"""What a search for evaluation sets gives: of each set and each source how much was found, and where.

It does not search, and knows no terminal.
"""

from __future__ import annotations

from typing import Literal

import msgspec

GramOf = Literal["words", "tokens"]


class Overlap(msgspec.Struct, frozen=True):
    """A document that says what a question says."""

    document: int
    """Its number in the store."""
    source: str
    file: str
    position: int
    id: str | None
    split: str
    set: str
    question: int
    """Its number in its set."""
    length: int
    """Words or tokens in a row, the longest stretch."""
    text: str
    """That stretch, normalised, at most its first 400 characters."""


class SetFound(msgspec.Struct):
    """What was found of a set."""

    questions: int
    unchecked: int = 0
    """Of these, not looked for: too short, or all their grams left out."""
    too_short: int = 0
    """Of the unchecked, those with fewer words or tokens than a gram."""
    found: int = 0
    """Of these, found in some document."""
    documents: dict[str, int] = msgspec.field(default_factory=dict)
    """By source: documents that have something of the set."""


class ContaminationReport(msgspec.Struct):
    """Result of a search."""

    clean: bool
    """Whether every question was checked and none was found."""
    questions: int
    """Of all sets."""
    found: int
    """Of these, found in some document."""
    unchecked: int
    """Of these, not checked: nothing is known of them."""
    n: int
    gram_of: GramOf
    normalisation: str
    grams: int
    common_grams: int
    """Left out because too many questions have them."""
    repetitive_grams: int
    """Left out because they say the same again and again."""
    sets: dict[str, SetFound]
    sources: dict[str, tuple[int, int]]
    """By source: documents with an overlap, and all documents."""
    overlaps: list[Overlap]
    """The longest, at most 100; of a document and a question one."""
    not_listed: int
    documents: int
    tokens: int
    bytes: int
    """Of the shards."""
    seconds: float = 0.0
    """Of looking through the shards."""


NORMALISATION = {
    "words": "lower case and NFKC, without punctuation and white space; "
    "in scripts without spaces each character is a word",
    "tokens": "none: equal ids of the store's tokenizer",
}
