"""Compare a tokenizer with others on the same texts: how many tokens each needs.

    ratio      bytes / tokens: bytes that a token stands for; more is better
    diff       (base - ours) / base x 100: how much fewer tokens ours needs, in percent of the base's
    fertility  tokens / words, words being what white space separates
    unused     ids that none of the texts needed, special tokens aside

Every text must come back from its ids, for both, or the comparison means nothing: where a tokenizer is known
to lose something (white space, case), that is said; where one should not lose and does, it is an error. A
vocabulary that has no tokens for a text says so with one token for any length of it. These are counted, and
of such a text nobody is called the better one.

The reference tokenizer encodes, at 1 to 2 MB/s; a few megabytes of a user's file are enough. What it does
not do: say which tokenizer makes the better model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from packline.encoders.baselines import load_baseline
from packline.encoders.parity import Reference, RoundTrip
from packline.encoders.passages import LANGUAGES, PASSAGES
from packline.encoders.special import without_special_tokens
from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError

PIECE_CHARS = 1 << 16
WORD = re.compile(r"\S+")


class Measured(msgspec.Struct, frozen=True):
    """One tokenizer on one text."""

    tokens: int
    bytes_per_token: float
    fertility: float
    unknown: int = 0
    """Of the tokens, those that stand for text that the vocabulary does not know."""


class Row(msgspec.Struct, frozen=True):
    """A text, a baseline and ours."""

    text: str
    bytes: int
    base: Measured
    ours: Measured
    diff_percent: float
    """Positive where ours needs fewer tokens."""
    better: str
    """"ours", "base", "equal", or "neither" where a vocabulary does not know some of the text."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Ours beside one baseline."""

    base: str
    base_vocab_size: int
    base_round_trip: RoundTrip
    rows: list[Row]
    whole: Row
    """All texts together."""
    languages: list[Row]
    """The same sentences in several languages."""
    base_unused: int


class Absent(msgspec.Struct, frozen=True):
    """A baseline that could not be had."""

    base: str
    reason: str


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer beside baselines."""

    tokenizer: str
    vocab_size: int
    round_trip: RoundTrip
    texts: dict[str, int]
    """Bytes of each."""
    measured: dict[str, Measured]
    """Ours on each text."""
    comparisons: list[Comparison]
    absent: list[Absent]
    languages: dict[str, Measured]
    """Ours on the same sentences in several languages."""
    unused: int


def evaluate(
    tokenizer: Tokenizer, against: Sequence[str] = (), texts: Mapping[str, str] | None = None
) -> Evaluation:
    """Measure a tokenizer, and baselines beside it.

    Args:
        tokenizer: ours.
        against: files, folders or hub ids; those that cannot be had are named in `absent`.
        texts: by name; default the built-in passages.

    Raises:
        TokenizerError: a text that does not come back from its ids.

    >>> vocab = {"a": 0, "b": 1, "ab": 2}
    >>> model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]]}
    >>> text = msgspec.json.encode({"model": model, "decoder": {"type": "Fuse"}}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=3, special_tokens={})
    >>> evaluate(tiny, texts={"mine": "abab"}).measured["mine"].bytes_per_token
    2.0
    """
    texts = dict(PASSAGES if texts is None else texts)
    sizes = _sizes(texts)
    ours = _Measure(tokenizer, texts)
    comparisons, absent = [], []
    for name in against:
        try:
            base = load_baseline(name)
        except Exception as error:  # a hub client raises what it likes
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
    """One tokenizer on all texts."""

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
                    hint="packline tokenizer check says more",
                )
            self._used[ids] = True
            tokens += len(ids)
            unknown += sum(number in self._unknown for number in ids) if self._unknown else 0
        return measured(text, tokens, unknown)


def plain_reference(tokenizer: Tokenizer) -> Reference:
    """The reference tokenizer for which control tokens in a text are text.

    Raises:
        TokenizerError: it cannot be read, or text is made of its special tokens.
    """
    tokenizer.reference()  # whose refusal has the tokenizer's name
    return Reference(without_special_tokens(tokenizer))


def unknown_ids(tokenizer: Tokenizer) -> set[int]:
    """The id that text becomes where a vocabulary does not know it, if there is one.

    >>> model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    >>> text = msgspec.json.encode({"model": model}).decode()
    >>> tiny = Tokenizer(name="tiny", kind="huggingface", json=text, vocab_size=2, special_tokens={})
    >>> unknown_ids(tiny)
    {1}
    """
    model = msgspec.json.decode(tokenizer.json)["model"]
    if model.get("unk_id") is not None:  # Unigram
        return {model["unk_id"]}
    token = model.get("unk_token")
    vocab = model["vocab"] if isinstance(model["vocab"], dict) else {}
    ids = vocab | tokenizer.special_tokens
    return {ids[token]} if token in ids else set()


def _sizes(texts: Mapping[str, str]) -> dict[str, int]:
    return {name: len(text.encode("utf-8")) for name, text in texts.items()}


def measured(text: str, tokens: int, unknown: int = 0) -> Measured:
    """The rates of a text of so many tokens.

    >>> measured("two words", 3)
    Measured(tokens=3, bytes_per_token=3.0, fertility=1.5, unknown=0)
    """
    words = sum(1 for _ in WORD.finditer(text))
    return Measured(tokens, len(text.encode("utf-8")) / max(tokens, 1), tokens / max(words, 1), unknown)


def pieces_of(text: str) -> list[str]:
    """A long text in pieces, cut before white space, each encoded by itself."""
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


def _compare(name: str, base: _Measure, ours: _Measure, sizes: dict[str, int]) -> Comparison:
    rows = [_row(text, size, base.found[text], ours.found[text]) for text, size in sizes.items()]
    return Comparison(
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


def _row(text: str, size: int, base: Measured, ours: Measured) -> Row:
    diff = (base.tokens - ours.tokens) / max(base.tokens, 1) * 100
    better = "equal" if base.tokens == ours.tokens else "ours" if diff > 0 else "base"
    better = "neither" if base.unknown or ours.unknown else better
    return Row(text, size, base, ours, diff, better)
