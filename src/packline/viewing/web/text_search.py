"""Find a text in a store of any size, page by page, by the bytes of tokens rather than by ids.

    tokens of a block ──gather──> bytes ──find──> places in bytes ──> document, first token, bytes into it

A text is therefore found wherever it is: at the beginning of a token, inside one, and across several, even
if they split a character. Every place counts, overlapping ones included. Control tokens are not text: a byte
that never occurs in UTF-8 replaces them, so a match never spans one. Nor does it span the end of a document.

Whatever a tokenizer does not keep (case, accents, white space, characters that it does not know) is not in a
store and cannot be found. `spell` converts the wanted text to the way such a tokenizer writes it.

Cost: 200 to 300 MB of text per second on one core; memory for one block.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from packline.encoders.token_bytes import TokenText, drops_first_space, keeps_text, puts_spaces
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore
from packline.store.reader import StoreReader
from packline.store.shard import Shard
from packline.viewing.vocabulary import Vocabulary
from packline.viewing.web.search import Found, Hit, document_at

if TYPE_CHECKING:
    import tokenizers

BUDGET = 0.15
"""Seconds of searching per page."""
BLOCK = 1 << 17
"""Tokens searched between two checks of the time."""
NO_TEXT = b"\xff"
"""Byte in place of tokens that are not text; it never occurs in UTF-8."""


class TextSearch:
    """Search for texts, with data computed once from a store's tokenizer.

    Args:
        tokenizer: tokenizer of the store.
        vocabulary: vocabulary of the store.
        encoder: encodes a text as a build does.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, encoder: tokenizers.Tokenizer) -> None:
        control = set(tokenizer.special_tokens.values())
        self._tokens = TokenText.of_tokens(
            [
                NO_TEXT if number in control or not data else data
                for number, data in enumerate(vocabulary.data)
            ]
        )
        self._encoder = encoder
        self.kept = keeps_text(tokenizer)
        """True if the tokenizer keeps texts unchanged."""
        self._drops_space = drops_first_space(tokenizer)
        self._spaced = puts_spaces(tokenizer)

    def spell(self, text: str) -> bytes:
        """Bytes to search for: the text itself, or its form in the tokens of this tokenizer.

        Args:
            text: text as typed, not empty.
        """
        raw = text.encode("utf-8", "surrogatepass")
        encoder = self._encoder
        ids = np.array(encoder.encode(text, add_special_tokens=False).ids, np.int64)
        inner = self._tokens.gather(ids)[0].tobytes().strip(b" ")
        if NO_TEXT in inner:  # unknown as a whole, but part of a longer word may be known
            normal = encoder.normalizer.normalize_str(text) if encoder.normalizer else text
            pieces = [normal] if encoder.pre_tokenizer is None else self._words(normal)
            inner = (" " if self._spaced else "").join(pieces).replace("▁", " ").encode().strip(b" ")
        if not inner or inner == raw.strip(b" "):
            return raw
        # Keep spaces at the ends as typed: many tokenizers add one before a text, others strip them.
        return b" " * raw.startswith(b" ") + inner + b" " * raw.endswith(b" ")

    def _words(self, text: str) -> list[str]:
        return [piece for piece, _ in self._encoder.pre_tokenizer.pre_tokenize_str(text)]

    def find(
        self, store: StoreReader, wanted: bytes, *, after: int = 0, most: int = 20, budget: float = BUDGET
    ) -> Found:
        """Find a text within documents, in the order of the store.

        Args:
            store: the store whose tokenizer this is.
            wanted: bytes of a text, not empty.
            after: token to begin at, counted over all shards: 0, or `after` of the previous page.
            most: maximum hits per page; hits that begin in the same token are never separated.
            budget: seconds; one block is searched however long it takes.

        Raises:
            CorruptStore: an id is outside the vocabulary.
        """
        total = store.manifest.tokens
        hits: list[Hit] = []
        latest = -1

        def page(position: int) -> Found:
            done = min(position / max(total, 1), 1.0)
            return Found(tuple(hits), position if position < total else None, done)

        end, first, position = time.monotonic() + budget, 0, max(after, 0)
        for number, shard in enumerate(store.shards):
            last = first + shard.entry.tokens
            while position < last:
                start, stop = position - first, min(position - first + BLOCK, last - first)
                for token, skip, length in self._in_block(shard, wanted, start, stop):
                    if len(hits) >= most and token != latest:
                        return page(first + token)
                    hit = self._hit(store, number, token, skip, length, wanted)
                    if hit is not None:
                        hits.append(hit)
                        latest = token
                position = first + stop
                if time.monotonic() > end:
                    return page(position)
            first = last
        return page(total)

    def _in_block(self, shard: Shard, wanted: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Places that begin in a range of tokens: token, bytes into it, number of tokens touched."""
        behind = min(stop + len(wanted) - 1, shard.entry.tokens)  # each token has at least one byte
        tokens = shard.tokens[start:behind]
        if int(tokens.max()) >= len(self._tokens) or int(tokens.min()) < 0:
            raise CorruptStore(
                f"shard {shard.entry.name}: an id outside the vocabulary among tokens {start:,} to {stop:,}",
                hint="packline verify shows what else differs",
            )
        text, begins = self._tokens.gather(tokens)
        data, limit = text.tobytes(), int(begins[stop - start])
        at = data.find(wanted)
        while 0 <= at < limit:
            token = int(np.searchsorted(begins, at, side="right")) - 1
            touched = int(np.searchsorted(begins, at + len(wanted))) - token
            yield start + token, at - int(begins[token]), touched
            at = data.find(wanted, at + 1)

    def _hit(
        self, store: StoreReader, number: int, token: int, skip: int, length: int, wanted: bytes
    ) -> Hit | None:
        """Make a hit of a place within the text of one document; None for other places."""
        shard = store.shards[number]
        inner = document_at(shard, token)
        start = token - int(shard.places(slice(inner, inner + 1))[0])
        begin = 0 if store.manifest.tokenizer.bos_id is None else 1
        if start < begin or start + length > int(shard.lengths[inner]) - 1:
            return None
        if self._drops_space and start == begin and skip == 0 and wanted.startswith(b" "):
            return None  # the space that such a tokenizer adds before every text
        return Hit(int(store.firsts[number]) + inner, start, length, skip)
