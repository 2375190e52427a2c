"""Records of JSONL and Parquet files, whole: each with its place, and its bytes where it is bad.

    line of JSON ──> (position, value)          position: byte offset in the (decompressed) file
    row of Parquet ─> (position, value)         position: number of the row
    what cannot be read ──> Reject

Readers of text take one field of a record and skip the rest; a conversation is the whole record, so each line
is decoded to Python's own values. Cost: about 100 MB/s. Memory: a block of lines, or of rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from packline.errors import InputError
from packline.filesystem import open_input
from packline.sources.batch import Block, Reason, Reject, reject_block
from packline.sources.compression import DecompressedStream
from packline.sources.delimited import Fill, read_blocks, seek_record
from packline.sources.files import InputFile

MAX_RECORD_BYTES = 64 << 20
"""Of one line: a longer one is a bad record."""
ROWS = 256
"""Of a Parquet file that are in memory together."""


class Record(NamedTuple):
    """One record as it was read."""

    position: int
    value: Any
    raw: bytes | None
    """Its line; None where it was a row."""

    def reject(self, file: int, reason: Reason, detail: str) -> Reject:
        """The same as a bad record, verbatim; a row as JSON."""
        raw = self.raw
        if raw is None:
            raw = msgspec.json.encode(self.value, enc_hook=str)
        return Reject(file, self.position, reason, detail, raw)


def read_records(file: InputFile, start: int, stop: int, max_bytes: int) -> Iterator[Record | Reject]:
    """The records that begin in a stretch of a file, in order.

    Args:
        start: first byte, where the file can be cut; else 0.
        stop: behind the last byte; else the file's size.
        max_bytes: of a line; a longer one is a bad record.
    """
    if file.format == "parquet":
        yield from _read_rows(file)
        return
    if file.format == "text":
        yield from _read_table(file)
        return
    with open_input(file.path) as raw:
        if file.compression:
            stream = DecompressedStream(raw, file.compression)
            blocks = read_blocks(stream.readinto, 0, max_bytes=max_bytes, problem=lambda: stream.problem)
            yield from _read_lines(file.index, blocks)
            return
        begin = seek_record(raw, start)
        if begin < stop:
            yield from _read_lines(
                file.index, read_blocks(_filler(raw), begin, stop=stop, max_bytes=max_bytes)
            )


def _filler(raw: BinaryIO) -> Fill:
    return cast("Fill", raw.readinto)  # type: ignore[attr-defined]


def _read_lines(file: int, blocks: Iterator[Block]) -> Iterator[Record | Reject]:
    decode = msgspec.json.Decoder().decode
    for block in blocks:
        if block.problem:
            yield from reject_block(file, block).rejects
            continue
        data = bytes(block.data)
        starts = block.starts.tolist()
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            line = data[start:end].removesuffix(b"\n")
            position = block.position + start
            text = line.removeprefix(b"\xef\xbb\xbf") if position == 0 else line
            if not text.strip():
                continue
            try:
                yield Record(position, decode(text), line)
            except UnicodeDecodeError as error:
                yield Reject(file, position, "invalid_utf8", f"not UTF-8: {error.reason}", line)
            except (msgspec.MsgspecError, RecursionError) as error:
                yield Reject(file, position, "malformed_json", str(error), line)


def read_whole(file: InputFile) -> bytes:
    """All bytes of a small file, decompressed."""
    with open_input(file.path) as raw:
        stream = DecompressedStream(raw, file.compression) if file.compression else raw
        parts = []
        while data := stream.read(1 << 20):
            parts.append(data)
    if file.compression and stream.problem:  # type: ignore[union-attr]
        raise InputError(f"{file.path}: {stream.problem[1]}")  # type: ignore[union-attr]
    return b"".join(parts)


def _read_table(file: InputFile) -> Iterator[Record]:
    """Rows of CSV as lists of strings, without the names of columns; a position is the number of the row."""
    try:
        text = read_whole(file).decode("utf-8-sig")
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True)):
            if row and not (number == 0 and row[0] == "question"):
                yield Record(number, row, None)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file.path} is not CSV in UTF-8: {error}") from error


def _read_rows(file: InputFile) -> Iterator[Record | Reject]:
    import pyarrow as pa

    from packline.sources.parquet import lost_rows, open_parquet

    with open_input(file.path) as raw:
        parquet = open_parquet(raw, file.path)
        row = 0
        for group in range(parquet.metadata.num_row_groups):
            end = row + parquet.metadata.row_group(group).num_rows
            try:
                for batch in parquet.iter_batches(ROWS, row_groups=[group], use_threads=False):
                    for value in batch.to_pylist():
                        yield Record(row, value, None)
                        row += 1
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield from lost_rows(file.index, group, row, end, OSError(str(error))).rejects
            row = end
