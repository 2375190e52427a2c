"""Common entry point of all sources: a range of a file in, batches of documents out.

    Span  a range of a plain file, some row groups of a Parquet file, or a whole small file
    Slice a piece of a compressed stream, stored in a file

Both give the same batches for the same bytes. Every reader computes a checksum of the bytes it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import numpy as np

from packline.recipe import Source
from packline.sources.batch import Batch, Block, reject_block
from packline.sources.compression import DecompressedStream
from packline.sources.delimited import Fill, read_blocks, seek_record
from packline.sources.files import InputFile
from packline.sources.jsonl import JsonlDecoder
from packline.sources.records import JsonlRecords, Transform, row_batch
from packline.sources.slices import Slice, delimiter_of
from packline.sources.text import decode_records, read_whole_file
from packline.storage.inputs import open_input, read_fully

if TYPE_CHECKING:
    import pyarrow as pa


class Span(msgspec.Struct, frozen=True, gc=False):
    """Bytes `[start, stop)` of a plain file, row groups of a Parquet file, or all of a compressed one."""

    file: int
    start: int
    stop: int


def read_span(
    file: InputFile,
    source: Source,
    span: Span,
    max_document_bytes: int,
    hasher: Any,
    transform: Transform | None = None,
) -> Iterator[Batch]:
    """Read the documents that begin in a span, in order.

    Args:
        hasher: updated with the bytes of the batches (for a compressed file: its compressed bytes).
        transform: makes texts from whole records, for a source with a template or filters.
    """
    if file.format == "parquet":
        from packline.sources.parquet import open_parquet, read_records, read_row_groups

        with open_input(file.path) as raw:
            groups = range(span.start, span.stop)
            parquet = open_parquet(raw, file.path)
            if transform is not None:
                make = _row_maker(file, transform, hasher)
                yield from read_records(file.index, parquet, groups, file.columns or (), make)
                return
            yield from read_row_groups(
                file.index, parquet, groups, file.text, file.id, hasher, max_document_bytes
            )
        return
    with open_input(file.path) as raw:
        if file.compression:
            stream = DecompressedStream(raw, file.compression)
            yield from _read_stream(file, source, stream, max_document_bytes, transform)
            hasher.update(stream.checksum().encode())
            return
        if file.format == "text" and source.documents != "line":
            yield from _read_plain(file, source, raw, max_document_bytes, hasher)
            return
        start = seek_record(raw, span.start)
        if start >= span.stop:
            return
        blocks = read_blocks(_filler(raw), start, stop=span.stop, max_bytes=max_document_bytes)
        yield from _decode(file, source, _hash_blocks(blocks, hasher), transform)


def read_slice(
    file: InputFile,
    source: Source,
    piece: Slice,
    max_document_bytes: int,
    transform: Transform | None = None,
) -> Iterator[Batch]:
    """Read the documents of a slice, in order; `transform` as in `read_span`."""
    if file.format == "parquet":
        yield from _read_arrow_slice(file, piece, max_document_bytes, transform)
        return
    delimiter = delimiter_of(file, source)
    with open(piece.path, "rb", buffering=0) as raw:
        blocks = read_blocks(
            _filler(raw),
            piece.position,
            delimiter=delimiter,
            max_bytes=max_document_bytes,
            problem=lambda: piece.problem,
        )
        yield from _decode(file, source, blocks, transform)


def _read_plain(
    file: InputFile, source: Source, raw: BinaryIO, max_document_bytes: int, hasher: Any
) -> Iterator[Batch]:
    """Read a text file that is one document, or is cut at separators."""
    if source.documents == "file":

        def read(size: int) -> bytes:
            data = read_fully(raw, size)
            hasher.update(data)
            return data

        yield from read_whole_file(file.index, read, max_document_bytes)
        return
    delimiter = delimiter_of(file, source)
    blocks = read_blocks(_filler(raw), 0, delimiter=delimiter, max_bytes=max_document_bytes)
    yield from _decode(file, source, _hash_blocks(blocks, hasher))


def _read_stream(
    file: InputFile,
    source: Source,
    stream: DecompressedStream,
    max_document_bytes: int,
    transform: Transform | None,
) -> Iterator[Batch]:
    """Read a whole compressed file."""
    if file.format == "text" and source.documents == "file":
        batches = list(read_whole_file(file.index, stream.read, max_document_bytes))
        if stream.problem:
            raw = b"".join(batch.texts.data.tobytes() for batch in batches)
            raw += b"".join(reject.raw for batch in batches for reject in batch.rejects)
            reason, detail = stream.problem
            block = Block(memoryview(raw), np.zeros(1, np.int64), 0, reason, detail)
            batches = [reject_block(file.index, block)]
        yield from batches
        return
    delimiter = delimiter_of(file, source)
    blocks = read_blocks(
        stream.readinto, 0, delimiter=delimiter, max_bytes=max_document_bytes, problem=lambda: stream.problem
    )
    yield from _decode(file, source, blocks, transform)


def _decode(
    file: InputFile, source: Source, blocks: Iterator[Block], transform: Transform | None = None
) -> Iterator[Batch]:
    """Decode blocks, one batch per block."""
    if file.format == "jsonl":
        decoder: JsonlDecoder | JsonlRecords
        decoder = _decoder(file.text, file.id) if transform is None else _records(transform, file.id)
        for block in blocks:
            yield decoder.decode(file.index, block)
        return
    delimiter = delimiter_of(file, source)
    for block in blocks:
        yield decode_records(file.index, block, delimiter)


@cache
def _decoder(text: str, id: str | None) -> JsonlDecoder:
    """Cached decoder: a unit may have a thousand small files."""
    return JsonlDecoder(text, id)


@cache
def _records(transform: Transform, id: str | None) -> JsonlRecords:
    return JsonlRecords(transform, id)


def _row_maker(
    file: InputFile, transform: Transform, hasher: Any = None
) -> Callable[[pa.RecordBatch, int], Batch]:
    def make(rows: pa.RecordBatch, row: int) -> Batch:
        return row_batch(file.index, rows, row, transform, file.id, hasher)

    return make


def _read_arrow_slice(
    file: InputFile, piece: Slice, max_bytes: int, transform: Transform | None
) -> Iterator[Batch]:
    import os

    import pyarrow as pa

    from packline.sources.parquet import arrow_batch, lost_rows

    row = piece.position
    losses = list(piece.lost)
    if os.path.getsize(piece.path):
        with pa.memory_map(piece.path) as mapped:
            for batch in pa.ipc.open_stream(mapped):
                while losses and losses[0].row <= row and losses[0].end > losses[0].row:
                    loss = losses.pop(0)
                    yield lost_rows(file.index, loss.group, loss.row, loss.end, OSError(loss.detail))
                    row = loss.end
                if transform is not None:
                    yield _row_maker(file, transform)(batch, row)
                else:
                    ids = batch.column("id") if "id" in batch.schema.names else None
                    yield arrow_batch(file.index, batch.column("text"), ids, row, max_bytes)
                row += len(batch)
    for loss in losses:
        yield lost_rows(file.index, loss.group, loss.row, loss.end, OSError(loss.detail))


def _hash_blocks(blocks: Iterator[Block], hasher: Any) -> Iterator[Block]:
    for block in blocks:
        hasher.update(block.data)
        yield block


def _filler(raw: BinaryIO) -> Fill:
    """`readinto` of a file; a remote one may have only `read`."""
    return cast("Fill", raw.readinto)  # type: ignore[attr-defined]
