"""Report of a search for evaluation sets: overlaps by set and by source, with their locations."""

from __future__ import annotations

from typing import Literal

import msgspec

GramOf = Literal["words", "tokens"]


class Overlap(msgspec.Struct, frozen=True):
    """An overlap of a document with a question."""

    document: int
    """Number of the document in the store."""
    source: str
    file: str
    position: int
    id: str | None
    split: str
    set: str
    question: int
    """Number of the question in its set."""
    length: int
    """Length of the longest overlap, in words or tokens."""
    text: str
    """Text of that overlap, normalized, at most its first 400 characters."""


class SetFound(msgspec.Struct):
    """Results for one set."""

    questions: int
    unchecked: int = 0
    """Questions not checked: too short, or all their grams left out."""
    too_short: int = 0
    """Unchecked questions with fewer words or tokens than a gram."""
    found: int = 0
    """Questions found in some document."""
    documents: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of documents with an overlap with the set, by source."""


class ContaminationReport(msgspec.Struct):
    """Result of a search."""

    clean: bool
    """True if every question was checked and none was found."""
    questions: int
    """Number of questions of all sets."""
    found: int
    """Questions found in some document."""
    unchecked: int
    """Questions not checked: nothing is known about them."""
    n: int
    gram_of: GramOf
    normalisation: str
    grams: int
    common_grams: int
    """Grams left out because too many questions share them."""
    repetitive_grams: int
    """Grams left out because they consist of repetitions."""
    sets: dict[str, SetFound]
    sources: dict[str, tuple[int, int]]
    """Documents with an overlap and all documents, by source."""
    overlaps: list[Overlap]
    """The longest overlaps, at most 100; one per document and question."""
    not_listed: int
    documents: int
    tokens: int
    bytes: int
    """Size of the shards."""
    seconds: float = 0.0
    """Time spent searching the shards."""


NORMALISATION = {
    "words": "lower case and NFKC, without punctuation and white space; "
    "in scripts without spaces each character is a word",
    "tokens": "none: equal ids of the store's tokenizer",
}
