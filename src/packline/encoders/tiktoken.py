r"""Conversion of a tiktoken rank file to a tokenizer.json, and the published patterns by name.

tiktoken merges the pair of neighbours that forms the token of lowest rank; a tokenizer.json requires explicit
merges:

    ranks      a 0, b 1, c 2, bc 3, abc 4
    merges     b+c, a+bc          the last step of merging "abc" alone: a | bc

One merge per token is enough: the merges inside the range that becomes a token depend on that range alone,
because no merge ever crosses its ends. A piece of text that is itself a token becomes that token without
merging (`ignore_merges`), as in tiktoken; this matters for tokens that no merges produce. Every token is
merged once, quadratic in its length.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Sequence
from pathlib import PurePath
from typing import Any, AnyStr, Literal, get_args

import msgspec

from packline.errors import RecipeError, TokenizerError

END = "<|endoftext|>"
UNUSED = "unused "
"""Prefix of the names of ids without a token."""
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d"
MARK = r"[^\r\n\p{L}\p{N}]?"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

PatternName = Literal["gpt2", "gpt4", "llama3", "nanochat", "qwen2", "o200k"]
PATTERN_NAMES: tuple[PatternName, ...] = get_args(PatternName)
SpecialPlace = Literal["first", "last"]
"""Place of the ids of special tokens among all ids."""

# Greedy quantifiers only: the regular expression engine of HF tokenizers treats a possessive `{1,3}+` as a
# repeated group, and engines recognise the schemes by these spellings.
SPLIT_50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regular expression that is built into the byte-level pre-tokenizer."""
SPLIT_100K = (
    rf"(?i:{WORDS})|{MARK}\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT_200K = (
    rf"{MARK}{UPPER}*{LOWER}+(?i:{WORDS})?|{MARK}{UPPER}+{LOWER}*(?i:{WORDS})?|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pattern(msgspec.Struct, frozen=True):
    name: str
    expression: str
    rules: Literal["spaces", "marks", "other"]
    """Rules of `word_counts` that apply: words take a space, words take a mark, or none."""
    digits: int = 0
    """Maximum length of a word of digits; 0 for no limit."""

    def pre_tokenizer(self) -> dict[str, Any]:
        return _pre_tokenizer(None if self.name == "gpt2" else self.expression)


def _marks(name: str, digits: int) -> Pattern:
    numbers = rf"\p{{N}}{{1,{digits}}}" if digits > 1 else r"\p{N}"
    expression = (
        rf"(?i:{WORDS})|{MARK}\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return Pattern(name, expression, "marks", digits)


PATTERNS: dict[str, Pattern] = {
    "gpt2": Pattern("gpt2", SPLIT_50K, "spaces"),
    "gpt4": _marks("gpt4", 3),
    "llama3": _marks("llama3", 3),
    "nanochat": _marks("nanochat", 2),
    "qwen2": _marks("qwen2", 1),
    "o200k": Pattern("o200k", SPLIT_200K, "other"),
}
assert PATTERNS["gpt4"].expression == SPLIT_100K


def pattern_of(name: str) -> Pattern:
    if name not in PATTERNS:
        raise RecipeError(
            f"{name!r} is no pattern: expected one of {', '.join(PATTERNS)}",
            hint="a pattern defines how text is cut into words before merging",
        )
    return PATTERNS[name]


class Encoding(msgspec.Struct, frozen=True):
    """Properties of an encoding that its rank file does not contain."""

    split: str | None
    """Regular expression whose matches are merged separately; None for GPT-2's."""
    ranks: int
    """Number of tokens in the rank file."""
    special_tokens: dict[str, int]


def _harmony() -> dict[str, int]:
    tokens = {f"<|reserved_{number}|>": number for number in range(200000, 201088)}
    named = {
        "<|startoftext|>": 199998,
        END: 199999,
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
        "<|endofprompt|>": 200018,
    }
    taken = set(named.values()) - {200018}  # 200018 keeps both of its names
    return named | {token: number for token, number in tokens.items() if number not in taken}


FILL = {"<|fim_prefix|>": 0, "<|fim_middle|>": 1, "<|fim_suffix|>": 2}

ENCODINGS: dict[str, Encoding] = {
    "r50k_base": Encoding(None, 50256, {END: 50256}),
    "p50k_base": Encoding(None, 50280, {END: 50256}),
    "p50k_edit": Encoding(None, 50280, {END: 50256} | {k: 50281 + v for k, v in FILL.items()}),
    "cl100k_base": Encoding(
        SPLIT_100K,
        100256,
        {END: 100257} | {k: 100258 + v for k, v in FILL.items()} | {"<|endofprompt|>": 100276},
    ),
    "o200k_base": Encoding(SPLIT_200K, 199998, {END: 199999, "<|endofprompt|>": 200018}),
    "o200k_harmony": Encoding(SPLIT_200K, 199998, _harmony()),
}
"""Encodings by their names in the tiktoken package."""


def convert_ranks(data: bytes, encoding: str | None, name: str) -> dict[str, Any]:
    scheme = _encoding(encoding, name)
    ranks = read_ranks(data, name)
    if len(ranks) != scheme.ranks:
        raise TokenizerError(
            f"{name} is not the rank file of {encoding or PurePath(name).stem}:"
            f" expected {scheme.ranks} ranks, found {len(ranks)}",
            hint="a rank file of another encoding would be split wrongly; use its publisher's tokenizer.json",
        )
    return tokenizer_of_ranks(ranks, scheme)


def _encoding(encoding: str | None, name: str) -> Encoding:
    known = ", ".join(ENCODINGS)
    if encoding is None:
        stem = PurePath(name).stem
        if stem not in ENCODINGS:
            raise TokenizerError(
                f"{name} is a tiktoken rank file: expected the name of its encoding, found none",
                hint=f"call the file ENCODING.tiktoken, or give encoding in a recipe; known are {known}",
            )
        return ENCODINGS[stem]
    if encoding not in ENCODINGS:
        raise TokenizerError(f"{encoding!r} is not a known encoding of rank files", hint=f"known are {known}")
    return ENCODINGS[encoding]


def read_ranks(data: bytes, name: str) -> dict[bytes, int]:
    """Parse a rank file; each line is a token in base64, a space and its rank."""
    ranks: dict[bytes, int] = {}
    lines = 0
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        lines += 1
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"{name}, line {number}: expected a token in base64 and its rank, found {line[:40]!r}"
            ) from None
    if len(ranks) != lines or len(set(ranks.values())) != lines:
        raise TokenizerError(f"{name}: expected every token and every rank once, found some twice")
    return ranks


def tokenizer_of_ranks(ranks: dict[bytes, int], encoding: Encoding) -> dict[str, Any]:
    """Build the contents of a tokenizer.json from ranks and an encoding.

    Special tokens are also put into the vocabulary, since HF tokenizers would otherwise renumber them.
    """
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(
            f"the ranks lack {len(missing)} single bytes, the first is {missing[0]}: expected all 256"
        )
    ids = set(ranks.values())
    for token, number in encoding.special_tokens.items():
        if number in ids:
            raise TokenizerError(
                f"the special token {token} has id {number}, which is a rank of the file too"
            )
    ordered = sorted(ranks, key=ranks.__getitem__)
    spelled = {token: token.decode("latin-1").translate(ALPHABET) for token in ordered}
    vocab = {spelled[token]: ranks[token] for token in ordered}
    pairs = (last_pair(token, ranks) for token in ordered)
    merges = [(spelled[pair[0]], spelled[pair[1]]) for pair in pairs if pair]
    filled = vocab | encoding.special_tokens | _fill(ids | {*encoding.special_tokens.values()})
    whole = _byte_level(filled, merges, encoding.special_tokens, _pre_tokenizer(encoding.split))
    whole["decoder"]["add_prefix_space"] = whole["model"]["ignore_merges"] = True
    return whole


def check_specials(special_tokens: Sequence[str], text_tokens: Container[str]) -> None:
    """Refuse special tokens that cannot be distinguished from each other or from tokens of text."""
    for token in special_tokens:
        if not token:
            raise RecipeError("a special token is empty")
        if list(special_tokens).count(token) > 1:
            raise RecipeError(f"the special token {token!r} comes twice: expected every one once")
        if token in text_tokens:
            raise RecipeError(
                f"the special token {token!r} is a token of text too, and text would become it",
                hint="choose a string that no word is, such as '<|end|>'",
            )


def json_of_merges(
    merges: list[tuple[bytes, bytes]],
    special_tokens: Sequence[str],
    pattern: Pattern,
    place: SpecialPlace = "first",
) -> str:
    """The tokenizer.json of merges. Ids: bytes in the order of their characters, then merges in order."""
    pairs = [
        (left.decode("latin-1").translate(ALPHABET), right.decode("latin-1").translate(ALPHABET))
        for left, right in merges
    ]
    names = dict.fromkeys([*sorted(LETTERS), *(left + right for left, right in pairs)])
    check_specials(special_tokens, names)
    special = dict.fromkeys(special_tokens)
    ordered = special | names if place == "first" else names | special
    vocab = {name: number for number, name in enumerate(ordered)}
    ids = {token: vocab[token] for token in special_tokens}
    return msgspec.json.encode(_byte_level(vocab, pairs, ids, pattern.pre_tokenizer())).decode()


def _byte_level(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    special_tokens: dict[str, int],
    pre_tokenizer: dict[str, Any],
) -> dict[str, Any]:
    decoder = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return contents_of(
        special_entries(special_tokens), None, pre_tokenizer, decoder, bpe_model(vocab, merges)
    )


def contents_of(
    added_tokens: list[dict[str, Any]],
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any] | None,
    model: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe_model(
    vocab: dict[str, int],
    merges: Sequence[Sequence[str]],
    unk: str | None = None,
    byte_fallback: bool = False,
) -> dict[str, Any]:
    """The model of a tokenizer.json; neighbours without a token become one `unk`, if there is one."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": unk is not None,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }


def _pre_tokenizer(split: str | None) -> dict[str, Any]:
    """Pre-tokenizer in the form of a tokenizer.json; its own expression, GPT-2's, if `split` is None."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split is None}
    if split is None:
        return level
    pieces = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [pieces, level]}


def _fill(ids: set[int]) -> dict[str, int]:
    """Placeholder names for unused ids, since some engines refuse a vocabulary with gaps.

    The names contain a plain space, which a byte-level vocabulary never does, so no text can become one of
    them.
    """
    return {f"{UNUSED}{number}": number for number in range(max(ids)) if number not in ids}


def last_pair(token: AnyStr, ranks: dict[AnyStr, int]) -> tuple[AnyStr, AnyStr] | None:
    """Find the two parts of the last merge of a token; None if merging does not produce it.

    Starts from single bytes (for bytes) or characters (for a string). Cost: quadratic in the length.

    >>> last_pair(b"abc", {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"abc": 4})
    (b'a', b'bc')
    """
    never = 1 << 62
    rank = ranks.get
    parts = [token[i : i + 1] for i in range(len(token))]
    joined = [rank(token[i : i + 2], never) for i in range(len(token) - 1)]  # of parts i and i+1
    while len(parts) > 2:
        lowest = min(joined)
        if lowest == never:
            return None
        at = joined.index(lowest)  # the leftmost of equal ranks, as in tiktoken
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del joined[at]
        if at < len(joined):
            joined[at] = rank(parts[at] + parts[at + 1], never)
        if at:
            joined[at - 1] = rank(parts[at - 1] + parts[at], never)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _alphabet() -> dict[int, int]:
    """Character for each byte in byte-level vocabularies: the byte itself if it is printable."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {byte: 256 + place for place, byte in enumerate(others)}


ALPHABET = _alphabet()
LETTERS = {chr(letter): byte for byte, letter in ALPHABET.items()}


def special_entries(special_tokens: dict[str, int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": number, "content": token, **flags} for token, number in special_tokens.items()]
