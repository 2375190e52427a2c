"""Provenance of the documents of a shard: `NAME.docs.parquet` (columns: see docs/store.md).

A damaged file never reaches a parser: its checksum is compared first, or those of the blocks that are read,
where a long file of a remote store is read by ranges.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.recipe import ColumnType
from packline.store.files import HINT, FileEntry, NumberRanges, check_bytes, reading
from packline.store.tables import ShardEntry, check_schema

CarriedTypes = tuple[tuple[str, ColumnType], ...]

if TYPE_CHECKING:
    import pyarrow as pa

    from packline.store.pieces import Ranges


@cache
def documents_schema(carried: CarriedTypes = ()) -> pa.Schema:
    """Columns of `NAME.docs.parquet`: the fixed ones, then those that the source carries."""
    import pyarrow as pa

    from packline.sources.carried import TYPES

    return pa.schema(
        [
            pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("position", pa.int64(), nullable=False),
            pa.field("id", pa.string()),
            pa.field("text_bytes", pa.int64(), nullable=False),
            pa.field("tokens", pa.int64(), nullable=False),
            pa.field("label", pa.dictionary(pa.int32(), pa.string())),
            pa.field("hash", pa.uint64()),
            *(pa.field(name, TYPES[kind]) for name, kind in carried),
        ]
    )


def carried_columns(schema: pa.Schema) -> CarriedTypes:
    """Name and type of each carried column of a file, without those of a type that none has.

    `documents_schema` of them is the schema of the file, unless these are not columns of provenance.
    """
    from packline.sources.carried import TYPES

    names, fixed = {kind: name for name, kind in TYPES.items()}, documents_schema().names
    carried = {one.name: names[one.type] for one in list(schema)[len(fixed) :] if one.type in names}
    return tuple((name, kind) for name, kind in carried.items() if name not in fixed)


class _RangedFile(io.RawIOBase):
    def __init__(self, data: Ranges) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        found = self._data[self._at : self._at + len(into)]
        into[: len(found)] = found.data
        self._at += len(found)
        return len(found)


class Provenance(msgspec.Struct, frozen=True):
    """Origin of a document."""

    source: str
    file: str
    """Path below the source's common folder."""
    position: int
    """Byte offset in the (decompressed) file, or row number in a Parquet file."""
    id: str | None
    label: str | None
    split: str
    text_bytes: int
    tokens: int
    hash: int | None = None
    """xxh3-64 of the text's UTF-8 (of a conversation: of its rendered text); None for an import."""
    columns: dict[str, Any] = {}
    """Values of the columns that the source carries: str, int, float, bool, datetime in UTC, or None."""


class ProvenanceFile:
    """Provenance of a shard's documents.

    Args:
        data: its bytes, uint8 `[N]`, or what reads ranges of them.
    """

    def __init__(self, path: str, entry: ShardEntry, file: FileEntry, data: NumberRanges) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self._data = path, data
        if isinstance(data, np.ndarray):
            check_bytes(path, file, data.data)
            source: Any = pa.BufferReader(pa.py_buffer(data))
        else:
            source = pa.PythonFile(_RangedFile(data), mode="r")
        with reading(path):
            self._parquet = pq.ParquetFile(source, pre_buffer=False)  # no reading ahead in other threads
            metadata = self._parquet.metadata
            schema = self._parquet.schema_arrow
            self.rows: list[int] = [
                metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)
            ]
            """Documents per row group."""
        self.carried = carried_columns(schema)
        check_schema(path, schema, documents_schema(self.carried))
        if sum(self.rows) != entry.documents:
            raise CorruptStore(
                f"{path}: expected {entry.documents:,} documents, found {sum(self.rows):,}", hint=HINT
            )

    def read(self, group: int, columns: Sequence[str] | None = None, *, ahead: bool = False) -> pa.Table:
        """Read one row group, with some columns or all."""
        self._bring(group, columns, wait=True)
        if ahead:
            self._bring(group + 1, columns, wait=False)
        with reading(self.path):
            names = None if columns is None else list(columns)
            return self._parquet.read_row_group(group, columns=names, use_threads=False)

    def _bring(self, group: int, columns: Sequence[str] | None, *, wait: bool) -> None:
        """Fetch some columns of a row group at once, if they are read by ranges."""
        if isinstance(self._data, np.ndarray) or group >= len(self.rows):
            return
        found = []
        row_group = self._parquet.metadata.row_group(group)
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            if columns is None or column.path_in_schema in columns:
                start = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
                found.append((start, start + column.total_compressed_size))
        self._data.bring(found, wait=wait)

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
        """All row groups, each with the number of its first document in the shard."""
        first = 0
        for group, rows in enumerate(self.rows):
            yield first, self.read(group, columns, ahead=True)
            first += rows


def to_provenance(table: pa.Table, split: str, path: str) -> list[Provenance]:
    """Convert rows with all columns of provenance to values."""
    fixed = documents_schema().names
    carried = table.column_names[len(fixed) :]
    with reading(path):
        rows = table.select(fixed).to_pylist()
        if not carried:
            return [Provenance(split=split, **row) for row in rows]
        columns = table.select(carried).to_pylist()
        return [Provenance(split=split, columns=more, **row) for row, more in zip(rows, columns, strict=True)]
