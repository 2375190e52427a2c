"""Handling of special-token strings inside documents.

`<|endoftext|>` in a web page is text, and must not end a document for the model. If such strings are to be
text, the engines get a tokenizer.json in which the special tokens have names that no text contains. So no
engine can make a control token out of text, by any path (added tokens, a Unigram piece, a whole-word lookup).
The ids of the special tokens do not change.

The strings are counted in any case, by one Aho-Corasick pass over the UTF-8 at several GB/s.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from packline.encoders.token_bytes import LETTERS
from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError
from packline.sources.batch import Texts

MARK = f"\uffff{secrets.randbits(64)}."
"""Prefix of the replacement names: random, so that no document can contain one on purpose."""


class BytesCounter:
    """Counter of byte strings in texts.

    >>> BytesCounter([b"ab"]).count(Texts.of(["ab abab", "a", "b"])).tolist()
    [3, 0, 0]
    """

    def __init__(self, patterns: Iterable[bytes]) -> None:
        import ahocorasick_rs

        patterns = list(patterns)
        self._search = None
        if patterns:
            kind = ahocorasick_rs.MatchKind.LeftmostLongest
            self._search = ahocorasick_rs.BytesAhoCorasick(patterns, matchkind=kind)

    def count(self, texts: Texts) -> np.ndarray:
        """Number of matches in each text, int64 `[D]`."""
        counts = np.zeros(len(texts), np.int64)
        if self._search is None:
            return counts
        hits = np.array(self._search.find_matches_as_indexes(texts.data), np.int64).reshape(-1, 3)
        if len(hits):
            # A match that extends into the next text is not one, and may hide one. So the texts that such
            # matches touch are searched again, each alone.
            first, last = np.searchsorted(texts.offsets, [hits[:, 1], hits[:, 2] - 1], side="right") - 1
            edges = np.zeros(len(texts) + 1, np.int64)
            np.add.at(edges, first, 1)
            np.add.at(edges, last + 1, -1)
            places = np.flatnonzero(np.cumsum(edges[:-1]))
            for place, text in zip(places, texts.take(places).raw(), strict=True):
                counts[place] = len(self._search.find_matches_as_indexes(text))
        return counts


class SpecialTokenCounter(BytesCounter):
    """Counter of special-token strings in texts.

    >>> SpecialTokenCounter({"<s>": 1, "</s>": 2}).count(Texts.of(["a <s> b </s><s>", "<", "s>"])).tolist()
    [3, 0, 0]
    """

    def __init__(self, special_tokens: dict[str, int]) -> None:
        super().__init__(token.encode("utf-8") for token in special_tokens if token)


def without_special_tokens(tokenizer: Tokenizer) -> str:
    """Build a tokenizer.json in which no text can become a special token.

    Raises:
        TokenizerError: a special token is also used for ordinary text: a byte, or an input or result of a
            merge. Text would either become it, or lose its tokens.
    """
    whole = msgspec.json.decode(tokenizer.json)
    renamed = {
        token["content"]: f"{MARK}{number}\uffff"
        for number, token in enumerate(whole.get("added_tokens") or [])
        if token.get("special")
    }
    if not renamed:
        return tokenizer.json
    model = whole["model"]
    if model.get("type") == "Unigram" and model.get("unk_id") is not None:
        # A Unigram model encodes any unknown text as <unk>, including this string; that remains.
        unknown = model["vocab"][model["unk_id"]][0]
        renamed.pop(unknown, None)
        whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] != unknown]
    _refuse_words(tokenizer, whole, renamed)
    for token in whole["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    _rename_in_model(model, renamed)
    # It names special tokens too, and is not applied to documents.
    whole["post_processor"] = None
    return msgspec.json.encode(whole).decode()


def _refuse_words(tokenizer: Tokenizer, whole: dict[str, Any], special: dict[str, str]) -> None:
    """Refuse special tokens that are bytes of a byte-level vocabulary, or take part in merges."""
    steps = msgspec.json.encode([whole.get("normalizer"), whole.get("pre_tokenizer")])
    words = {token for token in special if token in LETTERS} if b'"ByteLevel"' in steps else set()
    merges = whole["model"].get("merges") or []
    pairs = (pair.split(" ", 1) if isinstance(pair, str) else pair for pair in merges)
    for left, right in pairs:
        words |= special.keys() & {left, right, left + right}
    if words:
        raise TokenizerError(
            f"the special token {min(words)!r} of {tokenizer.name} is also a token that ordinary text is made"
            " of: expected a string that merges do not make and that is no single byte",
            hint="in tokenizer.json, mark it as not special, or give the special token a string of its own;"
            " --special-tokens parse takes the tokenizer as it is: such text becomes the control token",
        )


def _rename_in_model(model: dict[str, Any], renamed: dict[str, str]) -> None:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        for old, new in renamed.items():
            if old in vocabulary:
                vocabulary[new] = vocabulary.pop(old)
    else:
        for entry in vocabulary:  # Unigram: [piece, score]
            entry[0] = renamed.get(entry[0], entry[0])
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
