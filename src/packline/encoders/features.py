"""Features of a tokenizer.json that may make an engine's ids differ from the reference's; tables of engines.

A fast engine ignores what it does not know in a tokenizer.json, which changes the ids of only a few texts; a
sample need not contain them. So it is loaded only if `SUPPORTED` has all features of the tokenizer: those for
which `tests/encoders/tokenizer_fuzzer.py` found equal ids on hostile text. Normalizer and pre-tokenizer are
one feature each, with all their settings, so an unknown setting makes a feature that is in no table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import msgspec

from packline.encoders import EngineName
from packline.encoders.special_tokens import added_token_features, json_to_encode
from packline.encoders.tiktoken import LETTERS, PATTERNS, SPLIT_50K
from packline.encoders.tokenizer import Tokenizer, parse_json, steps_of
from packline.recipe import Engine

LETTERS_OF_TEXT = frozenset(
    letter for letter, byte in LETTERS.items() if byte < 0xF5 and byte not in (0xC0, 0xC1)
)
"""Letters of the bytes that occur in UTF-8."""
BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))

SPLITS: dict[str, str] = {
    SPLIT_50K: "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "cl100k",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen3.5",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
    r"\p{N}{1,3}": "3 digits",
    "[一-龥\u3040-ゟ゠-ヿ]+": "deepseek cjk",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+": "deepseek words",
    "[0-9][0-9][0-9]": "3 ASCII digits",
} | {pattern.expression: name for name, pattern in PATTERNS.items() if name not in ("gpt2", "gpt4")}
"""Names of published regular expressions; any other expression is a separate feature."""


class Encodable(msgspec.Struct, frozen=True):
    """A tokenizer as engines and reference load it: made once for a build, and sent to its processes."""

    json: str
    """Its tokenizer.json."""
    features: tuple[str, ...]

    @classmethod
    def of(cls, json: str) -> Encodable:
        return cls(json, tokenizer_features(json))

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer, *, parse: bool) -> Encodable:
        return cls.of(json_to_encode(tokenizer, parse=parse))


@lru_cache(maxsize=1)
def tokenizer_features(json: str) -> tuple[str, ...]:
    """Features of a tokenizer.json that affect ids, each once, in processing order."""
    whole = parse_json(json)
    normalizer = _chain(whole.get("normalizer"), "normalizers")
    pre_tokenizer = _chain(whole.get("pre_tokenizer"), "pretokenizers")
    model, added = whole["model"], whole.get("added_tokens") or []
    found = [
        *_of_model(model, added, "ByteLevel" in normalizer + pre_tokenizer),
        f"normalizer {normalizer}",
        f"pre-tokenizer {pre_tokenizer}",
        *added_token_features(added, normalizer, "add_prefix_space" in pre_tokenizer),
    ]
    return tuple(dict.fromkeys(found))


def _chain(step: dict[str, Any] | None, inner: str) -> str:
    return " + ".join(map(_spelled, steps_of(step, inner))) or "none"


def _spelled(step: dict[str, Any]) -> str:
    """Description of a step and its settings, without default settings."""
    rest = dict(step)
    kind = str(rest.pop("type", "?"))
    words = [kind]
    if kind == "ByteLevel":
        rest.pop("trim_offsets", None)
        words += ["add_prefix_space"] if rest.pop("add_prefix_space", True) else []
        words += [] if rest.pop("use_regex", True) else ["without words"]
    elif kind == "Split":
        pattern = rest.pop("pattern", None) or {}
        expression = pattern.get("Regex")
        words.append(SPLITS.get(expression, repr(expression)) if expression else repr(pattern.get("String")))
        behavior, invert = str(rest.pop("behavior", "?")), rest.pop("invert", False)
        words += [behavior] if behavior != "Isolated" else []
        words += ["inverted"] if invert else []
    elif kind == "Metaspace":
        older = {True: "always", False: "never", None: "always"}[rest.pop("add_prefix_space", None)]
        words.append(rest.pop("prepend_scheme", None) or older)
        words += ["split"] if rest.pop("split", True) else []
        words += [] if rest.get("replacement") == "▁" else [repr(rest.get("replacement"))]
        rest.pop("replacement", None)
    elif kind == "Replace":
        pattern = rest.pop("pattern", None) or {}
        words += [repr(pattern.get("String", pattern)), "by", repr(rest.pop("content", None))]
    elif kind == "Precompiled":
        rest.pop("precompiled_charsmap", None)  # maps single graphemes, whatever they are
    elif kind == "Prepend":
        words.append(repr(rest.pop("prepend", None)))
    return " ".join([*words, *(f"{key}={repr(value)[:40]}" for key, value in sorted(rest.items()))])


def _of_model(model: dict[str, Any], added: list[dict[str, Any]], byte_level: bool) -> Iterator[str]:
    kind = model.get("type", "BPE")
    yield f"model {kind}"
    vocab = model["vocab"]
    if kind != "BPE" or not isinstance(vocab, dict):
        return
    fallback = bool(model.get("byte_fallback"))
    yield "model of bytes" if byte_level else "model byte_fallback" if fallback else "model of characters"
    if byte_level and fallback:
        yield "model of bytes with byte_fallback"
    if fallback and model.get("ignore_merges"):
        yield "model byte_fallback with ignore_merges"
    settings = ("ignore_merges", "unk_token", "fuse_unk", "continuing_subword_prefix", "end_of_word_suffix")
    for setting in (*settings, "dropout"):
        if model.get(setting):
            yield f"model {setting}"
    if byte_level:
        if not vocab.keys() >= LETTERS_OF_TEXT:
            yield "byte without a token"
        yield from _spelled_otherwise(vocab, {token.get("content") for token in added})
    elif fallback and not vocab.keys() >= BYTE_TOKENS:
        yield "byte without a token"
    yield from _of_merges(vocab, model.get("merges") or [])


def _spelled_otherwise(vocab: dict[str, int], added: set[Any]) -> Iterator[str]:
    """Tokens of a byte-level vocabulary that are not written in the byte-level alphabet."""
    own = [token for token in vocab if token not in added]
    if LETTERS.keys() >= set("".join(own)):
        return
    others = [token for token in own if not LETTERS.keys() >= set(token)]
    if any(" " not in token for token in others):
        yield "token spelled with other letters than bytes have"
    elif others:
        yield "token spelled with a space"


def _of_merges(vocab: dict[str, int], merges: list[Any]) -> Iterator[str]:
    ids = set(vocab.values())
    if len(ids) < len(vocab):
        yield "several tokens of one id"
    if vocab and max(ids) >= len(vocab):
        yield "ids with gaps"
    results = [one.replace(" ", "") if isinstance(one, str) else "".join(one) for one in merges]
    made = [-1 if id is None else id for id in map(vocab.get, results)]
    if len(set(made)) < len(made):
        if len({one if isinstance(one, str) else tuple(one) for one in merges}) < len(merges):
            yield "merge stated twice"
        yield "several merges of one token"
    if made != sorted(made):
        yield "merges not in the order of ids"


WITH_SPLIT = ("gpt2", "llama3", "qwen2", "qwen3.5", "o200k", "tekken")
COMMON = frozenset(
    {
        "model BPE",
        "model of bytes",
        "model ignore_merges",
        "token spelled with a space",
        "merges not in the order of ids",
        "several merges of one token",
        "normalizer none",
        "pre-tokenizer ByteLevel",
        "pre-tokenizer ByteLevel add_prefix_space",
        *(f"pre-tokenizer Split {name} + ByteLevel without words" for name in WITH_SPLIT),
        *("added token", "added token lstrip", "added token rstrip"),
    }
)
_BERT = [
    f"normalizer BertNormalizer clean_text={clean} handle_chinese_chars={chinese} lowercase={lower}"
    f" strip_accents={strip}"
    for clean, chinese, lower, strip in product(*3 * [(True, False)], (True, False, None))
]
SUPPORTED: dict[EngineName, frozenset[str]] = {
    "gigatoken": COMMON
    | {
        "ids with gaps",
        "normalizer NFC",
        "model byte_fallback",
        "model unk_token",
        "model fuse_unk",
        "normalizer Prepend '▁' + Replace ' ' by '▁'",
        "normalizer Replace ' ' by '▁'",
        "pre-tokenizer none",
        *(f"pre-tokenizer Metaspace {prepend}" for prepend in ("always", "first", "never")),
        *(f"pre-tokenizer Metaspace {prepend} split" for prepend in ("always", "first", "never")),
        "pre-tokenizer Split ' ' MergedWithPrevious",
        "added token normalized, with Prepend '▁' + Replace ' ' by '▁'",
        "added token normalized, with Replace ' ' by '▁'",
    },
    "fastokens": COMMON
    | {
        "normalizer NFC",
        "pre-tokenizer Split cl100k + ByteLevel without words",
        "pre-tokenizer Split 3 digits + Split deepseek cjk + Split deepseek words + ByteLevel without words",
        "pre-tokenizer Split nanochat + ByteLevel without words",
        *(f"pre-tokenizer Digits individual_digits={single} + ByteLevel" for single in (True, False)),
        "added token single_word",
        "added token normalized, of characters that NFC makes or changes",
        "added token that is not ASCII, with NFC",
    },
    "nanotoken": frozenset(
        {
            *("model WordPiece", "normalizer none", *_BERT),
            *("pre-tokenizer BertPreTokenizer", "pre-tokenizer Whitespace", "pre-tokenizer WhitespaceSplit"),
            *("added token", "added token lstrip", "added token rstrip"),
        }
    ),
}
"""Features on which each fast engine has been shown to match the reference."""

BY_LOADING: tuple[EngineName, ...] = ("gigatoken", "fastokens", "nanotoken")
"""The fast engines, the one that loads in less time first: 0.4 and 1.2 s for 150,000 tokens."""


def fast_engine(requested: Engine, features: Collection[str]) -> EngineName | None:
    """Engine for little text that is faster than the reference; None if there is none."""
    names = BY_LOADING if requested == "auto" else (requested,)
    return next((name for name in names if name in SUPPORTED and unsupported(name, features) is None), None)


def unsupported(name: EngineName, features: Collection[str]) -> str | None:
    """First feature of a tokenizer that rules out an engine; None if there is none."""
    if name not in SUPPORTED:
        return None
    return next((feature for feature in features if feature not in SUPPORTED[name]), None)
