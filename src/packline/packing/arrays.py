"""Arrays of a batch, filled from spans: tokens, targets, positions, segments, loss masks.

    spans of a row   document 7 whole (3 tokens) | document 8, first 2 of more | padding
    tokens             a    b    c                 d    e                        pad
    targets            b    c -100                 e    f                       -100
    position_ids       0    1    2                 0    1                          0
    segment_ids        0    0    0                 1    1                         -1

Tokens are copied in ranges as long as the files allow (`copies`), targets are the tokens shifted by one place
and corrected where spans end (`targets`), positions and segments are repeated from one value per span.

Cost: 32 rows of 4,096 in stored order, the four arrays of `FIELDS`, 75 spans from 25 shards: 170 microseconds
on one core with everything in its caches (tokens 60, targets 40, positions 30, segments 20, layout 7); four
plain copies take 90. One more copy for every span that does not continue the one before it: 274 spans of
single documents take 390. Slower alternatives measured: slices of a template or `concatenate` of them for
positions and segments (beyond a hundred spans), sums over ones, int32 throughout. Checking ids against the
vocabulary is 6 of the 60. Memory: the arrays, and temporarily half of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from packline.errors import RecipeError
from packline.packing.copies import Copies
from packline.packing.layout import Layout
from packline.packing.spans import Spans
from packline.packing.targets import IGNORED, fill_targets
from packline.store.reader import StoreReader

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
        copies = Copies.of(store, layout)
        _fill_tokens(arrays["tokens"], layout, copies, pad_id)
        if "targets" in arrays:
            fill_targets(arrays["targets"], layout, copies, arrays["tokens"], boundary_loss)
        if "loss_mask" in arrays:
            np.not_equal(arrays["targets"], IGNORED, out=arrays["loss_mask"].view(np.bool_))
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


def _fill_tokens(tokens: np.ndarray, layout: Layout, copies: Copies, pad_id: int) -> None:
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
