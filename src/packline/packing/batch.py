"""Arrays of a batch, filled from spans: tokens, targets, positions, segments, loss masks.

    spans of a row   document 7 whole (3 tokens) | document 8, first 2 of more | padding
    tokens             a    b    c                 d    e                        pad
    targets            b    c -100                 e    f                       -100
    position_ids       0    1    2                 0    1                          0
    segment_ids        0    0    0                 1    1                         -1

Tokens are copied as `packing.gather` plans. Targets are the tokens shifted by one place and corrected at the
last token of every document and of every row: where a row was cut, the next token of the document is read
from the file (`RowEnds`), so that no target is lost. Positions and segments are repeated from one value per
span.

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
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packline.errors import RecipeError
from packline.packing.gather import GatherPlan, Layout
from packline.packing.packer import Spans
from packline.store.reader import StoreReader
from packline.store.shard import Shard, wrong_id, wrong_place

if TYPE_CHECKING:
    from packline.store.pieces import Held

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
    plan: GatherPlan | None = None,
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
        plan: copies of these spans, if they are known.

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
        copies = GatherPlan.of(store, layout) if plan is None else plan
        held = None
        if store.mirror is not None:
            copies = copies if copies.pieces is not None else copies.in_pieces()
            held = copies.bring()
        _fill_tokens(arrays["tokens"], layout, copies, pad_id, held)
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


def _fill_tokens(
    tokens: np.ndarray, layout: Layout, copies: GatherPlan, pad_id: int, held: Held | None
) -> None:
    """Fill in tokens and padding, `[B*L]`, and check that every token is in the vocabulary.

    Raises:
        CorruptStore: a token is not in the vocabulary.
    """
    copies.copy_tokens(tokens, held)
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
