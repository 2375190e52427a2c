"""Find texts and token ids in a store of any size, page by page.

A search proceeds through the store from `after` and stops when it has enough hits or its time is up; the next
page continues there. A whole search takes as long as reading the tokens once: 2 G tokens per second from
memory, or 200 to 300 MB of text per second.

Texts are found by the bytes of tokens, so wherever they are: at the beginning of a token, inside one, and
across several, even if they split a character. Every place counts, overlapping ones included. Control tokens
are not text: a byte that never occurs in UTF-8 replaces them. Whatever a tokenizer does not keep (case,
accents, white space, characters that it does not know) is not in a store and cannot be found;
`TextSearch.spell` converts a text to the way such a tokenizer writes it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from packline.encoders.token_bytes import TokenText, drops_first_space, keeps_text, puts_spaces
from packline.encoders.tokenizer import Tokenizer
from packline.errors import CorruptStore
from packline.store.reader import StoreReader
from packline.store.shard import Shard
from packline.viewing.tokens import Vocabulary

if TYPE_CHECKING:
    import tokenizers

BUDGET = 0.3
"""Seconds of searching per page."""
BLOCK = 1 << 18
MOST_HITS = 20
MOST_OF_DOCUMENT = 2
"""Maximum hits per page in one document; the others are counted."""
MOST_IDS = 512
TEXT_BLOCK = 1 << 17
NO_TEXT = b"\xff"
"""Byte in place of tokens that are not text; it never occurs in UTF-8."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Place of a search result."""

    document: int
    start: int
    """First token, counted within the document."""
    length: int
    skip: int = 0
    """Bytes of the first token before the text found."""
    more: int = 0
    """Further places in the document, as far as it was searched."""


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one page of a search."""

    hits: tuple[Hit, ...]
    after: int | None
    """Place from which to continue; None: the store has been searched to its end."""
    done: float
    """Share of the store that has been searched, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a store that a page searches."""

    after: int = 0
    """Token to begin at, counted over all shards: 0, or `after` of the previous page."""
    until: int | None = None
    """Token to end at; None: the end of the store."""
    most: int = MOST_HITS
    each: int = MOST_OF_DOCUMENT
    budget: float = BUDGET
    """Seconds; one block is searched however long it takes."""


def find_tokens(store: StoreReader, ids: Sequence[int], part: Part = Part()) -> Found:
    """Find a token sequence within documents, in the order of the store."""
    if not 0 < len(ids) <= MOST_IDS or min(ids) < 0 or max(ids) > np.iinfo(store.dtype).max:
        return Found((), None, 1.0)

    def places(shard: Shard, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        tokens = shard.tokens[start : stop + len(ids) - 1]
        found = np.flatnonzero(tokens[: max(len(tokens) - len(ids) + 1, 0)] == ids[0])
        for place, one in enumerate(ids[1:], 1):
            found = found[tokens[found + place] == one]
        return ((start + one, 0, len(ids)) for one in found.tolist())

    return _find(store, places, lambda start, skip, length, size: start + length <= size, BLOCK, part)


def _find(
    store: StoreReader,
    places: Callable[[Shard, int, int], Iterator[tuple[int, int, int]]],
    is_hit: Callable[[int, int, int, int], bool],
    block: int,
    part: Part,
) -> Found:
    """Search blocks of tokens until there are hits enough or the time is up."""
    total = store.manifest.tokens if part.until is None else part.until
    hits: list[Hit] = []
    latest = -1

    def page(position: int) -> Found:
        done = min(position / max(total, 1), 1.0)
        return Found(tuple(hits), position if position < total else None, done)

    end, first, position = time.monotonic() + part.budget, 0, max(part.after, 0)
    for number, shard in enumerate(store.shards):
        last = first + shard.entry.tokens
        while position < min(last, total):
            stop = min(position - first + block, min(last, total) - first)
            for token, skip, length in places(shard, position - first, stop):
                inner = bisect_right(range(len(shard)), token * shard.itemsize, key=shard.offset_of) - 1
                document = int(store.firsts[number]) + inner
                start = token - int(shard.places(slice(inner, inner + 1))[0])
                if not is_hit(start, skip, length, int(shard.lengths[inner])):
                    continue
                if len(hits) >= part.each and hits[-part.each].document == document and token != latest:
                    hits[-1] = replace(hits[-1], more=hits[-1].more + 1)
                    continue
                if len(hits) >= part.most and token != latest:
                    return page(first + token)
                hits.append(Hit(document, start, length, skip))
                latest = token
            position = first + stop
            if time.monotonic() > end:
                return page(position)
        first = last
    return page(total)


class TextSearch:
    """Search for texts, with data computed once from a store's tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, encoder: tokenizers.Tokenizer) -> None:
        control = set(tokenizer.special_tokens.values())
        texts = (NO_TEXT if at in control or not data else data for at, data in enumerate(vocabulary.data))
        self._tokens = TokenText.of_tokens(list(texts))
        self._encoder = encoder
        self.kept = keeps_text(tokenizer)
        """True if the tokenizer keeps texts unchanged."""
        self._drops_space = drops_first_space(tokenizer)
        self._spaced = puts_spaces(tokenizer)

    def spell(self, text: str) -> bytes:
        """Bytes to search for: the text itself, or its form in the tokens of this tokenizer."""
        raw = text.encode("utf-8", "surrogatepass")
        encoder = self._encoder
        ids = np.array(encoder.encode(text, add_special_tokens=False).ids, np.int64)
        inner = self._tokens.gather(ids)[0].tobytes().strip(b" ")
        if NO_TEXT in inner:  # unknown as a whole, but part of a longer word may be known
            normal = encoder.normalizer.normalize_str(text) if encoder.normalizer else text
            words = encoder.pre_tokenizer
            pieces = [normal] if words is None else [one for one, _ in words.pre_tokenize_str(normal)]
            inner = (" " if self._spaced else "").join(pieces).replace("▁", " ").encode().strip(b" ")
        if not inner or inner == raw.strip(b" "):
            return raw
        # Keep spaces at the ends as typed: many tokenizers add one before a text, others strip them.
        return b" " * raw.startswith(b" ") + inner + b" " * raw.endswith(b" ")

    def find(self, store: StoreReader, wanted: bytes, part: Part = Part()) -> Found:
        """Find a text within documents, in the order of the store.

        Hits that begin in the same token are never separated.
        """
        begin = 0 if store.manifest.tokenizer.bos_id is None else 1

        def is_hit(start: int, skip: int, length: int, size: int) -> bool:
            if self._drops_space and start == begin and skip == 0 and wanted.startswith(b" "):
                return False  # the space that such a tokenizer adds before every text
            return start >= begin and start + length <= size - 1

        def places(shard: Shard, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
            return self._in_block(shard, wanted, start, stop)

        return _find(store, places, is_hit, TEXT_BLOCK, part)

    def _in_block(self, shard: Shard, wanted: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Places that begin in a range of tokens: token, bytes into it, number of tokens touched."""
        behind = min(stop + len(wanted) - 1, shard.entry.tokens)  # each token has at least one byte
        tokens = shard.tokens[start:behind]
        if int(tokens.max()) >= len(self._tokens) or int(tokens.min()) < 0:
            raise CorruptStore(
                f"shard {shard.entry.name}: an id outside the vocabulary among tokens {start:,} to {stop:,}",
                hint="packline verify shows all differences",
            )
        text, begins = self._tokens.gather(tokens)
        data, limit = text.tobytes(), int(begins[stop - start])
        at = data.find(wanted)
        while 0 <= at < limit:
            token = int(np.searchsorted(begins, at, side="right")) - 1
            touched = int(np.searchsorted(begins, at + len(wanted))) - token
            yield start + token, at - int(begins[token]), touched
            at = data.find(wanted, at + 1)
