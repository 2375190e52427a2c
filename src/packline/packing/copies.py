"""Copies: ranges of files and the ranges of a batch they are copied to.

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number, and only its start has to be looked up:

    row of documents 7, 8, 9      one copy from the start of document 7
    row of documents 7, 30, 9     three (best fit, shuffled documents)

Cost: one microsecond per copy, in addition to the copying itself. Reads one index entry per copy and the
requested tokens, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from packline.packing.layout import Layout
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

FEW = 64
"""Spans of a single row up to which they are handled one by one."""


@dataclass(frozen=True, slots=True)
class Copies:
    """N copied ranges, in the order of the batch. No copy holds tokens of two rows."""

    store: StoreReader
    shards: list[Shard]
    """Shard that each copy is from."""
    firsts: list[int]
    """Number in the store of that shard's first document."""
    sources: list[int]
    """First token of each copy in its shard."""
    targets: list[int]
    """First place of each copy in the batch."""
    lengths: list[int]
    """Tokens."""
    rows: np.ndarray
    """int64 `[N]`: row of the batch."""

    @classmethod
    def of(cls, store: StoreReader, layout: Layout) -> Copies:
        """Join the spans that are adjacent in the store."""
        if len(layout.spans) == 1 and len(layout.rows) <= FEW:
            return cls._of_few(store, layout)
        documents, lengths, rows = layout.spans.documents, layout.spans.lengths, layout.rows
        numbers = store.firsts.searchsorted(documents, "right") - 1
        # Within a row a document that is followed by another is at its end: see `fill`.
        apart = np.ones(len(documents), np.bool_)
        np.not_equal(documents[1:] - documents[:-1], 1, out=apart[1:])
        apart[1:] |= layout.spans.starts[1:] != 0
        apart[1:] |= rows[1:] != rows[:-1]
        apart[1:] |= numbers[1:] != numbers[:-1]
        first = apart.nonzero()[0]
        numbers = numbers[first]
        shards = [store.shards[number] for number in numbers.tolist()]
        firsts = store.firsts[numbers]
        inner = (documents[first] - firsts).tolist()
        offsets = [shard.offset_of(place) for shard, place in zip(shards, inner, strict=True)]
        sources = np.array(offsets, np.int64) // store.dtype.itemsize + layout.spans.starts[first]
        return cls(
            store,
            shards,
            firsts.tolist(),
            sources.tolist(),
            layout.begins[first].tolist(),
            (np.add.reduceat(lengths, first) if len(first) else lengths).tolist(),
            rows[first],
        )

    @classmethod
    def _of_few(cls, store: StoreReader, layout: Layout) -> Copies:
        """Do the same for one row of few spans, one by one: NumPy is slower for a few numbers."""
        spans = layout.spans
        documents, starts, lengths = spans.documents.tolist(), spans.starts.tolist(), spans.lengths.tolist()
        copies = cls(store, [], [], [], [], [], layout.rows[:0])
        place, itemsize = 0, store.dtype.itemsize
        last, beyond = -1, 0  # the previous document, and the first one of the next shard
        for document, start, length in zip(documents, starts, lengths, strict=True):
            if document == last + 1 and not start and document < beyond and copies.lengths:
                copies.lengths[-1] += length
            else:
                shard, inner = store.locate(document)
                first = document - inner
                beyond = first + len(shard)
                copies.shards.append(shard)
                copies.firsts.append(first)
                copies.sources.append(shard.offset_of(inner) // itemsize + start)
                copies.targets.append(place)
                copies.lengths.append(length)
            last, place = document, place + length
        return replace(copies, rows=layout.rows[: len(copies.lengths)])

    def copy_tokens(self, into: np.ndarray) -> None:
        """Copy the tokens to their places in the batch, `[B*L]`; other places are left unchanged.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            tokens = shard.tokens[source : source + length]
            # NumPy returns fewer values beyond the end of an array, and counts from the end below its start.
            if len(tokens) != length or source < 0:
                raise wrong_place(shard, source, source + length)
            into[target : target + length] = tokens

    def copy_loss(self, into: np.ndarray) -> None:
        """Copy the bytes of `NAME.loss` in the same way, ones where a shard has none."""
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            loss = shard.loss
            into[target : target + length] = 1 if loss is None else loss[source : source + length]

    def check_ids(self) -> None:
        """Search all tokens for the first one outside of the vocabulary.

        Raises:
            CorruptStore: there is one.
        """
        vocabulary = self.store.manifest.tokenizer.vocab_size
        for shard, source, length in zip(self.shards, self.sources, self.lengths, strict=True):
            tokens = shard.tokens[source : source + length]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, source + int(wrong[0]))
