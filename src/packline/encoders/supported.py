"""Features of tokenizers that each fast engine supports.

A fast engine is loaded only for tokenizers whose features have all been shown to match the reference:

    tokenizer.json ── `features` ──> {"model BPE of bytes", "normalizer NFC", ...}
                                                  │
                      SUPPORTED[engine] ──────────┴──> used, or not used and for which feature

A fast engine ignores what it does not know in a tokenizer.json, which changes the ids of only a few texts; a
sample need not contain them. A feature is in the table if `tests/encoders/tokenizer_fuzzer.py` found equal
ids for it on hostile text, alone and combined with others of the table.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from packline.encoders import EngineName
from packline.recipe import Engine

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
    """Engine for little text that is faster than the reference; None if there is none.

    >>> fast_engine("auto", ["model WordPiece"]), fast_engine("gigatoken", ["model WordPiece"])
    ('nanotoken', None)
    """
    names = BY_LOADING if requested == "auto" else (requested,)
    return next((name for name in names if name in SUPPORTED and unsupported(name, features) is None), None)


def unsupported(name: EngineName, features: Collection[str]) -> str | None:
    """First feature of a tokenizer that rules out an engine; None if there is none.

    Args:
        name: an engine; the reference, `tokenizers`, supports everything.
        features: those of the tokenizer (`features.tokenizer_features`).

    >>> unsupported("gigatoken", ["model WordPiece"]), unsupported("tokenizers", ["model WordPiece"])
    ('model WordPiece', None)
    """
    if name not in SUPPORTED:
        return None
    return next((feature for feature in features if feature not in SUPPORTED[name]), None)
