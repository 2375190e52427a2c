"""Documents as Parquet files, for `load_dataset(OUT)` and any other Parquet reader.

    train-00000-of-00002.parquet         one row per document; columns as for `arrow`: input_ids, and
    validation-00000-of-00001.parquet    labels or loss_mask where there is a mask; provenance on request

The `datasets` library recognises splits by these names. Row groups have at most 65,536 documents and 4M
tokens, so a reader needs 16 MB per column at a time. Pages have checksums, which packline checks when it
reads them.

Packline reads all files of a folder and its subfolders, from any writer, that have a column of lists of
integers; others are reported as problems. Splits follow from the names of files and folders, as for `arrow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packline.errors import CorruptStore
from packline.formats.columns import (
    WEIGHTS,
    ColumnFile,
    ColumnOptions,
    Columns,
    ColumnsReader,
    column_types,
    make_schema,
    plan_columns,
    record_batches,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import ExportRecord, Target
from packline.formats.files import find_files, paths_of, split_of_path
from packline.formats.format import DatasetReader, DocumentFormat
from packline.formats.token_files import BLOCK_DOCUMENTS, BLOCK_TOKENS
from packline.formats.types import DatasetFile, ExportPart, ExportPlan, Facts
from packline.ragged import offsets_of
from packline.store.report import Findings

GROUP_DOCUMENTS = 1 << 16
GROUP_TOKENS = 1 << 22
ENDING = ".parquet"
FILE = "{split}-{number:05d}-of-{count:05d}.parquet"


class ParquetOptions(ColumnOptions, frozen=True):
    compression: Literal["zstd", "snappy", "none"] = "zstd"
    """Writing: compression of pages."""


class Parquet(DocumentFormat):
    name = "parquet"
    title = "Parquet: train-00000-of-00001.parquet, one document per row in input_ids"
    options = ParquetOptions

    def trainer_lines(self, out: str, record: ExportRecord, options: ParquetOptions) -> tuple[str, ...]:
        return ("from datasets import load_dataset", "", f"dataset = load_dataset({out!r})  # by split")

    def plan(self, view: DocumentView, options: ParquetOptions) -> ExportPlan:
        return plan_columns(view, options, self.name, FILE)

    def write(self, view: DocumentView, part: ExportPart, target: Target, options: ParquetOptions) -> Facts:
        schema = make_schema(column_types(view, options))
        repeated = [name for name in ("source", "file") if name in schema.names]
        with create_parquet(target, part.name, schema, options.compression, repeated) as writer:
            for batch in record_batches(
                view, part, options, target, most_documents=GROUP_DOCUMENTS, most_tokens=GROUP_TOKENS
            ):
                writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))
        return {}

    def recognises(self, path: Path) -> bool:
        found = paths_of(path, ENDING, below=True)
        schema = schema_of(found[0]) if found and found[0].suffix == ENDING else pa.schema([])
        if WEIGHTS in schema.names:  # rows
            return False
        return Columns.of(schema, ColumnOptions().column, False, path.name, Findings()) is not None

    def open(self, path: Path, options: ParquetOptions, findings: Findings) -> DatasetReader:
        listed, paths = find_files(path, ENDING, "Parquet files, *.parquet", below=True)
        numbers = [listed.add(one) for one in paths]
        opened = [ParquetFile.open(listed.files, number, options, findings) for number in numbers]
        sources = [file for file in opened if file is not None]
        return ColumnsReader(listed.files, sources, edges=options.edges, findings=findings)


class ParquetFile(ColumnFile):
    """A file that is read by row groups; use `open` to create it."""

    @classmethod
    def open(
        cls, files: Sequence[DatasetFile], number: int, options: ParquetOptions, findings: Findings
    ) -> ParquetFile | None:
        """Read the footer; None if there is nothing readable."""
        self, file = cls(), files[number]
        self.file, self.path, self.size = number, file.path, file.bytes
        self.split = split_of_path(file.name)
        footer = read_footer(file.path, file.name, findings)
        if footer is None:
            return None
        metadata, schema = footer
        columns = Columns.of(schema, options.column, options.loss != "none", file.name, findings)
        if columns is None:
            return None
        self.columns = columns
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        self.rows = offsets_of([group.num_rows for group in groups])
        self.begins = np.array([_begin(group) for group in groups], np.int64)
        leaf = leaves_of(metadata).index(columns.tokens)
        self.tokens = np.array([group.column(leaf).num_values for group in groups], np.int64)
        last = max(_end(group) for group in groups) if groups else 0
        if last > file.bytes or bool((np.diff(self.begins) < 0).any()):
            findings.add(file.name, "end of the last row group", f"at most {file.bytes:,}", last)
            return None
        return self

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(
                self.path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True
            ) as parquet:
                for group in range(start, stop):  # row numbers go by group
                    rows = int(self.rows[group + 1] - self.rows[group])
                    average = int(self.tokens[group]) // max(rows, 1)
                    size = min(max(BLOCK_TOKENS // max(average, 1), 1), BLOCK_DOCUMENTS)
                    found = 0
                    for batch in parquet.iter_batches(
                        size, row_groups=[group], columns=self.columns.names, use_threads=False
                    ):
                        found += batch.num_rows
                        yield batch
                    if found != rows:  # a damaged page header may have no other symptom
                        raise CorruptStore(
                            f"{self.path}: row group {group:,}: expected {rows:,} rows, found {found:,}",
                            hint="the file is damaged",
                        )
        except CorruptStore:
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            begin = int(self.begins[start])
            raise CorruptStore(
                f"cannot read {self.path}: row groups from byte {begin:,}: {error}",
                hint="the file is damaged, or was changed meanwhile",
            ) from error


def _begin(group: pq.RowGroupMetaData) -> int:
    """Offset of the first byte of a row group."""
    columns = [group.column(number) for number in range(group.num_columns)]
    pages = [page for one in columns for page in (one.dictionary_page_offset, one.data_page_offset)]
    return min(page for page in pages if page is not None)


def _end(group: pq.RowGroupMetaData) -> int:
    """Offset after the last byte of a row group; may be greater."""
    return _begin(group) + sum(
        group.column(number).total_compressed_size for number in range(group.num_columns)
    )


@contextmanager
def create_parquet(
    target: Target, name: str, schema: pa.Schema, compression: str, repeated: Sequence[str] | bool = False
) -> Iterator[pq.ParquetWriter]:
    """Writer of a new Parquet file, with checksums of its pages and without statistics.

    Args:
        repeated: columns whose values repeat, kept as dictionaries.
    """
    with (
        target.create(name) as file,
        pa.PythonFile(file, "w") as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            use_dictionary=repeated,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):
        yield writer


def read_footer(path: str | Path, name: str, findings: Findings) -> tuple[pq.FileMetaData, pa.Schema] | None:
    """Metadata and schema of a Parquet file; None, and a problem in `findings`, if it is not a whole one."""
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata, file.schema_arrow
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not text
        findings.add(name, f"not a whole Parquet file: {error}")
        return None


def schema_of(path: Path) -> pa.Schema:
    """Schema of a Parquet file; without fields if it is not a whole one."""
    found = read_footer(path, path.name, Findings())
    return pa.schema([]) if found is None else found[1]


def leaves_of(metadata: pq.FileMetaData) -> list[str]:
    """Name of the column that each leaf of a Parquet schema belongs to."""
    return [metadata.schema.column(n).path.partition(".")[0] for n in range(metadata.num_columns)]


FORMAT = Parquet()
