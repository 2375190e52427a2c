r"""Conversion of a tokenizer.json to tiktoken's ranks with the same ids: the reverse of `encoders.tiktoken`.

    vocab, merges in their order  ──>  ranks: bytes of each token, and its id
    split and byte level          ──>  the regular expression that cuts text into words
    added tokens                  ──>  special tokens

tiktoken has no merges: it joins the neighbours whose bytes are the token of lowest id. Ids are the same if
the ids of tokens rise in the order of the merges, and every merge is the last step by which ranks alone make
its token (`last_pair`). Everything else is refused: normalizers, added tokens that are not special, other
models, expressions that the two regular expression engines read differently.

Cost: every token is merged once, a second for 100,000 tokens.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from packline.encoders.tiktoken import SPLIT_50K, UNUSED, last_pair
from packline.encoders.token_bytes import BYTE_OF_LETTER, LETTERS_ONLY
from packline.encoders.tokenizer import Tokenizer, merge_pairs
from packline.errors import TokenizerError

LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
REPEATED = re.compile(r"\{\d*,?\d*\}\+")
"""A possessive quantifier for tiktoken, and a repeated group for HF tokenizers."""


class Ranks(msgspec.Struct, frozen=True):
    """Arguments of tiktoken's `Encoding`."""

    pattern: str
    """Regular expression whose matches are merged separately."""
    ranks: dict[bytes, int]
    special_tokens: dict[str, int]


def ranks_of(tokenizer: Tokenizer) -> Ranks:
    """Ranks of a byte-level BPE, for which tiktoken gives the same ids.

    Raises:
        TokenizerError: tiktoken has no equal encoding; the message names the reason.

    >>> from packline.encoders.tiktoken import Encoding, tokenizer_of_ranks
    >>> ranks = {bytes([byte]): byte for byte in range(256)} | {b"he": 256, b"the": 257}
    >>> text = msgspec.json.encode(tokenizer_of_ranks(ranks, Encoding(None, 258, {"<s>": 258}))).decode()
    >>> found = ranks_of(
    ...     Tokenizer(name="tiny", kind="tiktoken", json=text, vocab_size=259, special_tokens={"<s>": 258})
    ... )
    >>> found.ranks == ranks, found.special_tokens
    (True, {'<s>': 258})
    """
    whole = msgspec.json.decode(tokenizer.json)
    pattern = _pattern(tokenizer, whole)
    _check_model(tokenizer, whole)
    added = {token["content"]: token for token in whole.get("added_tokens") or ()}
    if other := next((text for text, token in added.items() if not token["special"]), None):
        raise _refused(
            tokenizer, f"the added token {other!r} is not special, and tiktoken has no such tokens"
        )
    spelled = {
        piece: number
        for piece, number in whole["model"]["vocab"].items()
        if piece not in added and not piece.startswith(UNUSED)
    }
    if odd := next((piece for piece in spelled if not LETTERS_ONLY.fullmatch(piece)), None):
        raise _refused(tokenizer, f"the token {odd!r} is not spelled in bytes")
    ranks = {piece.translate(BYTE_OF_LETTER).encode("latin-1"): number for piece, number in spelled.items()}
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise _refused(tokenizer, f"{len(missing)} single bytes are no tokens, the first is {missing[0]}")
    _check_merges(tokenizer, whole["model"], spelled)
    return Ranks(pattern, ranks, {text: token["id"] for text, token in added.items()})


def _pattern(tokenizer: Tokenizer, whole: dict[str, Any]) -> str:
    """Regular expression of the pre-tokenizer."""
    pre = whole.get("pre_tokenizer") or {}
    steps = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    *splits, level = steps
    plain = all(level.get(name) == value for name, value in LEVEL.items())
    if plain and not splits and level.get("use_regex", True):
        return SPLIT_50K
    if not plain or level.get("use_regex", True) or len(splits) != 1:
        raise _refused(tokenizer, "its pre-tokenizer is not one regular expression and a byte level")
    (split,) = splits
    expression = split.get("pattern", {}).get("Regex")
    isolated = split.get("behavior") == "Isolated" and not split.get("invert")
    if split.get("type") != "Split" or not isolated or expression is None:
        raise _refused(tokenizer, "its pre-tokenizer does not isolate the matches of a regular expression")
    if REPEATED.search(expression):
        raise _refused(tokenizer, "its regular expression has `}+`, which the two engines read differently")
    return str(expression)


def _check_model(tokenizer: Tokenizer, whole: dict[str, Any]) -> None:
    model = whole["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model or model.get("byte_fallback"):
        raise _refused(tokenizer, "it is not a byte-level BPE")
    if whole.get("normalizer") is not None:
        raise _refused(tokenizer, "it normalizes text, which tiktoken does not")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise _refused(tokenizer, f"it has {name} {model[name]!r}")


def _check_merges(tokenizer: Tokenizer, model: dict[str, Any], spelled: dict[str, int]) -> None:
    """Refuse merges that ranks alone do not make, in their order."""
    merges = {left + right: (left, right) for left, right in merge_pairs(model["merges"])}
    numbers = [spelled.get(piece, -1) for piece in merges]
    if len(merges) != len(model["merges"]) or numbers != sorted(set(numbers)) or -1 in numbers:
        raise _refused(tokenizer, "the ids of its tokens do not rise in the order of its merges")
    whole_words = bool(model.get("ignore_merges"))
    for piece in spelled:
        made = last_pair(piece, spelled) if len(piece) > 1 else None
        if made != merges.get(piece) or (made is None and len(piece) > 1 and not whole_words):
            raise _refused(tokenizer, f"ranks alone do not make the token {piece!r} by its merge")


def _refused(tokenizer: Tokenizer, why: str) -> TokenizerError:
    return TokenizerError(
        f"{tokenizer.name} has no equal encoding of tiktoken: {why}",
        hint="packline tokenizer train makes one that has: --pattern nanochat --specials nanochat",
    )
