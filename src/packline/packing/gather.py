"""Copies that fill the tokens of a batch, from spans in their places.

    Layout       the places of the batch that its spans fill, and those that are padding
    GatherPlan   ranges of files, and the ranges of the batch they are copied to

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number, and only its start has to be looked up: documents 7, 8, 9 are one copy,
documents 7, 30, 9 three (best fit, shuffled documents).

Copies of a remote store are cut where its pieces end. What a plan reads is brought at once, and a copy is
then a slice of one piece that is held. A plan of many rows can be cut into those of single batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from packline.errors import RecipeError
from packline.packing.packer import Spans
from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

if TYPE_CHECKING:
    from packline.store.pieces import Held, PieceRanges


@dataclass(frozen=True, slots=True)
class Layout:
    """Spans of B rows in their places.

    >>> spans = Spans(np.array([0, 2, 3]), np.array([7, 8, 9]), np.zeros(3, int), np.array([3, 2, 6]))
    >>> layout = Layout.of(spans, 6)
    >>> layout.begins.tolist(), layout.padding.tolist(), layout.spread(np.array([1, 2, 3]), 0).tolist()
    ([0, 3, 6], [1, 0], [1, 1, 1, 2, 2, 0, 3, 3, 3, 3, 3, 3])
    """

    spans: Spans
    seq_len: int
    rows: np.ndarray
    """int64 `[S]`: row of each span."""
    begins: np.ndarray
    """int64 `[S]`: place of a span's first token."""
    padding: np.ndarray
    """int64 `[B]`: places at the end of each row that no span fills."""
    padded: bool
    """True if there is any padding."""

    @classmethod
    def of(cls, spans: Spans, seq_len: int) -> Layout:
        """Lay spans out.

        Raises:
            RecipeError: a row is fuller than `seq_len`.
        """
        if len(spans) == 1:
            return cls._of_row(spans, seq_len)
        counts = spans.offsets[1:] - spans.offsets[:-1]
        # Methods, not functions, of NumPy here and below: half the cost for arrays this small.
        rows = np.arange(len(counts)).repeat(counts)
        ends = offsets_of(spans.lengths)
        padding = seq_len - (ends[spans.offsets[1:]] - ends[spans.offsets[:-1]])
        sizes = padding.tolist()
        if min(sizes, default=0) < 0:
            row = sizes.index(min(sizes))
            raise _too_full(row, seq_len - sizes[row], seq_len)
        begins = ends[:-1]
        padded = any(sizes)
        if padded:
            begins = begins + (padding.cumsum() - padding)[rows]
        return cls(spans, seq_len, rows, begins, padding, padded)

    @classmethod
    def _of_row(cls, spans: Spans, seq_len: int) -> Layout:
        """Do the same for one row, in a third of the calls."""
        ends = spans.lengths.cumsum()
        filled = int(ends[-1]) if len(ends) else 0
        if filled > seq_len:
            raise _too_full(0, filled, seq_len)
        rows = np.zeros(len(ends), np.int64)
        return cls(spans, seq_len, rows, ends - spans.lengths, np.array([seq_len - filled]), filled < seq_len)

    def __len__(self) -> int:
        return len(self.spans) * self.seq_len

    def pads(self) -> list[tuple[int, int]]:
        """Start and end of the padding of each row that has any."""
        if not self.padded:
            return []
        rows = np.flatnonzero(self.padding)
        ends = (rows + 1) * self.seq_len
        return list(zip((ends - self.padding[rows]).tolist(), ends.tolist(), strict=True))

    def spread(self, of_spans: np.ndarray, of_padding: np.ndarray | int) -> np.ndarray:
        """Repeat a value per span at all its places, and a value per row at all its padding.

        Args:
            of_spans: values per span, `[S]`, from -1 to L.
            of_padding: values per row, `[B]`, or one for all rows, from -1 to L.

        Returns:
            int16 `[B*L]`, or int32 where rows are too long for it: half the memory takes half the time.
        """
        kind = np.int16 if self.seq_len <= np.iinfo(np.int16).max else np.int32
        if not self.padded:
            return of_spans.astype(kind).repeat(self.spans.lengths)
        # One piece per span, and after the spans of each row one for its padding, which may be empty.
        spans = np.arange(len(self.rows)) + self.rows
        padding = self.spans.offsets[1:] + np.arange(len(self.padding))
        values = np.empty(len(spans) + len(padding), kind)
        lengths = np.empty(len(values), np.int64)
        values[spans], values[padding] = of_spans, of_padding
        lengths[spans], lengths[padding] = self.spans.lengths, self.padding
        return values.repeat(lengths)


def _too_full(row: int, tokens: int, seq_len: int) -> RecipeError:
    return RecipeError(
        f"row {row} of the batch has {tokens:,} tokens: expected at most seq_len={seq_len:,}",
        hint="give the seq_len that the spans were made for",
    )


FEW = 64
"""Spans of a single row up to which they are handled one by one."""


@dataclass(frozen=True, slots=True)
class GatherPlan:
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
    pieces: PieceRanges | None = None
    """Of a remote store, once its copies are cut: where they are in its pieces."""

    @classmethod
    def of(cls, store: StoreReader, layout: Layout) -> GatherPlan:
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
    def _of_few(cls, store: StoreReader, layout: Layout) -> GatherPlan:
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

    def in_pieces(self) -> GatherPlan:
        """The same copies of a remote store, cut where its pieces end.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        from packline.store.remote_shard import cut_ranges

        cut = cut_ranges(self.shards, self.sources, self.lengths)
        copies = cut.ranges.tolist()
        if len(copies) == len(self.shards):
            return replace(self, pieces=cut.pieces)
        targets = (
            np.array(self.targets, np.int64)[cut.ranges] + cut.starts - np.array(self.sources)[cut.ranges]
        )
        return GatherPlan(
            self.store,
            [self.shards[copy] for copy in copies],
            [self.firsts[copy] for copy in copies],
            cut.starts.tolist(),
            targets.tolist(),
            cut.lengths.tolist(),
            self.rows[cut.ranges],
            cut.pieces,
        )

    def part(self, first: int, last: int, seq_len: int) -> GatherPlan:
        """Copies of rows `first` to `last`, for a batch of these alone."""
        start, stop = self.rows.searchsorted([first, last]).tolist()
        base = first * seq_len
        return GatherPlan(
            self.store,
            self.shards[start:stop],
            self.firsts[start:stop],
            self.sources[start:stop],
            [target - base for target in self.targets[start:stop]],
            self.lengths[start:stop],
            self.rows[start:stop] - first,
            None if self.pieces is None else self.pieces.part(start, stop),
        )

    def bring(self) -> Held:
        """Bring what will be copied of a remote store, all at once, and the token after each copy.

        Returns:
            The pieces, by number; valid as long as the result exists.
        """
        assert self.store.mirror is not None
        return self.store.mirror.pieces.bring(self.needed())

    def needed(self) -> list[int]:
        """Pieces of copies that are cut, and of the token after each, ascending."""
        return [] if self.pieces is None else np.unique(self.pieces.needed).tolist()

    def copy_tokens(self, into: np.ndarray, held: Held | None = None) -> None:
        """Copy the tokens to their places in the batch, `[B*L]`; other places are left unchanged.

        Args:
            into: tokens of the batch.
            held: what `bring` returned, for copies that are cut.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
        if held is not None and self.pieces is not None:
            for piece, begin, target, length in zip(
                self.pieces.numbers, self.pieces.begins, self.targets, self.lengths, strict=True
            ):
                into[target : target + length] = held[piece][begin : begin + length]
            return
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            tokens = shard.token_ranges[source : source + length]
            # NumPy returns fewer values beyond the end of an array, and counts from the end below its start.
            if len(tokens) != length or source < 0:
                raise wrong_place(shard, source, source + length)
            into[target : target + length] = tokens

    def copy_loss(self, into: np.ndarray) -> None:
        """Copy the bytes of `NAME.loss` in the same way, ones where a shard has none."""
        for shard, source, target, length in zip(
            self.shards, self.sources, self.targets, self.lengths, strict=True
        ):
            loss = shard.loss_ranges
            into[target : target + length] = 1 if loss is None else loss[source : source + length]

    def check_ids(self) -> None:
        """Search all tokens for the first one outside of the vocabulary.

        Raises:
            CorruptStore: there is one.
        """
        vocabulary = self.store.manifest.tokenizer.vocab_size
        for shard, source, length in zip(self.shards, self.sources, self.lengths, strict=True):
            tokens = shard.token_ranges[source : source + length]
            wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary))
            if len(wrong):
                raise wrong_id(shard, vocabulary, source + int(wrong[0]))
