"""Arrays of a batch, filled from spans: tokens, targets, positions, segments, loss masks.

    spans of a row   document 7 whole (3 tokens) | document 8, first 2 of more | padding
    tokens             a    b    c                 d    e                        pad
    targets            b    c -100                 e    f                       -100
    position_ids       0    1    2                 0    1                          0
    segment_ids        0    0    0                 1    1                         -1

    Layout       the places of the batch that its spans fill, and those that are padding
    GatherPlan   ranges of files, and the ranges of the batch they are copied to
    RowEnds      the token after the last token of each row, which the batch does not hold

Documents are adjacent in a shard. So documents that follow one another in a row as they do in the store are
one copy, whatever their number, and only its start has to be looked up: documents 7, 8, 9 are one copy,
documents 7, 30, 9 three (best fit, shuffled documents). Targets are the tokens shifted by one place and
corrected at the last token of every document and of every row: where a row was cut, the next token of the
document is read from the file, so that no target is lost. Positions and segments are repeated from one value
per span.

Cost: 32 rows of 4,096 in stored order, the four arrays of `FIELDS`, 75 spans from 25 shards: 170 microseconds
on one core with everything in its caches (tokens 60, targets 40, positions 30, segments 20, layout 7); four
plain copies take 90. One more copy for every span that does not continue the one before it: 274 spans of
single documents take 390. If shards have `NAME.loss`, its bytes are read and shifted like the targets, which
costs as much again. Slower alternatives measured: slices of a template or `concatenate` of them for positions
and segments (beyond a hundred spans), sums over ones, int32 throughout. Checking ids against the vocabulary
is 6 of the 60. Memory: the arrays, and temporarily half of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from packline.errors import RecipeError
from packline.packing.packer import Spans
from packline.ragged import offsets_of
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place


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

    def bring(self) -> object:
        """Bring what will be copied of a remote store, all at once; valid as long as the result exists."""
        from packline.store.remote_shard import bring_tokens

        return bring_tokens(self.shards, self.sources, self.lengths)

    def copy_tokens(self, into: np.ndarray) -> None:
        """Copy the tokens to their places in the batch, `[B*L]`; other places are left unchanged.

        Raises:
            CorruptStore: an index points outside of its shard.
        """
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


IGNORED = -100
"""Target that torch's losses ignore by default."""


def fill_targets(
    targets: np.ndarray, layout: Layout, copies: GatherPlan, tokens: np.ndarray, boundary_loss: bool
) -> None:
    """Fill in the targets of a batch.

    Args:
        targets: targets to fill, `[B*L]`.
        layout: layout of the batch.
        copies: copies that its tokens came from.
        tokens: tokens of the batch, `[B*L]`.
        boundary_loss: True if the end of a document predicts the beginning of the next.

    Raises:
        CorruptStore: a token after the end of a row is outside of its file or of the vocabulary.
    """
    ends = RowEnds.of(layout, copies, boundary_loss)
    pads = layout.pads()
    _move(tokens, targets)
    if not boundary_loss:
        targets[layout.begins + layout.spans.lengths - 1] = IGNORED
    targets[ends.places] = ends.tokens(copies.store)
    for begin, end in pads:
        targets[begin:end] = IGNORED
    if copies.store.has_loss:
        trained = np.empty(len(tokens), np.uint8)
        copies.copy_loss(trained)
        for begin, end in pads:
            trained[begin:end] = 0
        _move(trained, trained)
        trained[ends.places] = ends.loss()
        targets[trained == 0] = IGNORED


def _move(values: np.ndarray, into: np.ndarray) -> None:
    """Shift every value to the place before it, with 0 at the last place; `into` may be `values` itself."""
    into[:-1] = values[1:]
    into[-1:] = 0


@dataclass(frozen=True, slots=True)
class RowEnds:
    """The token after the last token of each row, which the batch does not hold."""

    places: np.ndarray
    """int64 `[N]`: last token of each row that has any."""
    next: list[tuple[Shard, int] | None]
    """Shard and place of the token after each; None if its document ends and no other one follows."""

    @classmethod
    def of(cls, layout: Layout, copies: GatherPlan, boundary_loss: bool) -> RowEnds:
        """Look up the documents that continue, and the starts of the following ones."""
        spans, store = layout.spans, copies.store
        rows = (spans.offsets[1:] > spans.offsets[:-1]).nonzero()[0]
        final = spans.offsets[1:][rows] - 1
        documents = spans.documents[final].tolist()
        stops = (spans.starts[final] + spans.lengths[final]).tolist()
        followers = [-1] * len(rows)
        if boundary_loss and spans.following is not None:
            followers = spans.following[rows].tolist()
        # The last copy of a row ends where its last span does.
        last = (copies.rows.searchsorted(rows, "right") - 1).tolist()
        found: list[tuple[Shard, int] | None] = []
        for copy, document, stop, follower in zip(last, documents, stops, followers, strict=True):
            shard = copies.shards[copy]
            if stop < shard.length_of(document - copies.firsts[copy]):
                found.append((shard, copies.sources[copy] + copies.lengths[copy]))
            elif follower >= 0:
                shard, inner = store.locate(follower)
                found.append((shard, shard.offset_of(inner) // store.dtype.itemsize))
            else:
                found.append(None)
        return cls(layout.begins[final] + spans.lengths[final] - 1, found)

    def tokens(self, store: StoreReader) -> list[int]:
        """Tokens after these, -100 where there is none.

        Raises:
            CorruptStore: a token is outside of the file or of the vocabulary.
        """
        vocabulary, found = store.manifest.tokenizer.vocab_size, []
        for after in self.next:
            if after is None:
                found.append(IGNORED)
                continue
            shard, place = after
            if not 0 <= place < len(shard.token_ranges):
                raise wrong_place(shard, place, place + 1)
            token = shard.token_ranges.item(place)
            if not 0 <= token < vocabulary:
                raise wrong_id(shard, vocabulary, place)
            found.append(token)
        return found

    def loss(self) -> list[int]:
        """Bytes of `NAME.loss` for these tokens, 1 where a shard has none."""
        return [
            1 if after is None or after[0].loss_ranges is None else after[0].loss_ranges.item(after[1])
            for after in self.next
        ]


FIELDS = ("tokens", "targets", "position_ids", "segment_ids")
ALL_FIELDS = (*FIELDS, "loss_mask")


def fill(
    store: StoreReader,
    spans: Spans,
    seq_len: int,
    *,
    fields: Sequence[str] = FIELDS,
    pad_id: int,
    boundary_loss: bool = False,
    dtype: npt.DTypeLike = np.int32,
) -> dict[str, np.ndarray]:
    """Fill the arrays of a batch, newly allocated at every call.

    Args:
        store: store that holds the documents.
        spans: spans of B rows; the places they leave free at the end of a row are padding. Only the last span
            of a row may leave its document unfinished, which holds for every packing.
        seq_len: tokens per row, L.
        fields: arrays to fill, out of `ALL_FIELDS`.
        pad_id: token at padding.
        boundary_loss: True if the last token of a document has the first of the next as its target, also
            where that is in the next row (`spans.following`).
        dtype: dtype of tokens and targets, int32 or int64.

    Returns:
        Arrays by name, each `[B, L]`: `tokens` and `targets` of `dtype`, `position_ids` and `segment_ids`
        int32, `loss_mask` uint8. Targets are -100 at padding, at the end of a document (but see
        `boundary_loss`) and where the target is a token that is not trained on (`NAME.loss`); `loss_mask` is
        1 elsewhere. Positions start at 0 in every span, also in one that continues a document. Segments are
        numbered within the row; -1 is padding.

    Raises:
        RecipeError: an unknown field or dtype, or a row fuller than `seq_len`.
        CorruptStore: an id outside of the vocabulary, or an index that points outside of its shard.
    """
    layout = Layout.of(spans, seq_len)
    arrays = _allocate(_kinds(tuple(fields), np.dtype(dtype)), len(layout))
    if "tokens" in arrays:
        copies = GatherPlan.of(store, layout)
        held = copies.bring() if store.mirror is not None else None
        _fill_tokens(arrays["tokens"], layout, copies, pad_id)
        if "targets" in arrays:
            fill_targets(arrays["targets"], layout, copies, arrays["tokens"], boundary_loss)
        if "loss_mask" in arrays:
            np.not_equal(arrays["targets"], IGNORED, out=arrays["loss_mask"].view(np.bool_))
        del held
    if "position_ids" in arrays:
        _fill_positions(arrays["position_ids"], layout)
    if "segment_ids" in arrays:
        _fill_segments(arrays["segment_ids"], layout)
    return {name: arrays[name].reshape(len(spans), seq_len) for name in fields}


@cache
def _kinds(fields: tuple[str, ...], dtype: np.dtype[Any]) -> dict[str, np.dtype[Any]]:
    """Dtypes of these fields and of the fields they are computed from."""
    if unknown := sorted(set(fields).difference(ALL_FIELDS)):
        raise RecipeError(f"no field {', '.join(unknown)}: expected some of {', '.join(ALL_FIELDS)}")
    if dtype not in (np.int32, np.int64):
        raise RecipeError(
            f"tokens cannot be {dtype.name}: expected int32 or int64",
            hint="targets hold -100, so their type has a sign",
        )
    needed = set(fields)
    if "loss_mask" in needed:
        needed.add("targets")
    if "targets" in needed:
        needed.add("tokens")
    int32: np.dtype[Any] = np.dtype(np.int32)
    kinds = dict.fromkeys(ALL_FIELDS, int32)
    kinds |= {"tokens": dtype, "targets": dtype, "loss_mask": np.dtype(np.uint8)}
    return {name: kind for name, kind in kinds.items() if name in needed}


def _allocate(kinds: dict[str, np.dtype[Any]], count: int) -> dict[str, np.ndarray]:
    """Allocate arrays `[count]`, adjacent in one block of memory.

    One block because of malloc: it returns several arrays that are freed together to the kernel, and then
    every page of the next batch costs a page fault, five times as much in total as filling it.
    """
    block = np.empty(count * sum(kind.itemsize for kind in kinds.values()), np.uint8)
    arrays, begin = {}, 0
    for name, kind in kinds.items():
        end = begin + count * kind.itemsize
        arrays[name], begin = block[begin:end].view(kind), end
    return arrays


def _fill_tokens(tokens: np.ndarray, layout: Layout, copies: GatherPlan, pad_id: int) -> None:
    """Fill in tokens and padding, `[B*L]`, and check that every token is in the vocabulary.

    Raises:
        CorruptStore: a token is not in the vocabulary.
    """
    copies.copy_tokens(tokens)
    for begin, end in layout.pads():
        tokens[begin:end] = pad_id
    # Viewed as unsigned, negative ids are the largest of all: one pass finds both kinds of wrong id.
    greatest = int(tokens.view(f"u{tokens.itemsize}").max(initial=0))
    if greatest >= copies.store.manifest.tokenizer.vocab_size:
        # Or it is the padding, whose id may be any number.
        copies.check_ids()


def _fill_positions(positions: np.ndarray, layout: Layout) -> None:
    """Fill in the offset within the span, int32 `[B*L]`."""
    shape = (len(layout.spans), layout.seq_len)
    begins = layout.spread(layout.begins % layout.seq_len, layout.seq_len - layout.padding)
    columns = np.arange(layout.seq_len, dtype=begins.dtype)
    np.subtract(columns, begins.reshape(shape), out=begins.reshape(shape))
    positions[:] = begins


def _fill_segments(segments: np.ndarray, layout: Layout) -> None:
    """Fill in the number of the span within its row, int32 `[B*L]`."""
    first = layout.spans.offsets[layout.rows]
    segments[:] = layout.spread(np.arange(len(first)) - first, -1)
