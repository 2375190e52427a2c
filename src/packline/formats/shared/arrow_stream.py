"""Arrow IPC streams: a file of record batches, read one by one.

    FF FF FF FF | int32 length | description of the schema
    FF FF FF FF | int32 length | description of a record batch | its buffers
    ...
    FF FF FF FF | int32 0                                         the end mark

This is not the Arrow file format, which begins with `ARROW1`. All message headers are read when a stream is
opened (30 microseconds per record batch), so record batches can be read in any order, and a truncated stream
is detected at once, even if it ends between two of them. Dictionary-encoded columns, which would tie record
batches together, are not read; the `datasets` library writes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from packline.errors import CorruptStore
from packline.formats.shared.column_files import ColumnFile
from packline.formats.shared.column_reader import Columns
from packline.formats.types import ForeignFile
from packline.ragged import offsets_of

if TYPE_CHECKING:
    from packline.store.report import Findings

END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
FILE_MAGIC = b"ARROW1"


class ArrowFile(ColumnFile):
    """A stream with record batches that can be read one by one. Made by `open`."""

    schema: pa.Schema

    @classmethod
    def open(
        cls,
        files: Sequence[ForeignFile],
        number: int,
        split: str,
        column: str,
        with_loss: bool,
        findings: Findings,
    ) -> ArrowFile | None:
        """Read all message headers; None if nothing can be read."""
        self, file = cls(), files[number]
        self.file, self.path, self.split, self.size = number, file.path, split, file.bytes
        found: list[tuple[int, int, int]] = []  # per record batch: first byte, rows, tokens
        at = 0
        try:
            # Mapped, so that only the accessed pages are read, not the bodies.
            with pa.memory_map(file.path) as mapped:
                if mapped.read(len(FILE_MAGIC)) == FILE_MAGIC:
                    findings.add(file.name, "framing", "an Arrow stream", "an Arrow file (ARROW1)")
                    return None
                mapped.seek(0)
                self.schema = pa.ipc.read_schema(mapped)
                at = mapped.tell()
                if coded := [one.name for one in self.schema if pa.types.is_dictionary(one.type)]:
                    findings.add(file.name, "columns", "none that is dictionary-encoded", ", ".join(coded))
                    return None
                columns = Columns.of(self.schema, column, with_loss, file.name, findings)
                if columns is None:
                    return None
                self.columns = columns
                while (message := _next_message(mapped)) is not None:
                    batch = pa.ipc.read_record_batch(message, self.schema)
                    found.append((at, batch.num_rows, _values_of(batch.column(columns.tokens))))
                    at = mapped.tell()
                mapped.seek(at)
                end = mapped.read(len(END_MARK) + 1)
                if end != END_MARK:
                    rest = f"{file.bytes - at:,} other bytes" if file.bytes > at else "the end of the file"
                    findings.add(file.name, f"end mark at byte {at:,}, as the last of it", "there", rest)
        except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: names that are not text
            findings.add(file.name, f"not a whole Arrow stream: message at byte {at:,}: {error}")
            if not found:
                return None
        self.begins = np.array([begin for begin, _, _ in found], np.int64)
        self.rows = offsets_of([rows for _, rows, _ in found])
        self.tokens = np.array([tokens for _, _, tokens in found], np.int64)
        return self

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for number in range(start, stop):
            yield self.batch(number)

    def batch(self, number: int, *, mapped: bool = False) -> pa.RecordBatch:
        """One record batch with all columns.

        Args:
            mapped: read only the accessed pages; the file must not change meanwhile.

        Raises:
            CorruptStore: it cannot be read.
        """
        try:
            with pa.memory_map(self.path) if mapped else pa.OSFile(self.path) as file:
                file.seek(int(self.begins[number]))
                message = pa.ipc.read_message(file)
                batch = pa.ipc.read_record_batch(message, self.schema)
        except (OSError, EOFError, ValueError, pa.ArrowException) as error:
            raise CorruptStore(
                f"cannot read {self.path}: record batch at byte {int(self.begins[number]):,}: {error}",
                hint="the file is damaged, or was changed meanwhile",
            ) from error
        expected = int(self.rows[number + 1] - self.rows[number])
        if batch.num_rows != expected:
            raise CorruptStore(
                f"{self.path}: expected a record batch of {expected:,} rows, found {batch.num_rows:,}"
            )
        return batch


def _next_message(mapped: pa.MemoryMappedFile) -> pa.Message | None:
    try:
        return pa.ipc.read_message(mapped)
    except EOFError:
        return None


def _values_of(array: pa.Array) -> int:
    """Number of values in all lists of a column, from the start of the first and the end of the last."""
    if pa.types.is_fixed_size_list(array.type):
        return len(array) * int(array.type.list_size)
    return array.offsets[-1].as_py() - array.offsets[0].as_py() if len(array) else 0
