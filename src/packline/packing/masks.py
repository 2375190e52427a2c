"""Masks: which places may attend to which, so that documents in the same row do not see each other.

A row's `segment_ids` contain all of it; the others are the forms that attention kernels take:

    segment_ids      0 0 0 1 1 -1        padding (-1) is a separate segment that attends to itself only,
    cu_seqlens       0     3   5  6      so that no softmax is over nothing
    attention_mask   row i, column j: same segment and j <= i

Cost: `cu_seqlens` is one pass over `[B, L]`. `attention_mask` holds `B*L*L` bytes, 16 MB per row of 4,096:
for short rows, tests and machines without a variable-length kernel. `packline.torch` makes the torch forms on
the device that uses them. Does not handle heads, scores or windows.
"""

from __future__ import annotations

import numpy as np

from packline.errors import RecipeError

MOST_TOKENS = np.iinfo(np.int32).max
"""Kernels take `cu_seqlens` as int32, so a batch holds at most this many tokens."""


def cu_seqlens(segment_ids: np.ndarray) -> np.ndarray:
    """Start of each segment in the flattened batch, and the end of the last one.

    Args:
        segment_ids: integers `[B, L]` or `[L]`; a segment is a run of equal ids within a row.

    Returns:
        int32 `[N+1]` of N segments, including the padding of each row; the last one is `B*L`.

    Raises:
        RecipeError: more tokens than an int32 can count, or neither a row nor a batch.

    >>> cu_seqlens(np.array([[0, 0, 0, 1, 1, -1], [0, 0, 0, 0, 0, 0]])).tolist()
    [0, 3, 5, 6, 12]
    """
    rows = _rows(segment_ids)
    _check_count(rows.size)
    if not rows.size:
        return np.zeros(1, np.int32)
    begins = np.ones(rows.shape, np.bool_)
    np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    return np.append(np.flatnonzero(begins), rows.size).astype(np.int32)


def max_seqlen(boundaries: np.ndarray) -> int:
    """Length of the longest segment, padding included.

    Args:
        boundaries: result of `cu_seqlens`, `[N+1]`.

    >>> max_seqlen(np.array([0, 3, 5, 6, 12]))
    6
    """
    return int(np.diff(boundaries).max(initial=0))


def attention_mask(segment_ids: np.ndarray) -> np.ndarray:
    """Causal attention within segments, as a mask for every pair of places.

    Args:
        segment_ids: integers `[B, L]` or `[L]`; the places of an id are contiguous in a row.

    Returns:
        bool `[B, 1, L, L]`: True where the place of the third axis sees the place of the fourth. The axis of
        size 1 is for all heads. Every place sees itself, so no row of the mask is empty.

    Raises:
        RecipeError: neither a row nor a batch.

    >>> attention_mask(np.array([0, 0, 1, -1]))[0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 1]])
    """
    rows = _rows(segment_ids)
    same = rows[:, None, :, None] == rows[:, None, None, :]
    length = rows.shape[1]
    same &= np.tri(length, dtype=np.bool_)
    return same


def _rows(segment_ids: np.ndarray) -> np.ndarray:
    """Segment ids as `[B, L]`."""
    found = np.atleast_2d(segment_ids)
    if found.ndim != 2:
        raise RecipeError(
            f"segment_ids has the shape {list(found.shape)}: expected [L] or [B, L]",
            hint="flatten the dimensions of micro-batches first",
        )
    return found


def _check_count(tokens: int) -> None:
    if tokens > MOST_TOKENS:
        raise RecipeError(
            f"a batch of {tokens:,} tokens: cu_seqlens counts at most {MOST_TOKENS:,} (int32)",
            hint="take the batch in parts",
        )
