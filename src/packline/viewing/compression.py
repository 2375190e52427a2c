"""Compression by source: the tokenizer of a store compared with others by bytes per token.

    source ── documents evenly spread, their beginnings ──> text ──┬── the store's tokens, as stored
                                                                   └── tokens of each other tokenizer

Names of control tokens in a text are text, as in a build; control tokens themselves are left out.

Sampled, since encoding a whole store again would take as long as building it: a few hundred kilobytes per
source, the same for every tokenizer. Documents are chosen by their numbers alone, so the same store gives the
same sample.

Cost: about a second per megabyte and tokenizer, since texts are encoded by the reference implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.store.manifest import TOKENIZER
from packline.store.reader import StoreReader, shard_labels

DOCUMENTS = 64
"""Documents sampled per source, at most."""
SAMPLE_BYTES = 192 << 10
"""Bytes of text sampled per source; the document that reaches this size is the last."""
MOST_TOKENS = 8192
"""Tokens read from the beginning of a document, at most."""


class Compression(msgspec.Struct, frozen=True):
    """Token counts for a sample of one source."""

    source: str
    documents: int
    text_bytes: int
    tokens: tuple[int, ...]
    """Tokens with the store's tokenizer, then with each of the others; without boundary tokens."""

    def rates(self) -> list[float]:
        """Bytes per token with each tokenizer; 0 if there are no tokens.

        >>> Compression("web", 1, 12, (3, 4)).rates()
        [4.0, 3.0]
        """
        return [self.text_bytes / count if count else 0.0 for count in self.tokens]


def measure_compression(store: StoreReader, others: Sequence[Tokenizer], sources: int) -> list[Compression]:
    """Encode samples of the largest sources.

    Args:
        others: tokenizers to compare with the store's.
        sources: maximum number of sources, those with the most tokens first.

    Raises:
        TokenizerError: `tokenizers` cannot read one of the tokenizers.
        CorruptStore: a receipt is missing or damaged.
    """
    references = [
        msgspec.structs.replace(one, json=without_special_tokens(one)).reference() for one in others
    ]
    found = []
    for source, ranges in list(_largest(store).items())[:sources]:
        sample = list(_sample(store, ranges))
        texts = [text for parts in sample for text, _ in parts]
        tokens = [sum(count for parts in sample for _, count in parts)]
        for reference in references:
            encoded = reference.encode_batch_fast(texts, add_special_tokens=False)
            tokens.append(sum(len(one.ids) for one in encoded))
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        found.append(Compression(source, len(sample), size, tuple(tokens)))
    return found


def _largest(store: StoreReader) -> dict[str, list[range]]:
    """Document numbers of each source, the source with the most tokens first."""
    ranges: dict[str, list[range]] = {}
    tokens: dict[str, int] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, shard_labels(store), strict=True)):
        first = int(store.firsts[number])
        ranges.setdefault(origin.source, []).append(range(first, first + shard.documents))
        tokens[origin.source] = tokens.get(origin.source, 0) + shard.tokens
    return {source: ranges[source] for source in sorted(ranges, key=lambda name: (-tokens[name], name))}


def _sample(store: StoreReader, ranges: list[range]) -> Iterator[list[tuple[str, int]]]:
    """For each document, the texts between its control tokens with their numbers of store tokens."""
    control = np.array(sorted(load_tokenizer(str(store.path / TOKENIZER)).special_tokens.values()), np.int64)
    ends = np.cumsum([len(one) for one in ranges])
    whole, size = int(ends[-1]), 0
    before = 0 if store.manifest.tokenizer.bos_id is None else 1
    for turn in range(min(DOCUMENTS, whole)):
        place = (2 * turn + 1) * whole // (2 * min(DOCUMENTS, whole))
        number = int(np.searchsorted(ends, place, side="right"))
        document = ranges[number][place - (int(ends[number - 1]) if number else 0)]
        body = store.documents[document][before:-1][:MOST_TOKENS]
        parts = [
            (str(store.tokenizer.decode(part.tolist(), skip_special_tokens=False)), len(part))
            for part in _between(body, control)
        ]
        yield parts
        size += sum(len(text) for text, _ in parts)
        if size >= SAMPLE_BYTES:
            return


def _between(body: np.ndarray, control: np.ndarray) -> list[np.ndarray]:
    """Ranges of a document between its control tokens."""
    edges = np.flatnonzero(np.isin(body, control))
    parts = np.split(body, edges)
    return [part for part in (parts[0], *(one[1:] for one in parts[1:])) if len(part)]
