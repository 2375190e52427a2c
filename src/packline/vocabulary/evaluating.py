"""Compare the token counts of a tokenizer and of baselines on the same texts.

    ratio      bytes / tokens: bytes per token; more is better
    diff       (base - ours) / base x 100: tokens saved by ours, in percent of the baseline's
    fertility  tokens / words, where words are separated by white space
    unused     ids that occur in none of the texts, without special tokens

For both tokenizers every text must be recovered from its ids, or the comparison would be meaningless. Where a
tokenizer is known to lose something (white space, case), that is reported; an unexpected loss is an error. A
vocabulary that has no tokens for a text encodes it as one unknown token, whatever its length. Such tokens are
counted, and for such a text neither tokenizer is called better.

The reference tokenizer encodes, at 1 to 2 MB/s; a few megabytes of a user's file are enough. Token counts do
not show which tokenizer makes the better model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from packline.encoders.parity import Reference, RoundTrip
from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer, parse_json, unknown_token, vocab_of
from packline.errors import TokenizerError
from packline.vocabulary.texts import LANGUAGES, PASSAGES

PIECE_CHARS = 1 << 16
WORD = re.compile(r"\S+")


class Measured(msgspec.Struct, frozen=True):
    """Measurements of one tokenizer on one text."""

    tokens: int
    bytes_per_token: float
    fertility: float
    unknown: int = 0
    """Number of tokens for text that the vocabulary does not know."""


class ComparisonRow(msgspec.Struct, frozen=True):
    """Comparison of a baseline and ours on one text."""

    text: str
    bytes: int
    base: Measured
    ours: Measured
    diff_percent: float
    """Positive if ours needs fewer tokens."""
    better: str
    """"ours", "base", "equal", or "neither" if a vocabulary does not know some of the text."""


class TokenizerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison with one baseline."""

    base: str
    base_vocab_size: int
    base_round_trip: RoundTrip
    rows: list[ComparisonRow]
    whole: ComparisonRow
    """All texts together."""
    languages: list[ComparisonRow]
    """The same sentences in several languages."""
    base_unused: int


class Absent(msgspec.Struct, frozen=True):
    """A baseline that was not available."""

    base: str
    reason: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a tokenizer with baselines."""

    tokenizer: str
    vocab_size: int
    round_trip: RoundTrip
    texts: dict[str, int]
    """Size of each text in bytes."""
    measured: dict[str, Measured]
    """Ours on each text."""
    comparisons: list[TokenizerComparison]
    absent: list[Absent]
    languages: dict[str, Measured]
    """Ours on the same sentences in several languages."""
    unused: int


def compare_tokenizers(
    tokenizer: Tokenizer, against: Sequence[str] = (), texts: Mapping[str, str] | None = None
) -> Evaluation:
    """Measure a tokenizer and compare it with baselines.

    >>> vocab = {"a": 0, "b": 1, "ab": 2}
    >>> model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
    >>> text = msgspec.json.encode({"model": model, "decoder": {"type": "Fuse"}}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=3, special_tokens={})
    >>> compare_tokenizers(tiny, texts={"mine": "abab"}).measured["mine"].bytes_per_token
    2.0
    """
    texts = dict(PASSAGES if texts is None else texts)
    sizes = _sizes(texts)
    ours = _Measure(tokenizer, texts)
    comparisons, absent = [], []
    for name in against:
        try:
            base = load_tokenizer(name)
        except Exception as error:  # a hub client may raise anything
            absent.append(Absent(name, str(error).splitlines()[0] if str(error) else type(error).__name__))
            continue
        comparisons.append(_compare(name, _Measure(base, texts), ours, sizes))
    return Evaluation(
        tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size,
        round_trip=ours.round_trip,
        texts=sizes,
        measured=ours.found,
        comparisons=comparisons,
        absent=absent,
        languages=ours.languages,
        unused=ours.unused,
    )


class _Measure:
    def __init__(self, tokenizer: Tokenizer, texts: Mapping[str, str]) -> None:
        reference = plain_reference(tokenizer)
        self.vocab_size = tokenizer.vocab_size
        self.round_trip = reference.round_trip
        self._name, self._reference = tokenizer.name, reference
        self._unknown = unknown_ids(tokenizer)
        self._used = np.zeros(tokenizer.vocab_size, np.bool_)
        self.languages = {name: self._measure(name, text) for name, text in LANGUAGES.items()}
        self._used[:] = False
        self._used[list(tokenizer.special_tokens.values())] = True
        self.found = {name: self._measure(name, text) for name, text in texts.items()}
        self.unused = int(np.count_nonzero(~self._used))

    def _measure(self, name: str, text: str) -> Measured:
        tokens = unknown = 0
        for piece in pieces_of(text):
            ids = self._reference.encode(piece)
            if not self._reference.gives_back(piece, ids):
                where = _difference(piece, self._reference.decode(ids))
                raise TokenizerError(
                    f"{self._name} does not give the text {name!r} back: {where}",
                    hint="packline tokenizer check shows details",
                )
            self._used[ids] = True
            tokens += len(ids)
            unknown += sum(number in self._unknown for number in ids) if self._unknown else 0
        return measured(text, tokens, unknown)


def plain_reference(tokenizer: Tokenizer) -> Reference:
    """Build the reference tokenizer for which control tokens in a text are plain text."""
    tokenizer.reference()  # its error names the tokenizer
    return Reference(without_special_tokens(tokenizer))


def unknown_ids(tokenizer: Tokenizer) -> set[int]:
    """Id of the token for text that the vocabulary does not know, if there is one.

    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    >>> text = msgspec.json.encode({"model": model}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=2, special_tokens={})
    >>> unknown_ids(tiny)
    {1}
    """
    contents = parse_json(tokenizer.json)
    ids = vocab_of(contents) | tokenizer.special_tokens
    token = unknown_token(contents["model"])
    return {ids[token]} if token in ids else set()


def _sizes(texts: Mapping[str, str]) -> dict[str, int]:
    return {name: len(text.encode("utf-8")) for name, text in texts.items()}


def measured(text: str, tokens: int, unknown: int = 0) -> Measured:
    """Compute the rates of a text from its number of tokens.

    >>> measured("two words", 3)
    Measured(tokens=3, bytes_per_token=3.0, fertility=1.5, unknown=0)
    """
    words = sum(1 for _ in WORD.finditer(text))
    return Measured(tokens, len(text.encode("utf-8")) / max(tokens, 1), tokens / max(words, 1), unknown)


def pieces_of(text: str) -> list[str]:
    """Cut a long text before white space into pieces that are encoded separately."""
    pieces = []
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = text.rfind("\n", start + 1, start + PIECE_CHARS)
        cut = cut if cut > start else start + PIECE_CHARS
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


def _difference(text: str, decoded: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(text, decoded, strict=False)) if a != b), -1)
    at = at if at >= 0 else min(len(text), len(decoded))
    return f"at character {at} expected {text[at : at + 20]!r}, found {decoded[at : at + 20]!r}"


def _compare(name: str, base: _Measure, ours: _Measure, sizes: dict[str, int]) -> TokenizerComparison:
    rows = [_row(text, size, base.found[text], ours.found[text]) for text, size in sizes.items()]
    return TokenizerComparison(
        base=name,
        base_vocab_size=base.vocab_size,
        base_round_trip=base.round_trip,
        rows=rows,
        languages=[
            _row(text, size, base.languages[text], ours.languages[text])
            for text, size in _sizes(LANGUAGES).items()
        ],
        whole=_row("all", sum(sizes.values()), _sum(base, sizes), _sum(ours, sizes)),
        base_unused=base.unused,
    )


def _sum(one: _Measure, sizes: dict[str, int]) -> Measured:
    tokens = sum(found.tokens for found in one.found.values())
    words = sum(found.tokens / found.fertility for found in one.found.values() if found.fertility)
    unknown = sum(found.unknown for found in one.found.values())
    return Measured(tokens, sum(sizes.values()) / max(tokens, 1), tokens / max(words, 1), unknown)


def _row(text: str, size: int, base: Measured, ours: Measured) -> ComparisonRow:
    diff = (base.tokens - ours.tokens) / max(base.tokens, 1) * 100
    better = "equal" if base.tokens == ours.tokens else "ours" if diff > 0 else "base"
    better = "neither" if base.unknown or ours.unknown else better
    return ComparisonRow(text, size, base, ours, diff, better)
