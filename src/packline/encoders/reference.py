"""The reference: HF `tokenizers`, whose ids are correct by definition.

Added tokens are cut out of a text before anything else. The reference ignores the id that the file gives to
an added token: a token that is also in the vocabulary keeps its vocabulary id, and the others are numbered
consecutively after it. Other engines use the id in the file. Where the two differ there is no way to know
which ids a model was trained with, so the tokenizer is refused.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from packline.encoders.tokenizer import read_added_tokens, refusals
from packline.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

RoundTrip = Literal["exact", "normalized", "lossy"]

PROBES = (
    "Plain words, in 1 or 2 sentences.",
    "  spaces   before, within and after  ",
    "tabs\tand\nnew\r\nlines\n\n",
    "naïve café – “quotes” … €5",
    "cafe\u0301 combining, ﬁ ligature, ½",
    "漢字とかな 한국어 العربية हिन्दी 🧑‍🚀",
)
"""Texts that a tokenizer must recover unchanged to count as lossless."""
ODD_PROBES = (
    "load ▁▂▃▅▇ and ▁word",
    "Ġ and Ċ and Ġthe",
    "##s and word ##s",
    "<0x0A> <0xE4><0xB8>",
    "\ufffd and \ufffd\ufffd",
    "<unk> [UNK] <s></s>",
    "\u180e  \u180e a\u0323\u0301 \u1100\u1161 '\u017f",
)
"""Text in the tokenizers' internal spelling, which some do not recover, and characters that few support."""


def load_reference(json: str) -> tokenizers.Tokenizer:
    """The `tokenizers.Tokenizer` of a tokenizer.json, limited to one thread."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers.Tokenizer.from_str(json)


class Reference:
    """The reference tokenizer.

    Raises:
        TokenizerError: the file gives added tokens different ids than the reference.
    """

    def __init__(self, json: str) -> None:
        self.json = json
        with refusals("HF tokenizers cannot read this tokenizer"):
            self._tokenizer = load_reference(json)
        check_ids(json, self._tokenizer)

    def tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer of the library, in this process."""
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Encode a text to the correct ids, without boundary tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Decode ids to text."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def gives_back(self, text: str, ids: list[int]) -> bool:
        """True if ids decode to the text, within the known limits of this tokenizer."""
        if self.round_trip == "lossy":
            return True
        decoded = self.decode(ids)
        return decoded == text or (self.round_trip == "normalized" and decoded == self._normalize(text))

    def keeps(self) -> bool:
        """True if text in the spelling of tokens is recovered too; then ids that do not decode are wrong."""
        return all(self.gives_back(text, self.encode(text)) for text in ODD_PROBES)

    @cached_property
    def round_trip(self) -> RoundTrip:
        """Exactness with which ids decode to the text."""
        decoded = [self.decode(self.encode(text)) for text in PROBES]
        if decoded == list(PROBES):
            return "exact"
        return "normalized" if decoded == [self._normalize(text) for text in PROBES] else "lossy"

    def _normalize(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))


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
