"""Tables listed in the manifest: the shards, inputs and units of a store (see docs/store.md).

A store may have a million shards. Its tables are read in bulk, and a row becomes a value only when used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from io import BytesIO
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import msgspec
import numpy as np

from packline.errors import CorruptStore
from packline.fingerprint import hash_bytes
from packline.sources.compression import Compression
from packline.store.files import HINT, FileEntry, StoreFiles, reading

if TYPE_CHECKING:
    import pyarrow as pa

SHARDS = "shards.parquet"
INPUTS = "inputs.parquet"
UNITS = "units.parquet"
RECEIPTS = "receipts"
REJECTS = "rejects"
TOKENIZER = "tokenizer"
ROW_GROUP = 1 << 16
BLOCK = 1 << 10
"""Rows that are made into values at a time when a table is read from beginning to end."""
SHARD_FILES = {"bin": ".bin", "idx": ".idx", "docs": ".docs.parquet", "loss": ".loss", "sums": ".sums"}
"""Files of a shard, in order: the name of their columns, and the end of their names."""
UNIT_FILES = {
    "receipt": (f"{RECEIPTS}/", ".json"),
    "rejects": (f"{REJECTS}/", ".raw"),
    "reject_entries": (f"{REJECTS}/", ".jsonl"),
}
"""Files of a unit: the name of their columns, and the beginning and end of their names."""
OPTIONAL = ("loss", "rejects", "reject_entries")


class ShardEntry(msgspec.Struct, frozen=True, gc=False):
    """One shard: `NAME.bin`, `NAME.idx`, `NAME.docs.parquet`, `NAME.loss` if it has one, `NAME.sums`."""

    name: str
    split: str
    documents: int
    tokens: int
    files: tuple[FileEntry, ...]


class InputEntry(msgspec.Struct, frozen=True, gc=False):
    """An input file as it was read."""

    source: str
    name: str
    bytes: int
    format: str
    compression: Compression
    text: str
    checksum: str


class UnitEntry(msgspec.Struct, frozen=True, gc=False):
    """Files of one unit, or the receipt of one stream."""

    unit: str
    """Name of the receipt, without `.json`."""
    source: str
    receipt: FileEntry
    rejects: tuple[FileEntry, ...] = ()


E = TypeVar("E", ShardEntry, InputEntry, UnitEntry)


class TableRows(Generic[E]):
    """Rows of a table: its columns, and each row as a value, made when it is used."""

    file: ClassVar[str]
    """Name of the table's file."""
    columns: ClassVar[dict[str, type]]
    """Columns but those of files; the first is the name of a row."""
    files: ClassVar[dict[str, tuple[str, str]]] = {}
    """Files of a row, in order: two columns each; what is before and behind the name of the row."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()

    @classmethod
    @cache
    def schema(cls) -> pa.Schema:
        """Columns of the table."""
        import pyarrow as pa

        types = {str: pa.string(), int: pa.int64()}
        fields = [pa.field(name, types[kind], nullable=False) for name, kind in cls.columns.items()]
        for file in cls.files:
            fields.append(pa.field(f"{file}_bytes", pa.int64(), nullable=file in OPTIONAL))
            fields.append(pa.field(f"{file}_checksum", pa.string(), nullable=file in OPTIONAL))
        return pa.schema(fields)

    @classmethod
    def of(cls, rows: Iterable[tuple[tuple[Any, ...], Iterable[FileEntry]]]) -> Self:
        """Table of rows: values in the order of the columns, and files."""
        import pyarrow as pa

        schema = cls.schema()
        columns: list[list[Any]] = [[] for _ in schema]
        values: tuple[Any, ...]
        for values, files in rows:
            by_name = {file.name: (file.bytes, file.checksum) for file in files}
            names = (f"{before}{values[0]}{behind}" for before, behind in cls.files.values())
            found: list[tuple[Any, Any]] = [by_name.pop(name, (None, None)) for name in names]
            assert not by_name, by_name
            for column, value in zip(columns, (*values, *chain.from_iterable(found)), strict=True):
                column.append(value)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return cls(pa.Table.from_arrays(arrays, schema=schema))

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """All rows of several tables, one table after another."""
        import pyarrow as pa

        return cls(pa.concat_tables([cls.schema().empty_table(), *(one.table for one in tables)]))

    @classmethod
    def read(cls, files: StoreFiles, entry: FileEntry) -> Self:
        """Read the table of a store."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        data, path = files.read(entry), files.path(entry.name)
        with reading(path):
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
            table.validate(full=True)  # text is UTF-8
        check_schema(path, table.schema, cls.schema())
        return cls(table)

    def names(self, column: str) -> list[str]:
        """All values of a column of text."""
        found: list[str] = self.table[column].to_pylist()
        return found

    def numbers(self, column: str) -> np.ndarray:
        """All values of a column of numbers, int64 `[N]`; 0 for null."""
        found: np.ndarray = self.table[column].fill_null(0).to_numpy()
        return found

    def bytes_by_file(self) -> dict[str, int]:
        """Total bytes of each kind of file."""
        return {kind: int(self.numbers(f"{kind}_bytes").sum()) for kind in self.files}

    @cached_property
    def data(self) -> bytes:
        """The table as a Parquet file: a pure function of its rows."""
        import pyarrow.parquet as pq

        sink = BytesIO()
        pq.write_table(self.table, sink, row_group_size=ROW_GROUP, compression="zstd", write_statistics=False)
        return sink.getvalue()

    @property
    def entry(self) -> FileEntry:
        """Entry of the table's file."""
        return FileEntry(self.file, len(self.data), hash_bytes(self.data))

    @abstractmethod
    def _entry(self, row: dict[str, Any], files: tuple[FileEntry, ...]) -> E:
        """Value of a row, and of its files."""

    def _value(self, row: dict[str, Any]) -> E:
        name = row[next(iter(self.columns))]
        files = (
            FileEntry(f"{before}{name}{behind}", row[f"{kind}_bytes"], row[f"{kind}_checksum"])
            for kind, (before, behind) in self.files.items()
            if row[f"{kind}_bytes"] is not None
        )
        return self._entry(row, tuple(files))

    @cached_property
    def _arrays(self) -> dict[str, pa.Array]:
        """Arrays instead of columns in chunks: several times as fast for single values."""
        (batch,) = self.table.to_batches()
        return dict(zip(self.table.column_names, batch.columns, strict=True))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> E:
        place = range(len(self))[index]
        return self._value({name: column[place].as_py() for name, column in self._arrays.items()})

    def __iter__(self) -> Iterator[E]:
        for batch in self.table.to_batches(max_chunksize=BLOCK):
            yield from map(self._value, batch.to_pylist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableRows) and bool(self.table.equals(other.table))

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {self.file}>"


def check_schema(path: object, found: pa.Schema, expected: pa.Schema) -> None:
    """Refuse a table with other columns."""
    if not found.equals(expected):
        named = [
            [f"{one.name} {one.type}{'' if one.nullable else ' not null'}" for one in schema]
            for schema in (expected, found)
        ]
        pairs = enumerate(zip_longest(*named, fillvalue="none"))
        place, (one, other) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        raise CorruptStore(f"{path}: column {place}: expected {one}, found {other}", hint=HINT)


class ShardRows(TableRows[ShardEntry]):
    """The shards of a store, in the order of its documents."""

    file = SHARDS
    columns: ClassVar = dict.fromkeys(("name", "unit", "source", "split"), str) | dict.fromkeys(
        ("documents", "tokens"), int
    )
    files: ClassVar = {kind: ("", ending) for kind, ending in SHARD_FILES.items()}

    @classmethod
    def from_entries(cls, shards: Iterable[tuple[str, str, ShardEntry]]) -> Self:
        """Table of shards, each with its unit and the name of its source."""
        return cls.of(
            ((one.name, unit, source, one.split, one.documents, one.tokens), one.files)
            for unit, source, one in shards
        )

    def by_split(self, column: str) -> dict[str, int]:
        """Sum of a column of numbers by split, in the order of the splits' first shards."""
        splits = self.table["split"].combine_chunks().dictionary_encode()  # `group_by` loads slowly: Acero
        places, numbers = splits.indices.to_numpy(), self.table[column].to_numpy()
        names = splits.dictionary.to_pylist()
        return {name: int(numbers[places == place].sum()) for place, name in enumerate(names)}

    def _entry(self, row: dict[str, Any], files: tuple[FileEntry, ...]) -> ShardEntry:
        return ShardEntry(row["name"], row["split"], row["documents"], row["tokens"], files)


class InputRows(TableRows[InputEntry]):
    """The inputs of a store: the sources in the recipe's order, the files of each in order."""

    file = INPUTS
    columns: ClassVar = dict.fromkeys(InputEntry.__struct_fields__, str) | {"bytes": int}

    @classmethod
    def from_entries(cls, inputs: Iterable[InputEntry]) -> Self:
        """Table of inputs."""
        return cls.of((msgspec.structs.astuple(entry), ()) for entry in inputs)

    def _entry(self, row: dict[str, Any], files: tuple[FileEntry, ...]) -> InputEntry:
        return InputEntry(**row)


class UnitRows(TableRows[UnitEntry]):
    """The units of a store, sorted by name."""

    file = UNITS
    columns: ClassVar = {"unit": str, "source": str}
    files: ClassVar = UNIT_FILES

    @classmethod
    def from_entries(cls, units: Iterable[UnitEntry]) -> Self:
        """Table of units, which are sorted here."""
        rows = cls.of(((one.unit, one.source), (one.receipt, *one.rejects)) for one in units)
        return cls(rows.table.sort_by("unit"))

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """All rows of several tables, sorted."""
        return cls(super().joined(tables).table.sort_by("unit"))

    def _entry(self, row: dict[str, Any], files: tuple[FileEntry, ...]) -> UnitEntry:
        return UnitEntry(row["unit"], row["source"], files[0], files[1:])
