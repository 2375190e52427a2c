"""Rows that were not neighbours, read one by one: each is cut at its markers, and ends with the row.

    a b END c | d e f g | h END END END       rows of L tokens
    a b END, c, d e f g, h END                documents; c and d e f g have no end (`unfinished`)

Records do not declare their padding. If padding is the end-of-document token, as it is by default, all but
the first of these tokens at the end of a row are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from packline.formats.importing.mapped import BLOCK_TOKENS, UNIT_TOKENS, ScannedForeign, TokenSource
from packline.formats.shared.row_documents import cut_rows
from packline.formats.types import Block, Edges, ForeignFile, ForeignUnit
from packline.store.report import Findings


class SeparateRows(ScannedForeign):
    """Rows of equal length. A unit's `start` and `stop` are tokens of its file, at ends of rows.

    Args:
        width: tokens per row.
        bos_id: begin-of-document token of the rows' store, if known. Other arguments as for `ScannedForeign`.
    """

    def __init__(
        self,
        files: Sequence[ForeignFile],
        sources: Sequence[TokenSource],
        width: int,
        *,
        marker: int | None,
        edges: Edges,
        findings: Findings,
        bos_id: int | None = None,
    ) -> None:
        self._width, self._bos_id = width, bos_id
        whole: dict[str, Any] = {"marker": marker, "edges": edges, "findings": findings}
        super().__init__(files, sources, unit_tokens=max(UNIT_TOKENS // width, 1) * width, **whole)

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        source, step = self._sources[unit.file], max(BLOCK_TOKENS // self._width, 1) * self._width
        for start in range(unit.start, unit.stop, step):
            tokens, _ = source.read(start, min(start + step, unit.stop))
            yield self._block(source, start, tokens.reshape(-1, self._width))

    def _block(self, source: TokenSource, start: int, rows: np.ndarray) -> Block:
        lengths = self._lengths(rows)
        places = np.flatnonzero(np.arange(self._width) < lengths[:, None])
        tokens = rows.reshape(-1)[places]
        offsets, unfinished = cut_rows(
            tokens, np.cumsum(lengths), marker=self.marker, edges=self.edges, bos_id=self._bos_id
        )
        positions = source.positions(start + places[offsets[:-1]])
        return Block(tokens, offsets, positions=positions, unfinished=unfinished)

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens per row up to the first of the markers at its end, int64 `[n]`."""
        width = self._width
        if self.marker is None or self.edges not in ("eod", "both"):
            return np.full(len(rows), width, np.int64)
        other = rows[:, ::-1] != self.marker
        run = np.where(other.any(axis=1), other.argmax(axis=1), width)
        return width - np.maximum(run - 1, 0)
