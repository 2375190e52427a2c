"""Baked rows, read as the documents that they were packed from.

    row 7     document 3, tokens 0 to 5   | document 9, whole
    row 2     document 3, tokens 5 to 8                            -> document 3, tokens 0 to 8; document 9

Each span of a row names its document, so documents become whole again in whatever order rows were baked, each
once, even if its rows occur repeatedly. Tokens that are in no row are missing: if the spans of a document do
not join, each range becomes a separate document marked as unfinished.

Cost: the spans of all rows in memory, 48 bytes each; and one copy per span.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from packline.formats.baked_rows import BAKED, ENDINGS, SPAN_COLUMNS, BakedFacts, map_file, read_spans
from packline.formats.format import Foreign
from packline.formats.types import Block, ForeignFile, ForeignUnit
from packline.ragged import offsets_of

if TYPE_CHECKING:
    from packline.formats.baked_rows import Entries, Mapped

UNIT_TOKENS = 1 << 24
BLOCK_TOKENS = 1 << 20


class BakedForeign(Foreign):
    """Documents of intact baked rows."""

    def __init__(self, folder: Path, facts: BakedFacts, entries: Entries) -> None:
        self.edges = "eod" if facts.bos_id is None else "both"
        self.dtype = np.dtype(facts.dtype).newbyteorder("<")
        self.facts = {"vocab_size": facts.vocab_size, "eod_id": facts.eod_id, "bos_id": facts.bos_id}
        self.files = _files(folder, facts)
        self.has_loss = facts.has_loss
        self._seq_len, self._eod_id = facts.seq_len, facts.eod_id
        self._maps: list[Mapped] = [map_file(folder, facts, file) for file in facts.files]
        self._firsts = offsets_of([file.rows for file in facts.files])
        self._stretches(folder, facts, entries)
        self.documents, self.tokens = len(self._offsets) - 1, int(self._ends[-1]) if len(self._ends) else 0
        self.units = list(self._units())

    def _stretches(self, folder: Path, facts: BakedFacts, entries: Entries) -> None:
        """Sort all spans by document, and find those that continue in the next one."""
        read = []
        for number, file in enumerate(facts.files):
            spans = read_spans(folder, facts, file, int(self._firsts[number]), entries)
            lengths, rows = spans["length"], spans["row"]
            before = np.cumsum(lengths) - lengths
            first = np.searchsorted(rows, rows)  # first span of each span's row
            columns = before - before[first] if len(rows) else before
            spans["row"] = rows + self._firsts[number]
            read.append(np.stack([*(spans[name] for name in SPAN_COLUMNS), columns]))
        row, store, document, start, length, column = np.concatenate(
            [*read, np.empty((6, 0), np.int64)], axis=1
        )
        order = np.lexsort((row, start, document, store))
        keys = np.stack([store, document, start])[:, order]
        again = np.zeros(len(order), np.bool_)
        again[1:] = (keys[:, 1:] == keys[:, :-1]).all(axis=0)  # already seen in an earlier epoch
        order = order[~again]
        self._rows, self._columns, self._lengths = row[order], column[order], length[order]
        self._starts = start[order]
        joins = np.zeros(len(order), np.bool_)
        same = (store[order][1:] == store[order][:-1]) & (document[order][1:] == document[order][:-1])
        joins[1:] = same & (self._starts[1:] == self._starts[:-1] + self._lengths[:-1])
        self._joins = joins
        self._offsets = np.append(np.flatnonzero(~joins), len(order))
        """int64 `[D+1]`: first span of each document."""
        sums = np.cumsum(self._lengths)
        self._ends = sums[self._offsets[1:] - 1] if len(order) else np.empty(0, np.int64)
        """int64 `[D]`: cumulative tokens up to the end of each document."""

    def _units(self) -> Iterator[ForeignUnit]:
        whole = tuple((number, 0, file.bytes) for number, file in enumerate(self.files))
        start = 0
        while start < len(self._ends):
            before = int(self._ends[start - 1]) if start else 0
            stop = max(int(self._ends.searchsorted(before + UNIT_TOKENS, "right")), start + 1)
            first_row = self._rows[self._offsets[start]]
            file = int(self._firsts.searchsorted(first_row, "right")) - 1
            # Any file may hold tokens of any unit: the first unit covers all bytes.
            yield ForeignUnit("train", 1 + file * len(ENDINGS), start, stop, () if start else whole)
            start = stop

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        start = unit.start
        while start < unit.stop:
            before = int(self._ends[start - 1]) if start else 0
            last = int(self._ends[: unit.stop].searchsorted(before + BLOCK_TOKENS, "right"))
            stop = max(last, start + 1)
            yield self._block(start, stop, before)
            start = stop

    def _block(self, start: int, stop: int, before: int) -> Block:
        offsets = np.append(0, self._ends[start:stop] - before)
        tokens = np.empty(int(offsets[-1]), self.dtype)
        loss = np.empty(len(tokens), np.uint8) if self.has_loss else None
        low, high = int(self._offsets[start]), int(self._offsets[stop])
        rows = self._rows[low:high]
        files = self._firsts.searchsorted(rows, "right") - 1
        inner = rows - self._firsts[files]
        place, lead = 0, np.uint8(0)
        for file, row, column, length, joins in zip(
            files.tolist(),
            inner.tolist(),
            self._columns[low:high].tolist(),
            self._lengths[low:high].tolist(),
            self._joins[low:high].tolist(),
            strict=True,
        ):
            mapped = self._maps[file]
            tokens[place : place + length] = mapped.tokens[row, column : column + length]
            if loss is not None:
                loss[place : place + length] = mapped.loss[row, column : column + length]
                if joins:
                    loss[place] = lead  # only the row with the previous token shows if it is a target
                lead = mapped.loss[row, column + length]
            place += length
        begins = self._starts[self._offsets[start:stop]]
        unfinished = (begins != 0) | (tokens[offsets[1:] - 1] != self._eod_id)
        positions = self._rows[self._offsets[start:stop]]
        return Block(tokens, offsets, loss, positions, unfinished=unfinished if unfinished.any() else None)


def _files(folder: Path, facts: BakedFacts) -> list[ForeignFile]:
    names = [BAKED, *(f"{file.name}{ending}" for file in facts.files for ending in ENDINGS)]
    return [ForeignFile(name, str(folder / name), (folder / name).stat().st_size) for name in names]
