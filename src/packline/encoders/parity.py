"""The reference, HF `tokenizers`, whose ids are correct by definition, and checks of engines against it.

Before a build, each engine encodes some of the user's documents, hard text, and text of the tokenizer's added
tokens; one that differs is not used. During the build, a few documents of every unit are encoded again, of
long ones the start; a difference stops the build. Documents that are not recovered by decoding although the
ids are equal are counted, since some tokenizers lose a character now and then (`▁`, of SentencePiece).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cached_property
from itertools import count, islice, takewhile
from typing import TYPE_CHECKING, Literal

import numpy as np

from packline.encoders import Engine, EngineName, EngineReport
from packline.encoders.special_tokens import MARK, without_special_tokens
from packline.encoders.tokenizer import Tokenizer, read_added_tokens, refusals
from packline.errors import EncoderMismatch, TokenizerError
from packline.sources.batch import Texts

if TYPE_CHECKING:
    import tokenizers


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


def load_reference(json: str) -> tokenizers.Tokenizer:
    """The `tokenizers.Tokenizer` of a tokenizer.json, limited to one thread."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers.Tokenizer.from_str(json)


class Reference:
    def __init__(self, json: str) -> None:
        self.json = json
        with refusals("HF tokenizers cannot read this tokenizer"):
            self._tokenizer = load_reference(json)
        check_ids(json, self._tokenizer)

    def tokenizer(self) -> tokenizers.Tokenizer:
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Encode a text to the correct ids, without boundary tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
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

    @cached_property
    def round_trip(self) -> RoundTrip:
        """Exactness with which ids decode to the text."""
        decoded = [self.decode(self.encode(text)) for text in PROBES]
        if decoded == list(PROBES):
            return "exact"
        return "normalized" if decoded == [self._normalize(text) for text in PROBES] else "lossy"

    def _normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


def check_ids(json: str, reference: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer whose file gives an added token a different id than the reference does."""
    found = {token.content: number for number, token in reference.get_added_tokens_decoder().items()}
    wrong = [
        f"{token.content!r} is {token.id} in the file and {found.get(token.content, 'none')} in HF tokenizers"
        for token in read_added_tokens(json)
        if token.content and found.get(token.content) != token.id
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise TokenizerError(
            f"added tokens have other ids than the tokenizer.json gives them: {'; '.join(wrong[:3])}{more}",
            hint="HF tokenizers numbers added tokens itself; to take its ids, load the file with"
            " tokenizers.Tokenizer.from_file and save it again",
        )


AUDIT_EVERY = 8
"""Documents 0, 8, 64, 512, ... of a unit are checked: more in larger units, but never many."""
AUDIT_CHARS = 1 << 10
"""Characters checked per document: 1 ms of the reference's time."""
DECODE_CHARS = 16 << 10
WHOLE_CHARS = 1 << 20
UNSURE_TOKENS = 8
"""Number of tokens before a cut that may depend on the text after it."""

ALIKE = 4
"""Tokens probed in every form, per kind (the same flags and classes of characters at both ends)."""
MOST_IN_FULL = 48
MOST_PAIRS = 96
JOINED = 32
"""Number of the remaining tokens that are combined into one text."""
FORMS = ("{}", " {}", "{} ", "  {}  ", "\n{}\n", "a{}b", "1{}1", ".{}.", "{}{}", "{} {}", "{}\u0301")


def plain_round_trip(tokenizer: Tokenizer) -> RoundTrip:
    """Exactness with which ids decode to text in which no special token is one.

    Cost: loading the reference, 0.35 s for 150,000 tokens.
    """
    return Reference(without_special_tokens(tokenizer)).round_trip


def audited(start: int, stop: int) -> list[int]:
    """Numbers of the documents to check, for documents `start` to `stop` of a unit."""
    powers = takewhile(lambda number: number < stop, (AUDIT_EVERY**power for power in count(1)))
    return [number for number in (0, *powers) if start <= number < stop]


def text_beginning(text: str, size: int = AUDIT_CHARS) -> str:
    """Start of a long text, cut before white space if there is any."""
    if len(text) <= size:
        return text
    cut = text.rfind(" ", 0, size)
    return text[: cut if cut > size // 2 else size]


def audit_document(engine: Engine, reference: Reference, text: str, ids: np.ndarray, where: str) -> bool:
    """Compare the ids of one document with the reference.

    Returns:
        True if they decode to the text, within the known limits of this tokenizer. If they do not, although
        they equal the reference's, the tokenizer itself does not keep every character of this text.
    """
    part = text_beginning(text)
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
    parts = [text_beginning(text) for text in texts]
    started = time.perf_counter()
    expected = [reference.encode(part) for part in parts]
    reference_seconds = time.perf_counter() - started
    size = sum(len(part.encode("utf-8")) for part in parts)
    others = any(name != "tokenizers" and not isinstance(engine, str) for name, engine in engines.items())
    hard = [*PROBES, *ODD_PROBES, *probes(reference.json)] if others else []
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


def probes(json: str) -> list[str]:
    """Texts of added tokens: alone, between spaces, line ends and letters, doubled, cut and in pairs.

    Tokens that no text can contain are left out. Every other token occurs at least once, but only some tokens
    of each kind are probed in every form.

    >>> probes('{"added_tokens": [{"content": "<a>", "id": 1}]}')[:4]
    ['<a>', ' <a>', '<a> ', '  <a>  ']
    """
    tokens = [token for token in read_added_tokens(json) if token.content and MARK not in token.content]
    kinds: dict[object, int] = {}
    texts: list[str] = []
    rest: list[str] = []
    full = 0
    for token in tokens:
        kind = (token.single_word, token.lstrip, token.rstrip, token.normalized, _ends(token.content))
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= ALIKE and full < MOST_IN_FULL:
            full += 1
            texts += _forms(token.content)
        else:
            rest.append(token.content)
    for start in range(0, len(rest), JOINED):
        some = rest[start : start + JOINED]
        texts.append((" ", "")[start // JOINED % 2].join(some))
    texts += islice(_pairs([token.content for token in tokens]), MOST_PAIRS)
    return list(dict.fromkeys(texts))


def _ends(content: str) -> tuple[str, str]:
    """Character class at each end: letters and digits, white space, or anything else."""
    first, last = (
        "w" if end.isalnum() else "s" if end.isspace() else "o" for end in (content[0], content[-1])
    )
    return first, last


def _forms(word: str) -> list[str]:
    cut = [word[:-1], word[1:], word[:-1] + word, word.swapcase(), word[:1].swapcase() + word[1:]]
    return [form.replace("{}", word) for form in FORMS] + [text for text in cut if text]


def _pairs(contents: list[str]) -> Iterator[str]:
    """Texts of two tokens where the beginning of one matches the beginning or end of the other."""
    beginnings: dict[str, list[str]] = {}
    for content in contents:
        for end in range(1, len(content) + 1):
            others = beginnings.setdefault(content[:end], [])
            if len(others) < ALIKE:
                others.append(content)
    for content in contents:
        for start in range(len(content)):
            for other in beginnings.get(content[start:], []):
                if other != content:
                    yield content + other[len(content) - start :]
                    yield from (content + other, other + content, f"{content} {other}")
