"""Packed rows of a saved data set, read back as documents.

    seq_lengths    3 2 | 4 1                pieces of a row; they add up to its tokens
    joined         all rows are one stream, cut at a marker (`mapped`)
    sequences      every piece is a document; a row without seq_lengths is one piece

Cost: one pass over masks and lengths when opened, which does not read pages of other columns. Memory: the
tokens of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore
from packline.formats.importing.mapped import ScannedForeign
from packline.formats.shared.arrow_stream import ArrowFile
from packline.formats.shared.column_reader import ColumnReader
from packline.formats.shared.row_documents import cut_off
from packline.formats.shared.row_files import RowGroup
from packline.formats.types import Block, ForeignFile, ForeignUnit
from packline.ragged import offsets_of

SEQ_LENGTHS = "seq_lengths"
"""Column that packed rows have and documents do not."""
OWN = b"packline"
"""Key in the schema metadata: whether labels contain more than the beginnings of pieces."""


class PackedRows(RowGroup):
    """Rows of one file without padding, and the ends of their pieces.

    Raises:
        CorruptStore: masks or lengths that contradict the rows.
    """

    def __init__(
        self, files: Sequence[ForeignFile], opened: ArrowFile, first_row: int, beside: Sequence[int]
    ) -> None:
        self._opened = opened
        lengths, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        before = 0
        for number in range(len(opened.begins)):
            batch = opened.batch(number, mapped=True)
            of_rows, of_pieces = _measure(batch, opened, int(opened.rows[number]))
            lengths.append(of_rows)
            ends.append(before + np.cumsum(of_pieces))
            before += int(of_rows.sum())
        super().__init__(
            files,
            [opened.file],
            [np.concatenate(lengths)],
            opened.columns.dtype,
            first_row=first_row,
            has_loss=opened.columns.has_loss and _says_loss(opened.schema),
            beside=beside,
        )
        self.split = opened.split
        self.sequence_ends: np.ndarray = np.unique(np.concatenate(ends))
        """int64: tokens of the file before the end of each piece that is not only padding."""

    def _read_file(self, inner: int) -> tuple[np.ndarray, np.ndarray | None]:
        opened, tokens, losses = self._opened, [np.empty(0, self.dtype)], [np.empty(0, np.uint8)]
        for number in range(len(opened.begins)):
            block = opened.columns.block(opened.batch(number), opened.path, int(opened.rows[number]))
            tokens.append(block.tokens)
            if block.loss is not None:
                losses.append(block.loss)
        return np.concatenate(tokens), np.concatenate(losses) if self.has_loss else None


def _says_loss(schema: pa.Schema) -> bool:
    """True if labels are more than ids: always in foreign files, and in ours if the store had a mask."""
    own = (schema.metadata or {}).get(OWN)
    return own is None or bool(msgspec.json.decode(own).get("loss", True))


def _measure(batch: pa.RecordBatch, opened: ArrowFile, first_row: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens per row and per piece of a record batch, without padding; int64."""
    read = ColumnReader(opened.path, first_row)
    tokens, offsets = read.lists(batch, opened.columns.tokens)
    kept = np.arange(len(tokens) + 1)
    if opened.columns.attention is not None:
        kept = offsets_of(read.mask(batch, opened.columns.attention, offsets))
    if SEQ_LENGTHS not in opened.schema.names:
        return np.diff(kept[offsets]), np.diff(kept[offsets])
    pieces, of_row = read.lists(batch, SEQ_LENGTHS)
    ends = offsets_of(pieces)
    if int(pieces.min(initial=0)) < 0 or not np.array_equal(ends[of_row], offsets):
        at = int(np.argmax(np.diff(ends[of_row]) != np.diff(offsets)))
        raise CorruptStore(
            f"{opened.path}: row {first_row + at:,}: expected {SEQ_LENGTHS} that add up to "
            f"{offsets[at + 1] - offsets[at]:,} tokens, found {ends[of_row[at + 1]] - ends[of_row[at]]:,}",
            hint="the file is damaged, or its rows were cut after they were packed",
        )
    return np.diff(kept[offsets]), np.diff(kept[ends])


class Sequences(ScannedForeign):
    """Rows in which each piece is a document."""

    bos_id: int | None = None
    """Begin-of-document token of the rows' store, if known."""

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        group = self._sources[unit.file]
        assert isinstance(group, PackedRows)
        for begin, stop, ends in group.stretches(group.sequence_ends):
            tokens, loss = group.read(begin, stop)
            offsets = np.unique(np.concatenate([[0], ends]))
            unfinished = cut_off(tokens, offsets, marker=self.marker, edges=self.edges, bos_id=self.bos_id)
            yield Block(tokens, offsets, loss, group.positions(begin + offsets[:-1]), unfinished=unfinished)
