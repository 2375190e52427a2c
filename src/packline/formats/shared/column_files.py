"""Files of columns as a foreign data set: their documents, one record batch at a time.

    ColumnFile      one file: how it is cut into units, and how their record batches are read
    ColumnForeign   files in document order

Shared by the readers of `arrow` and `parquet`. Provenance of a document is its file and row.

Memory: one record batch, of the size chosen by the writer of the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from packline.formats.format import Foreign
from packline.formats.importing.mapped import UNIT_TOKENS
from packline.formats.shared.column_reader import Columns
from packline.formats.shared.token_shards import split_of
from packline.formats.types import Block, Edges, ForeignFile, ForeignUnit

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.store.report import Findings


class ColumnFile(ABC):
    """One file. Its groups can be read separately: record batches, or row groups."""

    file: int
    """Number of the file in the data set."""
    path: str
    split: str
    columns: Columns
    rows: np.ndarray
    """int64 `[G+1]`: first row of each group, and the number of rows."""
    begins: np.ndarray
    """int64 `[G]`: start offset of each group, in bytes."""
    size: int
    """Bytes of the file."""
    tokens: np.ndarray
    """int64 `[G]`: approximate number of tokens per group."""

    @abstractmethod
    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The selected columns of groups `start` to `stop`.

        Raises:
            CorruptStore: they cannot be read.
        """

    def units(self, beside: Sequence[tuple[int, int, int]]) -> Iterator[ForeignUnit]:
        """Units of groups with about `UNIT_TOKENS` together; a unit's `start` and `stop` are groups.

        Args:
            beside: pieces of other files that the first unit also covers.
        """
        ends, start, count = np.cumsum(self.tokens), 0, len(self.tokens)
        while start < count or start == 0:
            reached = (int(ends[start - 1]) if start else 0) + UNIT_TOKENS
            stop = min(max(int(ends.searchsorted(reached, "right")), start + 1), count)
            begin = int(self.begins[start]) if start else 0
            end = int(self.begins[stop]) if stop < count else self.size
            extra = tuple(beside) if start == 0 else ()
            yield ForeignUnit(self.split, self.file, start, stop, ((self.file, begin, end), *extra))
            start = max(stop, 1)


class ColumnForeign(Foreign):
    """Documents in columns.

    Args:
        files: all files of the data set.
        sources: files with documents, in document order.
        edges: boundary tokens that every document is expected to have.
        findings: receives problems: types or masks unlike those of the first file.
    """

    def __init__(
        self, files: Sequence[ForeignFile], sources: Sequence[ColumnFile], *, edges: Edges, findings: Findings
    ) -> None:
        self.files, self.edges, self.facts = list(files), edges, {}
        self.dtype = sources[0].columns.dtype if sources else np.dtype(np.int32)
        self.documents = sum(int(source.rows[-1]) for source in sources)
        self.has_loss = any(source.columns.has_loss for source in sources)
        self._sources = {source.file: source for source in sources}
        self.units = []
        others = [(number, 0, file.bytes) for number, file in enumerate(files) if number not in self._sources]
        for source in sources:
            name = files[source.file].name
            findings.compare(
                name, "type of ids, as in the first file", self.dtype.name, source.columns.dtype.name
            )
            findings.compare(
                name, "loss mask, where other files have one", self.has_loss, source.columns.has_loss
            )
            self.units += source.units(others if not self.units else ())

    def blocks(self, unit: ForeignUnit) -> Iterator[Block]:
        source = self._sources[unit.file]
        row = int(source.rows[unit.start])
        for batch in source.batches(unit.start, unit.stop):
            yield from source.columns.blocks(batch, source.path, row)
            row += batch.num_rows


def split_of_path(name: str) -> str:
    """Split from the path of a file: `val` or `test` if a word of its name or a folder means that.

    >>> split_of_path("data/test-00000-of-00001.parquet"), split_of_path("validation/data.arrow")
    ('test', 'val')
    """
    found = (split_of(part) for part in PurePath(name).parts)
    return next((split for split in found if split != "train"), "train")
