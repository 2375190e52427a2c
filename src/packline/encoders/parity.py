"""Parity checks of every engine against the reference tokenizer.

Before the build, each engine encodes a few of the user's own documents, hard text, and text made of the
tokenizer's added tokens; an engine that differs is not used. During the build, the reference encodes a few
documents of every unit again; a difference stops the build before the unit is committed, and the error names
the document. These documents are also decoded: documents that are not recovered although their ids equal the
reference's are counted, but do not stop the build, since some tokenizers lose a character now and then (`▁`,
of SentencePiece).

The reference encodes 1 to 2 MB/s, so the cost is that of the checked text: a few documents per unit, and only
the start of a long one, where the ids must begin with the same tokens. Only if they do not, the whole
document is encoded again. This is a sample, not a proof: `packline verify --deep` checks more.
"""

from __future__ import annotations

import time
from itertools import count, takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np

from packline.encoders.added_tokens import check_ids, probes
from packline.encoders.engine import Engine
from packline.encoders.report import EngineName, EngineReport
from packline.encoders.tokenizer import refusals
from packline.errors import EncoderMismatch, TokenizerError
from packline.sources.texts import Texts

if TYPE_CHECKING:
    import tokenizers

AUDIT_EVERY = 8
"""Documents 0, 8, 64, 512, ... of a unit are checked: more in larger units, but never many."""
AUDIT_CHARS = 1 << 10
"""Characters checked per document: 1 ms of the reference's time."""
DECODE_CHARS = 16 << 10
WHOLE_CHARS = 1 << 20
UNSURE_TOKENS = 8
"""Number of tokens before a cut that may depend on the text after it."""

RoundTrip = Literal["exact", "normalized", "lossy"]

PROBES = (
    "Plain words, in 1 or 2 sentences.",
    "  spaces   before, within and after  ",
    "tabs\tand\nnew\r\nlines\n\n",
    "naïve café – “quotes” … €5",
    "cafe\u0301 combining, ﬁ ligature, ½",
    "漢字とかな 한국어 العربية हिन्दी 🧑‍🚀",
)
"""Texts that a tokenizer must recover unchanged to count as lossless."""
ODD_PROBES = (
    "load ▁▂▃▅▇ and ▁word",
    "Ġ and Ċ and Ġthe",
    "##s and word ##s",
    "<0x0A> <0xE4><0xB8>",
    "\ufffd and \ufffd\ufffd",
    "<unk> [UNK] <s></s>",
    "\u180e  \u180e a\u0323\u0301 \u1100\u1161 '\u017f",
)
"""Text in the tokenizers' internal spelling, which some do not recover, and characters that few support."""


class Reference:
    """The reference tokenizer.

    Raises:
        TokenizerError: the file gives added tokens different ids than the reference.
    """

    def __init__(self, json: str) -> None:
        import tokenizers

        self.json = json
        with refusals("HF tokenizers cannot read this tokenizer"):
            self._tokenizer: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(json)
        check_ids(json, self._tokenizer)
        self.round_trip: RoundTrip = self._find_round_trip()

    def encode(self, text: str) -> list[int]:
        """Encode a text to the correct ids, without boundary tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Decode ids to text."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def gives_back(self, text: str, ids: list[int]) -> bool:
        """True if ids decode to the text, within the known limits of this tokenizer."""
        if self.round_trip == "lossy":
            return True
        decoded = self.decode(ids)
        return decoded == text or (self.round_trip == "normalized" and decoded == self._normalize(text))

    def keeps(self) -> bool:
        """True if text in the spelling of tokens is recovered too; then ids that do not decode are wrong."""
        return all(self.gives_back(text, self.encode(text)) for text in ODD_PROBES)

    def _normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def _find_round_trip(self) -> RoundTrip:
        decoded = [self.decode(self.encode(text)) for text in PROBES]
        if decoded == list(PROBES):
            return "exact"
        return "normalized" if decoded == [self._normalize(text) for text in PROBES] else "lossy"


def audited(start: int, stop: int) -> list[int]:
    """Numbers of the documents to check, for documents `start` to `stop` of a unit.

    >>> audited(0, 600), audited(9, 64)
    ([0, 8, 64, 512], [])
    """
    powers = takewhile(lambda number: number < stop, (AUDIT_EVERY**power for power in count(1)))
    return [number for number in (0, *powers) if start <= number < stop]


def beginning_of(text: str, size: int = AUDIT_CHARS) -> str:
    """Start of a long text, cut before white space if there is any."""
    if len(text) <= size:
        return text
    cut = text.rfind(" ", 0, size)
    return text[: cut if cut > size // 2 else size]


def check_document(engine: Engine, reference: Reference, text: str, ids: np.ndarray, where: str) -> bool:
    """Compare the ids of one document with the reference.

    Returns:
        True if they decode to the text, within the known limits of this tokenizer. If they do not, although
        they equal the reference's, the tokenizer itself does not keep every character of this text.

    Raises:
        EncoderMismatch: the ids differ from the reference's.
    """
    part = beginning_of(text)
    expected = reference.encode(part)
    if part != text:
        sure = max(len(expected) - UNSURE_TOKENS, 0)
        if ids[:sure].tolist() == expected[:sure]:
            if len(text) > DECODE_CHARS:
                return (
                    True  # too long to decode: a list of all its ids takes ten times the memory of the text
                )
            expected = ids.tolist()
        elif len(text) <= WHOLE_CHARS:  # the cut may have changed more than the tokens next to it
            expected = reference.encode(text)
        else:
            text, ids = part, engine.encode(Texts.of([part]))[0]
    found = ids.tolist()
    if found != expected:
        raise mismatch(engine.name, where, text, found, expected)
    if len(text) > DECODE_CHARS or reference.gives_back(text, found):
        return True
    if part != text and found != (expected := reference.encode(text)):
        raise mismatch(engine.name, where, text, found, expected)
    return False


def mismatch(name: str, where: str, text: str, found: list[int], expected: list[int]) -> EncoderMismatch:
    """Build the error that shows where two lists of ids begin to differ."""
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
    """Compare each engine's ids with the reference's, and time it.

    Compares on the given texts, on hard texts, and on texts of the tokenizer's added tokens; measures time on
    the given texts only.
    """
    parts = [beginning_of(text) for text in texts]
    started = time.perf_counter()
    expected = [reference.encode(part) for part in parts]
    reference_seconds = time.perf_counter() - started
    size = sum(len(part.encode("utf-8")) for part in parts)
    hard = [*PROBES, *ODD_PROBES, *probes(reference.json)]
    hard_ids = [reference.encode(text) for text in hard]
    reports = []
    for name, engine in engines.items():
        if isinstance(engine, str):
            reports.append(EngineReport(name, False, 0.0, engine))
        elif name == "tokenizers":
            rate = size / max(reference_seconds, 1e-9) / 1e6
            reports.append(EngineReport(name, True, rate, "the reference"))
        else:
            report = _try_engine(engine, parts, expected, size)
            unequal = _difference(engine, hard, hard_ids) if report.exact else None
            reports.append(report if unequal is None else EngineReport(name, False, 0.0, unequal))
    return reports


def _try_engine(engine: Engine, texts: list[str], expected: list[list[int]], size: int) -> EngineReport:
    started = time.perf_counter()
    unequal = _difference(engine, texts, expected)
    seconds = time.perf_counter() - started
    if unequal is not None:
        return EngineReport(engine.name, False, 0.0, unequal)
    note = f"equal to the reference on {len(texts)} documents"
    return EngineReport(engine.name, True, size / max(seconds, 1e-9) / 1e6, note)


def _difference(engine: Engine, texts: list[str], expected: list[list[int]]) -> str | None:
    """Description of the first difference or failure of an engine; None if all ids are as expected."""
    try:
        with refusals("failed on a sample"):
            found = engine.encode(Texts.of(texts))
    except TokenizerError as error:  # whatever a library raises, it cannot encode this text
        return str(error)
    for place, right in enumerate(expected):
        ids = found[place].tolist()
        if ids != right:
            return str(mismatch(engine.name, "sample", texts[place], ids, right))
    return None
