"""Added tokens: their ids, and texts that probe how an engine handles them.

Added tokens are cut out of a text before anything else. The reference ignores the id that the file gives to
an added token: a token that is also in the vocabulary keeps its vocabulary id, and the others are numbered
consecutively after it. Other engines use the id in the file. Where the two differ there is no way to know
which ids a model was trained with, so the tokenizer is refused.

Cost: one pass over the tokenizer.json without its vocabulary, 0.05 s for 150,000 tokens; the probes take less
than 0.1 s for 10,000 added tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
import tokenizers

from packline.encoders.special import MARK
from packline.errors import TokenizerError

ALIKE = 4
"""Tokens probed in every form, per kind (the same flags and classes of characters at both ends)."""
MOST_IN_FULL = 48
MOST_PAIRS = 96
JOINED = 32
"""Number of the remaining tokens that are combined into one text."""
FORMS = ("{}", " {}", "{} ", "  {}  ", "\n{}\n", "a{}b", "1{}1", ".{}.", "{}{}", "{} {}", "{}\u0301")


class AddedToken(msgspec.Struct, frozen=True):
    """An entry of `added_tokens`."""

    content: str
    id: int
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _Whole(msgspec.Struct, frozen=True):
    added_tokens: list[AddedToken] | None = None


def read_added_tokens(json: str) -> list[AddedToken]:
    """Read the added tokens of a tokenizer.json, in file order.

    >>> read_added_tokens('{"added_tokens": [{"content": "<s>", "id": 1}]}')[0].content
    '<s>'
    """
    return msgspec.json.decode(json, type=_Whole).added_tokens or []


def check_ids(json: str, reference: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer whose file gives an added token a different id than the reference does.

    Args:
        json: the tokenizer.json that `reference` was read from.

    Raises:
        TokenizerError: the ids differ; the message lists the tokens and both ids.
    """
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
