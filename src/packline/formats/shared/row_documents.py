"""Documents in rows that were not neighbours: where they begin, and which of them are incomplete.

    BOS a b END  BOS c d | e END  f g END | ...        rows; packing put e and f g where there was room
    whole        no end    no beginning   no beginning

The first and last document of a row may continue in another row. So may any other, if a packing fills rows
with pieces of long documents: a missing beginning is detected from the first token, not from the position.
"""

from __future__ import annotations

import numpy as np

from packline.formats.types import Edges


def cut_rows(
    tokens: np.ndarray, row_ends: np.ndarray, *, marker: int | None, edges: Edges, bos_id: int | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Cut rows into documents, at the ends of rows and at the markers in them.

    Args:
        tokens: integers `[T]`, of consecutive rows.
        row_ends: int64 `[R]`: tokens before the end of each row.
        marker: the token between documents; None if unknown.
        edges: boundary tokens of documents.
        bos_id: begin-of-document token if documents have both; None if unknown.

    Returns:
        Offsets of the documents, int64 `[D+1]`, and a mask of incomplete ones: see `cut_off`.

    >>> tokens = np.array([1, 5, 0, 1, 6, 7, 0, 8, 0])
    >>> offsets, unfinished = cut_rows(tokens, np.array([5, 9]), marker=0, edges="both", bos_id=1)
    >>> offsets.tolist(), unfinished.tolist()
    ([0, 3, 5, 7, 9], [False, True, True, True])
    """
    cuts = [np.zeros(1, np.int64), row_ends]
    if marker is not None and edges != "none":
        cuts.append(np.flatnonzero(tokens == marker) + (0 if edges == "bos" else 1))
    offsets = np.unique(np.concatenate(cuts)).astype(np.int64)
    return offsets, cut_off(tokens, offsets, marker=marker, edges=edges, bos_id=bos_id)


def cut_off(
    tokens: np.ndarray, offsets: np.ndarray, *, marker: int | None, edges: Edges, bos_id: int | None
) -> np.ndarray | None:
    """Mask of documents that lack a boundary token, bool `[D]`; None if documents have none.

    Unknown cases count as cut off: nothing is then expected of them.
    """
    if edges == "none":
        return None
    if marker is None:
        return np.ones(len(offsets) - 1, np.bool_)
    cut: np.ndarray = tokens[offsets[:-1] if edges == "bos" else offsets[1:] - 1] != marker
    if edges == "both":
        cut |= (tokens[offsets[:-1]] != bos_id) if bos_id is not None else True
    return cut
