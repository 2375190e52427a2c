"""Special tokens: those that begin and end documents, and their strings inside documents.

A wrong boundary is noticed only after a model has been trained on it, so nothing is guessed: the tokenizer's
own choice is used if it has exactly one end-of-text token and no end-of-turn token.

If strings such as `<|endoftext|>` are to be text, engines get a tokenizer.json in which special tokens have
names that no text contains, so that no engine can make a control token out of text by any path. Ids do not
change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from packline.encoders.tiktoken import LETTERS, UNUSED
from packline.encoders.tokenizer import (
    Tokenizer,
    make_json,
    merge_pairs,
    parse_json,
    unknown_token,
    vocab_of,
)
from packline.errors import TokenizerError
from packline.sources.batch import Texts

END_OF_TEXT = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|endofdoc|>",
    "<｜end▁of▁sentence｜>",
    "<|eos|>",
    "<EOD>",
    "<EOS>",
    "<eod>",
    "[EOD]",
    "[EOS]",
)
"""Tokens that end a text, the most common first."""
END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|user_end|>",
        "<|assistant_end|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|end_of_role|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "[|endofturn|]",
    }
)

MARK = f"\uffff{int.from_bytes(os.urandom(8))}."
"""Prefix of the replacement names: random, so that no document can contain one on purpose."""


class BytesCounter:
    """Counter of strings, such as special tokens, in texts; empty ones are left out.

    >>> from packline.sources.batch import Texts
    >>> BytesCounter(["<s>", b"</s>"]).count(Texts.of(["a <s> b </s><s>", "<", "s>"])).tolist()
    [3, 0, 0]
    """

    def __init__(self, strings: Iterable[str | bytes]) -> None:
        import ahocorasick_rs

        patterns = [one.encode("utf-8") if isinstance(one, str) else one for one in strings if one]
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


def json_to_encode(tokenizer: Tokenizer, *, parse: bool) -> str:
    """The tokenizer.json of engines and reference.

    Args:
        parse: encode strings of special tokens in texts as these tokens; otherwise as text.
    """
    return _with_special_tokens(tokenizer.json) if parse else without_special_tokens(tokenizer)


@lru_cache(maxsize=1)
def _with_special_tokens(json: str) -> str:
    return _quick_to_load(parse_json(json))


def _quick_to_load(whole: dict[str, Any]) -> str:
    """The same tokenizer, spelled so that the reference and fastokens load it in a quarter less time.

    They keep objects in sorted trees, and read a merge as one string faster than as two. Of such strings the
    reference skips those that begin as the first line of a file of merges does.
    """
    model = whole["model"]
    if model.get("merges"):
        pairs = merge_pairs(model["merges"])
        words = [" ".join(pair) for pair in pairs]
        text = "".join(chain.from_iterable(pairs))
        if [text] == text.split() and all(chain.from_iterable(pairs)) and "#version" not in text:
            whole = whole | {"model": model | {"merges": words}}
    return make_json(whole, "sorted")


def without_special_tokens(tokenizer: Tokenizer) -> str:
    """Build a tokenizer.json in which no text can become a special token."""
    return _rename_special(tokenizer.name, tokenizer.json)


@lru_cache(maxsize=1)
def _rename_special(name: str, json: str) -> str:
    whole = parse_json(json)
    renamed = {
        token["content"]: f"{MARK}{number}\uffff"
        for number, token in enumerate(whole.get("added_tokens") or [])
        if token.get("special")
    }
    if not renamed:
        return _quick_to_load(whole)
    model, added = whole["model"], whole["added_tokens"]
    if model.get("type") == "Unigram" and (unknown := unknown_token(model)) is not None:
        # A Unigram model encodes any unknown text as <unk>, including this string; that remains.
        renamed.pop(unknown, None)
        added = [token for token in added if token["content"] != unknown]
    _refuse_words(name, whole, renamed)
    changed = {
        "added_tokens": [
            token | {"content": renamed.get(token["content"], token["content"])} for token in added
        ],
        "model": _rename_in_model(model, renamed),
        "post_processor": None,  # it names special tokens too, and is not applied to documents
    }
    return _quick_to_load(whole | changed)


def _refuse_words(name: str, whole: dict[str, Any], special: dict[str, str]) -> None:
    """Refuse special tokens that are bytes of a byte-level vocabulary, or take part in merges."""
    steps = msgspec.json.encode([whole.get("normalizer"), whole.get("pre_tokenizer")])
    words = {token for token in special if token in LETTERS} if b'"ByteLevel"' in steps else set()
    pairs = merge_pairs(whole["model"].get("merges") or [])
    for strings in (chain.from_iterable(pairs), map("".join, pairs)):
        words |= set(filter(special.__contains__, strings))
    if words:
        raise TokenizerError(
            f"the special token {min(words)!r} of {name} is also a token that ordinary text is made"
            " of: expected a string that merges do not make and that is no single byte",
            hint="in tokenizer.json, mark it as not special, or give the special token another string;"
            " special_tokens = 'parse' in a recipe takes it as it is: such text becomes the control token",
        )


def _rename_in_model(model: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        new = {renamed[token]: vocabulary[token] for token in renamed if token in vocabulary}
        vocabulary = vocabulary | new
        for token in renamed:
            vocabulary.pop(token, None)
    else:
        vocabulary = [[renamed.get(piece, piece), *score] for piece, *score in vocabulary]  # Unigram
    changed = {"vocab": vocabulary}
    if model.get("unk_token") in renamed:
        changed["unk_token"] = renamed[model["unk_token"]]
    return model | changed


def control_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of special tokens that no text can become.

    A model without an id for every byte encodes unknown text as <unk>, so that one is left out.
    """
    control = dict(tokenizer.special_tokens)
    model = parse_json(tokenizer.json)["model"]
    unknown = unknown_token(model)
    if unknown is not None and not _knows_all_bytes(model):
        control.pop(unknown, None)
    return tuple(sorted(set(control.values())))


def _knows_all_bytes(model: dict[str, object]) -> bool:
    """True if a BPE has tokens for single bytes: as `<0x0A>`, or by the usual letters for bytes."""
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or "merges" not in model:
        return False
    return model.get("byte_fallback") is True or vocab.keys() >= LETTERS.keys()


class Boundary(msgspec.Struct, frozen=True):
    eod_id: int
    eod: str
    bos_id: int | None = None
    bos: str | None = None


def resolve_boundary(tokenizer: Tokenizer, eod: str | int | None, bos: str | int | None) -> Boundary:
    tokens = _tokens(tokenizer)
    end = _choose(tokenizer, tokens) if eod is None else _find(tokenizer, tokens, eod, "eod")
    begin = None if bos is None else _find(tokenizer, tokens, bos, "bos")
    return Boundary(tokens[end], end, None if begin is None else tokens[begin], begin)


def _tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Strings and ids of all tokens; an added token overrides a vocabulary entry with the same string."""
    contents = parse_json(tokenizer.json)
    vocab = vocab_of(contents)
    if tokenizer.kind == "tiktoken":
        vocab = {token: number for token, number in vocab.items() if not token.startswith(UNUSED)}
    added = {token["content"]: token["id"] for token in contents.get("added_tokens") or []}
    return vocab | added


def _find(tokenizer: Tokenizer, tokens: dict[str, int], wanted: str | int, role: str) -> str:
    if isinstance(wanted, int):
        found = [token for token, number in tokens.items() if number == wanted]
        if not 0 <= wanted < tokenizer.vocab_size or not found:
            raise TokenizerError(
                f"{role} {wanted} is no token of {tokenizer.name}:"
                f" expected an id from 0 to {tokenizer.vocab_size - 1} that has a token",
                hint=f"name the token by its string, for example --{role} '<|endoftext|>'",
            )
        return found[-1]  # where an id has two strings, the last is the added token
    if wanted in tokens:
        return wanted
    ids = tokenizer.reference().encode(wanted, add_special_tokens=False).ids
    if len(ids) == 1:
        hint = f"the vocabulary spells that token otherwise; if it is meant, give its id: --{role} {ids[0]}"
    else:
        hint = f"special tokens are {_listed(tokenizer.special_tokens)}"
    text = f"{len(ids)} token{'s' if len(ids) != 1 else ''}: {ids[:8]}{'...' if len(ids) > 8 else ''}"
    raise TokenizerError(
        f"{role} {wanted!r} is not one token of {tokenizer.name}:"
        f" expected the string of a token, found text of {text}",
        hint=hint,
    )


def _choose(tokenizer: Tokenizer, tokens: dict[str, int]) -> str:
    """The only token that ends texts and nothing else; otherwise an error that names the candidates."""
    eos = tokenizer.eos_token
    meant = {*tokenizer.special_tokens} | {eos}  # `</s>` in a vocabulary may be a piece of HTML
    texts = {token: tokens[token] for token in END_OF_TEXT if token in tokens and token in meant}
    turns = {token: tokens[token] for token in END_OF_TURN if token in tokens}
    if not turns and eos in texts:
        return eos
    if not turns and eos is None and len(texts) == 1:
        return next(iter(texts))
    # Vocabularies without an end of text often separate documents by a beginning token, as nanochat's does.
    begin = {bos: tokens[bos]} if (bos := tokenizer.bos_token) in tokens and not texts else {}
    candidates = texts | begin | turns | ({eos: tokens[eos]} if eos in tokens else {})
    likely = min(texts or begin or turns, key=tokens.__getitem__, default=None)
    raise TokenizerError(
        f"{tokenizer.name} leaves open what ends a document: expected one token that ends texts, none that"
        f" ends turns; its eos is {eos}; candidates are {_listed(candidates or tokenizer.special_tokens)}",
        hint=f"choose one, for example --eod '{likely or 'TOKEN'}'",
    )


def _listed(tokens: dict[str, int], at_most: int = 8) -> str:
    ordered = sorted(tokens.items(), key=lambda item: item[1])
    shown = ", ".join(f"{token} ({number})" for token, number in ordered[:at_most])
    return (shown + (f" and {len(tokens) - at_most} more" if len(tokens) > at_most else "")) or "none"


def begin_of_sequence(tokenizer: Tokenizer, wanted: str | int | None) -> int:
    """Token that begins every sequence: the requested one, else the one that the tokenizer declares."""
    if wanted is None:
        wanted = "<|bos|>" if "<|bos|>" in tokenizer.special_tokens else tokenizer.bos_token
    if wanted is None:
        raise TokenizerError(
            f"{tokenizer.name} declares no token to begin a sequence with",
            hint="name what begins the model's documents with --bos, of "
            + _listed(tokenizer.special_tokens, 12),
        )
    tokens = _tokens(tokenizer)
    return tokens[_find(tokenizer, tokens, wanted, "bos")]


UNCHANGED_BY_NFC = re.compile(r"[\x00-:?@\[-_{-\x7fQq\uffff]*")
"""Characters that NFC neither produces nor changes: ASCII that no canonical decomposition contains."""
NOT_MADE_BY_NFC = re.compile(r"[\x00-\x7f\uffff]*")
"""Characters that NFC does not produce from others, except three produced from the last of `MARKS`."""


def added_token_features(added: list[dict[str, Any]], normalizer: str, prefix: bool) -> Iterator[str]:
    contents = [str(token.get("content", "")) for token in added]
    for token, content in zip(added, contents, strict=True):
        yield "added token" if content else "added token without a character"
        for flag in ("lstrip", "rstrip", "single_word"):
            if token.get(flag):
                yield f"added token {flag}"
    strips = any(token.get("lstrip") or token.get("rstrip") for token in added)
    if strips and any(content != content.strip() for content in contents):
        yield "added token that strips beside one with white space at an end"
    if prefix and any(content.startswith(" ") for content in contents):
        yield "added token that begins with a space, with add_prefix_space"
    normalized = [content for token, content in zip(added, contents, strict=True) if token.get("normalized")]
    plain = [content for token, content in zip(added, contents, strict=True) if not token.get("normalized")]
    if normalizer not in ("none", "NFC") and normalized:
        yield f"added token normalized, with {normalizer}"
    if normalizer == "NFC" and not all(map(UNCHANGED_BY_NFC.fullmatch, normalized)):
        yield "added token normalized, of characters that NFC makes or changes"
    if normalizer == "NFC" and not all(map(NOT_MADE_BY_NFC.fullmatch, plain)):
        yield "added token that is not ASCII, with NFC"
    if _overlap(normalized, plain):  # the reference matches the latter first, wherever they occur
        yield "added tokens normalized and not that overlap"


def _overlap(some: list[str], others: list[str]) -> bool:
    """True if a string of one list contains one of the other, or ends with the beginning of one."""
    if not some or not others:
        return False
    for ones, twos in ((some, others), (others, some)):
        beginnings = {two[:end] for two in twos for end in range(1, len(two) + 1)}
        if any(one[start:] in beginnings for one in ones for start in range(len(one))):
            return True
        if BytesCounter(twos).count(Texts.of(ones)).any():
            return True
    return False
