"""Parity: what holds every engine to the reference tokenizer.

Before the build, each engine encodes a few of the user's own documents, and one that differs is not
used. During it, a few documents of every unit are encoded again by the reference and decoded back;
there a difference stops the build, with the document's place, before the unit is committed.

The reference makes 1 to 2 MB/s, so the cost is what is looked at: a handful of documents a unit, and of
a long one its start, where the ids must begin alike. Only if they do not is the whole of it encoded
again. It is a sample, not a proof: `packline verify --deep` looks at more.
"""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np

from packline.encoders.engine import Engine
from packline.encoders.report import ENGINE_NAMES, EngineName, EngineReport
from packline.errors import EncoderMismatch, PacklineError
from packline.sources.texts import Texts

if TYPE_CHECKING:
    import tokenizers

AUDIT_EVERY = 8
"""Documents 0, 8, 64, 512, ... of a unit are looked at: more of a larger one, never many."""
AUDIT_CHARS = 1 << 10
"""Of one document: 1 ms of the reference's time."""
DECODE_CHARS = 16 << 10
WHOLE_CHARS = 1 << 20
UNSURE_TOKENS = 8
"""Tokens before a cut that the text behind it may change."""

RoundTrip = Literal["exact", "normalized", "lossy"]

PROBES = (
    "Plain words, in 1 or 2 sentences.",
    "  spaces   before, within and after  ",
    "tabs\tand\nnew\r\nlines\n\n",
    "naïve café – “quotes” … €5",
    "cafe\u0301 combining, ﬁ ligature, ½",
    "漢字とかな 한국어 العربية हिन्दी 🧑‍🚀",
)
"""What a tokenizer has to give back unchanged to count as one that loses nothing."""


class Reference:
    """The reference tokenizer and what may be asked of it."""

    def __init__(self, json: str) -> None:
        import tokenizers

        self.json = json
        self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(json)
        self.round_trip: RoundTrip = self._find_round_trip()

    def encode(self, text: str) -> list[int]:
        """The right ids, without boundary tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Ids as text."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def gives_back(self, text: str, ids: list[int]) -> bool:
        """Whether ids decode to the text, as far as this tokenizer can do that at all."""
        if self.round_trip == "lossy":
            return True
        decoded = self.decode(ids)
        return decoded == text or (self.round_trip == "normalized" and decoded == self._normalize(text))

    def _normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _find_round_trip(self) -> RoundTrip:
        decoded = [self.decode(self.encode(text)) for text in PROBES]
        if decoded == list(PROBES):
            return "exact"
        return "normalized" if decoded == [self._normalize(text) for text in PROBES] else "lossy"


def audited(start: int, stop: int) -> list[int]:
    """Which of the documents with these numbers in their unit to look at.

    >>> audited(0, 600), audited(9, 64)
    ([0, 8, 64, 512], [])
    """
    powers = takewhile(lambda number: number < stop, (AUDIT_EVERY**power for power in count(1)))
    return [number for number in (0, *powers) if start <= number < stop]


def beginning_of(text: str, size: int = AUDIT_CHARS) -> str:
    """The start of a long text, cut before white space where there is some."""
    if len(text) <= size:
        return text
    cut = text.rfind(" ", 0, size)
    return text[: cut if cut > size // 2 else size]


def check_document(engine: Engine, reference: Reference, text: str, ids: np.ndarray, where: str) -> None:
    """Hold one document's ids against the reference.

    Raises:
        EncoderMismatch: other ids, or ids that do not decode to the text.
    """
    part = beginning_of(text)
    expected = reference.encode(part)
    if part != text:
        sure = max(len(expected) - UNSURE_TOKENS, 0)
        if ids[:sure].tolist() == expected[:sure]:
            if len(text) > DECODE_CHARS:
                return  # before a list is made of all its ids, which takes ten times the text's memory
            expected = ids.tolist()
        elif len(text) <= WHOLE_CHARS:  # the cut may have changed more than its neighbourhood
            expected = reference.encode(text)
        else:
            text, ids = part, engine.encode(Texts.of([part]))[0]
    found = ids.tolist()
    if found != expected:
        raise mismatch(engine.name, where, text, found, expected)
    if len(text) <= DECODE_CHARS and not reference.gives_back(text, found):
        raise EncoderMismatch(
            f"{where}: the ids of {engine.name} do not decode to the text ({text[:60]!r}...)",
            hint="report it with the tokenizer and this document",
        )


def mismatch(name: str, where: str, text: str, found: list[int], expected: list[int]) -> EncoderMismatch:
    """The error that shows where two lists of ids part."""
    pairs = zip(found, expected, strict=False)
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(found), len(expected)))
    return EncoderMismatch(
        f"{where}: {name} differs from the reference at token {at} of {len(expected)}: "
        f"expected {expected[at : at + 5]}, found {found[at : at + 5]} ({text[:60]!r}...)",
        hint="run it with --engine tokenizers, and report the tokenizer and this document",
    )


def try_engines(
    engines: dict[EngineName, Engine | str], reference: Reference, texts: list[str]
) -> list[EngineReport]:
    """Compare each engine's ids with the reference's on these texts, and time it."""
    parts = [beginning_of(text) for text in texts]
    started = time.perf_counter()
    expected = [reference.encode(part) for part in parts]
    reference_seconds = time.perf_counter() - started
    size = sum(len(part.encode("utf-8")) for part in parts)
    reports = []
    for name in ENGINE_NAMES:
        engine = engines.get(name, "not asked for")
        if isinstance(engine, str):
            reports.append(EngineReport(name, False, 0.0, engine))
        elif name == "tokenizers":
            rate = size / max(reference_seconds, 1e-9) / 1e6
            reports.append(EngineReport(name, True, rate, "the reference"))
        else:
            reports.append(_try_engine(engine, parts, expected, size))
    return reports


def _try_engine(engine: Engine, texts: list[str], expected: list[list[int]], size: int) -> EngineReport:
    started = time.perf_counter()
    try:
        found = engine.encode(Texts.of(texts))
    except Exception as error:  # whatever a library raises, it is then no engine for this text
        return EngineReport(engine.name, False, 0.0, f"failed on a sample: {error}")
    seconds = time.perf_counter() - started
    for text, ids, right in zip(texts, range(len(texts)), expected, strict=True):
        if found[ids].tolist() != right:
            problem: PacklineError = mismatch(engine.name, "sample", text, found[ids].tolist(), right)
            return EngineReport(engine.name, False, 0.0, str(problem))
    note = f"equal to the reference on {len(texts)} documents"
    return EngineReport(engine.name, True, size / max(seconds, 1e-9) / 1e6, note)
