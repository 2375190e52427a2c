"""Cutting of data that has no natural ranges into units: a compressed file, a huge row group.

A compressed stream can only be read from its start, so one reader decompresses it and writes chunks of about
`chunk_bytes` to files, each of whole records; encoders read them like ranges of a plain file. The ends of
chunks depend on the stream alone, never on the reader.

    x.jsonl.zst ──decompress──> [chunk 0][chunk 1][chunk 2]...   each a separate unit

Cost: one write and one read of the decompressed bytes, normally within the page cache. A chunk that a
finished unit already covers is decompressed but not written. Records are not decoded.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from packline.errors import InputError
from packline.recipe import Source
from packline.sources.batch import CUT_BYTES, Block, Reason
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile, check_assumed
from packline.sources.lines import NEWLINE, read_lines
from packline.storage.inputs import read_fully
from packline.storage.local import disk_errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class LostRows(msgspec.Struct, frozen=True):
    """Rows of a damaged row group, which are in no chunk."""

    group: int
    row: int
    end: int
    detail: str


class StreamChunk(msgspec.Struct, frozen=True):
    """One chunk, stored in a file."""

    number: int
    file: int
    position: int
    """Offset of its first record in the decompressed file, or the number of its first row."""
    input_bytes: int
    path: str
    """Path of the file; empty if it was not requested."""
    problem: tuple[Reason, str] | None = None
    """Set if the stream was truncated here, so its last record is incomplete."""
    lost: tuple[LostRows, ...] = ()


class StreamEnd(msgspec.Struct, frozen=True):
    """Totals of a file that has been read to its end."""

    chunks: int
    checksum: str


def delimiter_of(file: InputFile, source: Source) -> bytes:
    """Delimiter of the records of a file."""
    if file.format == "text" and source.documents == "separator":
        return (source.separator or "").encode("utf-8")
    return NEWLINE


def split_stream(
    file: InputFile,
    source: Source,
    folder: Path,
    *,
    chunk_bytes: int,
    max_document_bytes: int,
    skip: Container[int] = (),
) -> Iterator[StreamChunk | StreamEnd]:
    """Cut chunks in order, with one `StreamEnd` at the end. The caller deletes the files of chunks.

    Args:
        skip: numbers of chunks that need no file.
    """
    if file.format == "parquet":
        yield from _cut_parquet(file, folder, chunk_bytes, skip)
        return
    with file.open(0, file.size) as raw:
        check_assumed(file, source, raw)
        stream = _Stream(raw, file)
        delimiter = delimiter_of(file, source)
        blocks = read_lines(
            stream.fill, 0, delimiter=delimiter, max_bytes=max_document_bytes, block_bytes=CUT_BYTES
        )
        number = position = 0
        writer = _ChunkFile(folder, file, number, skip)
        try:
            for block in blocks:
                if writer.size >= chunk_bytes and not block.continued:
                    yield StreamChunk(number, file.index, position, writer.size, writer.close())
                    position, number = block.position, number + 1
                    writer = _ChunkFile(folder, file, number, skip)
                writer.write(block)
        finally:
            writer.close()
        yield StreamChunk(number, file.index, position, writer.size, writer.close(), stream.problem)
        yield StreamEnd(number + 1, stream.checksum())


class _Stream:
    """Bytes of a file, decompressed if necessary, with a checksum of the bytes of the file."""

    def __init__(self, raw: BinaryIO, file: InputFile) -> None:
        from packline.fingerprint import Hasher

        self._hasher = Hasher()
        self._raw = raw
        self._stream = DecompressedStream(raw, file.compression) if file.compression else None

    def fill(self, view: memoryview) -> int:
        if self._stream is not None:
            return self._stream.readinto(view)
        data = read_fully(self._raw, len(view))
        self._hasher.update(data)
        view[: len(data)] = data
        return len(data)

    def checksum(self) -> str:
        return self._stream.checksum() if self._stream else str(self._hasher.hexdigest())

    @property
    def problem(self) -> tuple[Reason, str] | None:
        return self._stream.problem if self._stream else None


class _ChunkFile:
    """One chunk being written, or only counted."""

    def __init__(self, folder: Path, file: InputFile, number: int, skip: Container[int]) -> None:
        self.size = 0
        self._folder = folder
        self._path = folder / f"{file.index:06d}-{number:06d}"
        self._file = None if number in skip else open(self._path, "wb", buffering=0)

    def write(self, block: Block) -> None:
        self.size += len(block.data)
        if self._file is not None:
            with disk_errors(self._folder):
                rest = block.data
                while len(rest):  # a nearly full disk may accept only a part without an error
                    rest = rest[self._file.write(rest) :]

    def close(self) -> str:
        if self._file is None:
            return ""
        self._file.close()
        return str(self._path)


def _cut_parquet(
    file: InputFile, folder: Path, chunk_bytes: int, skip: Container[int]
) -> Iterator[StreamChunk | StreamEnd]:
    """Chunks as Arrow files of the wanted columns, so that no row group is decoded twice."""
    import pyarrow as pa

    from packline.fingerprint import Hasher
    from packline.sources.parquet import expect_columns, open_parquet, wanted_columns

    hasher = Hasher()
    number = row = start = size = 0
    held: list[pa.RecordBatch] = []
    lost: list[LostRows] = []

    def finish() -> StreamChunk:
        path = ""
        if number not in skip:
            path = str(folder / f"{file.index:06d}-{number:06d}")
            with disk_errors(folder):
                _write_arrow(path, held)
        return StreamChunk(number, file.index, start, size, path, lost=tuple(lost))

    with file.open() as raw:
        parquet = open_parquet(raw, file.path)
        groups = range(parquet.metadata.num_row_groups)
        expect_columns(raw, parquet, groups, wanted_columns(file, parquet.schema_arrow))
        for group in groups:
            end = row + parquet.metadata.row_group(group).num_rows
            try:
                for rows, row_bytes in _hashed_rows(parquet, group, file, hasher):
                    if size >= chunk_bytes:
                        yield finish()
                        held, lost = [], []
                        number, start, size = number + 1, row, 0
                    held.append(rows)
                    size += row_bytes
                    row += len(rows)
            except InputError:
                raise
            except (pa.ArrowException, OSError) as error:
                lost.append(LostRows(group, row, end, str(error)))
            row = end
    yield finish()
    yield StreamEnd(number + 1, str(hasher.hexdigest()))


def _hashed_rows(
    parquet: pq.ParquetFile, group: int, file: InputFile, hasher: Any
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Rows of a row group and their bytes: text and id, or the columns for a template or filter."""
    from packline.sources.parquet import GroupHash, read_columns, read_row_group, record_columns, text_bytes
    from packline.sources.record_text import hash_rows

    if file.columns:
        for rows in read_columns(parquet, group, record_columns(file, parquet.schema_arrow)):
            hash_rows(hasher, rows)
            yield rows, rows.nbytes
        return
    hashed = GroupHash(hasher)
    try:
        for columns in read_row_group(parquet, group, file):
            hashed.add(columns)
            yield columns.to_batch(), text_bytes(columns.texts)
    finally:
        hashed.finish()


def _write_arrow(path: str, held: list[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.OSFile(path, "wb") as sink:
        writer = None
        for batch in held:
            if writer is None:
                writer = pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()
