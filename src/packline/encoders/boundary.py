"""Document boundaries: the token that ends a document, and an optional token that begins it.

    declared eos, special tokens ─┬─ end of text: <|endoftext|>, </s>, ...     one of these and none of those:
                                  └─ end of turn: <|im_end|>, <|eot_id|>, ...   chosen; otherwise refused

A wrong boundary is noticed only after a model has been trained on it, so nothing is guessed: the tokenizer's
own choice is used if it has exactly one end-of-text token and no end-of-turn token. Chat tokenizers have
both, and declare sometimes one and sometimes the other as their eos. A beginning token is never chosen for
the user.

Cost: one parse of the tokenizer, 0.2 s for 150,000 tokens; for a string that is not a token, also one
encoding. `Ragged.surround` puts the ids into documents.
"""

from __future__ import annotations

from typing import Any

import msgspec

from packline.encoders.tiktoken import UNUSED
from packline.encoders.tokenizer import Tokenizer
from packline.errors import TokenizerError

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


class Boundary(msgspec.Struct, frozen=True):
    """Tokens at the beginning and end of a document, as ids and as strings."""

    eod_id: int
    eod: str
    bos_id: int | None = None
    bos: str | None = None


def resolve_boundary(tokenizer: Tokenizer, eod: str | int | None, bos: str | int | None) -> Boundary:
    """Resolve the requested boundary tokens to ids of the tokenizer.

    Args:
        tokenizer: the tokenizer that has the tokens.
        eod: end of a document, as the string of one token or as an id; None for the tokenizer's own choice,
            if there is exactly one.
        bos: beginning of a document, in the same forms; None for no token.

    Raises:
        TokenizerError: a string that is not one token, an id without a token, or no clear choice; the message
            lists the candidates and their ids.

    >>> from packline.encoders.tokenizer import Tokenizer
    >>> special = {"</s>": 1}
    >>> model = {"type": "BPE", "vocab": {"a": 0} | special, "merges": []}
    >>> text = msgspec.json.encode({"model": model}).decode()
    >>> tokenizer = Tokenizer(
    ...     name="tiny", kind="huggingface", json=text, vocab_size=2, special_tokens=special
    ... )
    >>> resolve_boundary(tokenizer, None, None)
    Boundary(eod_id=1, eod='</s>', bos_id=None, bos=None)
    >>> resolve_boundary(tokenizer, 0, "</s>")
    Boundary(eod_id=0, eod='a', bos_id=1, bos='</s>')
    """
    tokens = _tokens(tokenizer)
    end = _choose(tokenizer, tokens) if eod is None else _find(tokenizer, tokens, eod, "eod")
    begin = None if bos is None else _find(tokenizer, tokens, bos, "bos")
    return Boundary(tokens[end], end, None if begin is None else tokens[begin], begin)


def _tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Strings and ids of all tokens; an added token overrides a vocabulary entry with the same string."""
    contents = msgspec.json.decode(tokenizer.json)
    vocab: Any = contents["model"]["vocab"]
    if isinstance(vocab, list):  # Unigram: (piece, score) pairs
        vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
    if tokenizer.kind == "tiktoken":
        vocab = {token: number for token, number in vocab.items() if not token.startswith(UNUSED)}
    added = {token["content"]: token["id"] for token in contents.get("added_tokens") or []}
    tokens: dict[str, int] = vocab | added
    return tokens


def _find(tokenizer: Tokenizer, tokens: dict[str, int], wanted: str | int, role: str) -> str:
    """String of the requested token."""
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
    if eos is not None and eos not in tokens:
        reason = f"its eos {eos} is no token of it"
    elif eos in turns:
        reason = f"its eos {eos} ends a turn and not a text"
    elif turns:
        reason = "it has tokens that end a turn as well as a text"
    elif eos is not None:
        reason = f"its eos {eos} is not known to end a text"
    elif texts:
        reason = "more than one token may end a text"
    else:
        reason = "none of its special tokens is known to end a text"
    # Vocabularies without an end of text often separate documents by a beginning token, as nanochat's does.
    begin = {bos: tokens[bos]} if (bos := tokenizer.bos_token) in tokens and not texts else {}
    candidates = texts | begin | turns | ({eos: tokens[eos]} if eos in tokens else {})
    likely = min(texts or begin or turns, key=tokens.__getitem__, default=None)
    raise TokenizerError(
        f"{tokenizer.name} leaves open what ends a document: {reason};"
        f" candidates are {_listed(candidates or tokenizer.special_tokens)}",
        hint=f"say which, for example --eod '{likely}'"
        if likely
        else "say which with --eod, as a string or an id",
    )


def _listed(tokens: dict[str, int], at_most: int = 8) -> str:
    """Tokens and ids formatted for a message: `</s> (2), <s> (1)`."""
    ordered = sorted(tokens.items(), key=lambda item: item[1])
    shown = ", ".join(f"{token} ({number})" for token, number in ordered[:at_most])
    return (shown + (f" and {len(tokens) - at_most} more" if len(tokens) > at_most else "")) or "none"


def begin_of_sequence(tokenizer: Tokenizer, wanted: str | int | None) -> int:
    """Token that begins every sequence: the requested one, else the one that the tokenizer declares.

    Raises:
        TokenizerError: no such token, or none is declared.
    """
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
