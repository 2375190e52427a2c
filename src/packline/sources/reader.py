"""Reading of a file as batches of documents: a span of it, or slice by slice, with checksums.

    x.jsonl.zst ──decompress──> [slice 0][slice 1][slice 2]...   each committed like a unit

A file that cannot be cut before it is read (a compressed file, separator text, a huge row group) has slices
of whole records, with at least `slice_bytes` of (decompressed) text; their ends depend on the file alone.
Several processes may read it, each for other slices: one that is not wanted is decompressed, and its record
ends are found, but nothing is decoded (except rows of Parquet, whose checksum is theirs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec
import numpy as np

from packline.fingerprint import Hasher
from packline.recipe import Source
from packline.sources.batch import (
    BATCH_BYTES,
    CUT_BYTES,
    Batch,
    Block,
    RecordProblem,
    Reject,
    Texts,
    reject_block,
    without_documents,
)
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile, check_assumed
from packline.sources.json_array import read_blocks
from packline.sources.jsonl import BOM, JsonlDecoder
from packline.sources.lines import (
    NEWLINE,
    Decode,
    not_utf8,
    read_lines,
    reader_of,
    seek_record,
    text_decoder,
)
from packline.sources.record_text import JsonlRecords, RecordText, transform_of
from packline.storage.inputs import READ_BYTES, read_fully
from packline.storage.places import is_remote

FILES_AHEAD = 32
"""Number of small remote files that are requested before they are read."""


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
    opened: BinaryIO | None = None,
) -> Iterator[Batch]:
    """Read the documents that begin in a span, in order.

    Args:
        opened: the file, opened for this span (`open_span`); it is closed here.
        hasher: updated with the bytes of the batches (for a compressed file: its compressed bytes).
    """
    transform = transform_of(source, file.text, max_document_bytes) if source.uses_records else None
    if file.format == "parquet":
        from packline.sources.parquet import (
            expect_columns,
            open_parquet,
            read_row_groups,
            wanted_columns,
        )

        with opened or file.open() as raw:
            groups = range(span.start, span.stop)
            parquet = open_parquet(raw, file.path)
            expect_columns(raw, parquet, groups, wanted_columns(file, parquet.schema_arrow))
            yield from read_row_groups(file, parquet, groups, hasher, max_document_bytes, transform)
        return
    with opened or open_span(file, source, span) as raw:
        if not span.start:
            check_assumed(file, source, raw)
        if can_be_cut(file, source):
            start = seek_record(raw, span.start)
            if start < span.stop:
                blocks = read_lines(reader_of(raw), start, stop=span.stop, max_bytes=max_document_bytes)
                yield from decode_blocks(file, source, _hashed(blocks, hasher), transform)
            return
        stream = DecompressedStream(raw, file.compression, None if file.compression else hasher)
        if file.format == "text" and source.documents == "file":
            yield from _read_document(file, source, stream, max_document_bytes)
        else:
            blocks = read_stream(file, source, stream, max_document_bytes)
            yield from decode_blocks(file, source, blocks, transform)
        if file.compression:
            hasher.update(stream.checksum().encode())


def can_be_cut(file: InputFile, source: Source) -> bool:
    """True if records of a file can be found from any byte of it; Parquet is cut between row groups."""
    is_lines = file.format == "jsonl" or (file.format == "text" and source.documents == "line")
    return is_lines and not file.compression


def open_span(file: InputFile, source: Source, span: Span) -> BinaryIO:
    """Open a file for the reading of a span; a remote one is read ahead."""
    if file.format == "parquet":
        return file.open()
    return file.open(*((span.start, span.stop) if can_be_cut(file, source) else (0, file.size)))


def open_ahead(
    files: Sequence[InputFile], source: Source, spans: Sequence[Span]
) -> Generator[tuple[Span, BinaryIO | None], None, None]:
    """Spans in order, each with its opened file: of remote files, the next ones are on their way already.

    Local files are not opened here, so that a unit of a thousand files holds one open.
    """
    waiting: deque[tuple[Span, BinaryIO]] = deque()
    try:
        if not any(is_remote(files[span.file].path) for span in spans):
            yield from ((span, None) for span in spans)
            return
        for span in spans:
            waiting.append((span, open_span(files[span.file], source, span)))
            if len(waiting) > FILES_AHEAD:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        for _, raw in waiting:
            raw.close()


def delimiter_of(file: InputFile, source: Source) -> bytes:
    if file.format == "text" and source.documents == "separator":
        return (source.separator or "").encode("utf-8")
    return NEWLINE


def read_stream(
    file: InputFile,
    source: Source,
    stream: DecompressedStream,
    max_document_bytes: int,
    block_bytes: int = BATCH_BYTES,
) -> Iterator[Block]:
    if file.format == "json":
        return read_blocks(stream.read, max_document_bytes, lambda: stream.problem)
    return read_lines(
        stream.readinto,
        0,
        delimiter=delimiter_of(file, source),
        max_bytes=max_document_bytes,
        block_bytes=block_bytes,
        problem=lambda: stream.problem,
    )


def _read_document(
    file: InputFile, source: Source, stream: DecompressedStream, max_document_bytes: int
) -> Iterator[Batch]:
    batches = read_whole_file(file.index, stream.read, max_document_bytes, text_decoder(source))
    if not file.compression:
        yield from batches
        return
    whole = list(batches)
    if stream.problem:
        raw = b"".join(batch.texts.data.tobytes() for batch in whole)
        raw += b"".join(reject.raw for batch in whole for reject in batch.rejects)
        block = Block(memoryview(raw), np.zeros(1, np.int64), 0, *stream.problem)
        whole = [reject_block(file.index, block)]
    yield from whole


def decode_blocks(
    file: InputFile, source: Source, blocks: Iterator[Block], transform: RecordText | None = None
) -> Iterator[Batch]:
    if file.format == "text":
        delimiter, decode = delimiter_of(file, source), text_decoder(source)
        for block in blocks:
            yield decode_records(file.index, block, delimiter, decode)
    elif transform is not None:
        records = _records_decoder(transform, file.id, file.carried or ())
        for block in blocks:
            yield records.decode(file, block)
    else:
        decoder = _decoder(file.text, file.id, file.carried or ())
        for block in blocks:
            yield decoder.decode(file.index, block)


# Cached, as a unit may have a thousand small files.
_decoder = cache(JsonlDecoder)
_records_decoder = cache(JsonlRecords)


def _hashed(blocks: Iterator[Block], hasher: Any) -> Iterator[Block]:
    for block in blocks:
        hasher.update(block.data)
        yield block


def decode_records(file: int, block: Block, delimiter: bytes, decode: Decode = bytes.decode) -> Batch:
    """Decode the documents of a block of lines, or of records that end with a separator."""
    if block.problem:
        return reject_block(file, block)
    data = bytes(block.data)
    marked = block.position == 0 and data.startswith(BOM)
    try:
        if decode is bytes.decode:
            texts = (data[len(BOM) :] if marked else data).decode("utf-8").split(delimiter.decode("utf-8"))
        else:
            records = (data[len(BOM) :] if marked else data).split(delimiter)
            texts = [decode(_without_return(record, delimiter)) for record in records]
    except UnicodeDecodeError:
        return _decode_one_by_one(file, data, block, delimiter, decode)
    if len(texts) > len(block.starts):
        texts.pop()  # the last delimiter is followed by nothing
    if delimiter == NEWLINE and b"\r" in data:
        texts = [text.removesuffix("\r") for text in texts]
    return Batch(file, Texts.of(texts), block.starts + block.position, consumed_bytes=len(data))


def _decode_one_by_one(file: int, data: bytes, block: Block, delimiter: bytes, decode: Decode) -> Batch:
    texts, positions, rejects = [], [], []
    starts = block.starts.tolist()
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        record, position = data[start:end].removesuffix(delimiter), block.position + start
        if position == 0:
            record = record.removeprefix(BOM)
        try:
            text = decode(_without_return(record, delimiter))
        except UnicodeDecodeError as error:
            detail = not_utf8(error, position)
            rejects.append(RecordProblem("invalid_utf8", detail).reject(file, position, record))
            continue
        texts.append(text)
        positions.append(position)
    return Batch(file, Texts.of(texts), np.array(positions, np.int64), None, rejects, len(data))


def _without_return(record: bytes, delimiter: bytes) -> bytes:
    return record.removesuffix(b"\r") if delimiter == NEWLINE else record


def read_whole_file(
    file: int, read: Callable[[int], bytes], max_bytes: int, decode: Decode = bytes.decode
) -> Iterator[Batch]:
    """Read a file as one document; if it is too large, as the pieces of one reject."""
    parts: list[bytes] = []
    size = 0
    while fresh := read(BATCH_BYTES):
        parts.append(fresh)
        size += len(fresh)
        if size > max_bytes:
            yield from _reject_pieces(file, b"".join(parts), read, max_bytes)
            return
    data = b"".join(parts)
    text = data.removeprefix(BOM)
    try:
        decoded = decode(text)
        text = text if decode is bytes.decode else decoded.encode("utf-8")
    except UnicodeDecodeError as error:
        detail = not_utf8(error, len(data) - len(text))
        yield without_documents(file, RecordProblem("invalid_utf8", detail).reject(file, 0, data), size)
        return
    yield Batch(file, Texts.one(text), np.array([0], np.int64), consumed_bytes=size)


def _reject_pieces(file: int, data: bytes, read: Callable[[int], bytes], max_bytes: int) -> Iterator[Batch]:
    detail = (
        f"a file of more than {max_bytes:,} bytes as one document "
        '(documents = "line" or a separator would cut it)'
    )
    position = 0
    while data:
        reject = Reject(file, position, "too_large", detail, data, continued=position > 0)
        yield without_documents(file, reject, len(data))
        position += len(data)
        data = read(BATCH_BYTES)


T = TypeVar("T", Batch, Block)


class FileSlice(NamedTuple):
    """One slice; its batches must be taken before the next slice."""

    number: int
    batches: Iterator[Batch]


class FileEnd(NamedTuple):
    """Totals of a file that was read to its end."""

    slices: int
    checksum: str
    """Checksum of the bytes of the file; for Parquet, of the decoded columns."""


def read_slices(
    file: InputFile,
    source: Source,
    *,
    slice_bytes: int,
    max_document_bytes: int,
    wanted: Callable[[int], bool],
) -> Generator[FileSlice | FileEnd, None, None]:
    """Read a file to its end: the wanted slices in order, then one `FileEnd`."""
    if file.format == "parquet":
        from packline.sources.parquet import group_count

        hasher = Hasher()
        whole = Span(file.index, 0, group_count(file))
        batches = read_span(file, source, whole, max_document_bytes, hasher)
        count = yield from _slices(batches, _rows_size, slice_bytes, wanted, lambda batches: batches)
        yield FileEnd(count, str(hasher.hexdigest()))
        return
    transform = transform_of(source, file.text, max_document_bytes) if source.uses_records else None
    with file.open(0, file.size) as raw:
        check_assumed(file, source, raw)
        stream = DecompressedStream(raw, file.compression)
        blocks = read_stream(file, source, stream, max_document_bytes, CUT_BYTES)

        def decode(blocks: Iterator[Block]) -> Iterator[Batch]:
            return decode_blocks(file, source, _joined(blocks), transform)

        count = yield from _slices(blocks, _block_size, slice_bytes, wanted, decode)
        yield FileEnd(count, stream.checksum())


def _slices(
    parts: Iterator[T],
    size_of: Callable[[T], tuple[int, bool]],
    slice_bytes: int,
    wanted: Callable[[int], bool],
    decode: Callable[[Iterator[T]], Iterator[Batch]],
) -> Generator[FileSlice | FileEnd, None, int]:
    """The wanted slices of a file, of at least `slice_bytes`; return the number of all: there is always one.

    Args:
        parts: of the file, in order.
        size_of: bytes of a part, and whether a slice may begin with it.
        decode: not called for slices that are not wanted.
    """
    count, size = -1, 0

    def numbered() -> Iterator[tuple[int, T]]:
        nonlocal count, size
        for part in parts:
            fresh, may_begin = size_of(part)
            if count < 0 or (size >= slice_bytes and may_begin):
                count, size = count + 1, 0
            size += fresh
            yield count, part

    for number, group in groupby(numbered(), itemgetter(0)):
        if wanted(number):
            yield FileSlice(number, decode(part for _, part in group))
    if count < 0 and wanted(0):
        yield FileSlice(0, decode(iter(())))
    return max(count, 0) + 1


def _block_size(block: Block) -> tuple[int, bool]:
    return len(block.data), not block.continued and len(block.data) > 0


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks of about `BATCH_BYTES`, for fewer calls; what is not whole good records stays as it is."""
    held: list[bytes] = []
    starts: list[np.ndarray] = []
    position = size = 0

    def joined() -> Iterator[Block]:
        if held:
            yield Block(memoryview(b"".join(held)), np.concatenate(starts), position)
            held.clear()
            starts.clear()

    for block in blocks:
        if block.problem:
            yield from joined()
            yield block
            continue
        if not held:
            position, size = block.position, 0
        held.append(bytes(block.data))
        starts.append(block.starts + size)
        size += len(block.data)
        if size + CUT_BYTES > BATCH_BYTES:
            yield from joined()
    yield from joined()


def _rows_size(batch: Batch) -> tuple[int, bool]:
    """Bytes of some rows, and whether a slice may begin with them: never with those that were lost."""
    lost = not len(batch) and any(reject.reason == "corrupt_parquet" for reject in batch.rejects)
    return batch.consumed_bytes, not lost


def piece_checksum(file: InputFile, source: Source, span: Span, max_document_bytes: int) -> str:
    """Checksum of the records that begin in a span, or of a whole file that cannot be cut."""
    hasher = Hasher()
    if file.format == "parquet":
        for _ in read_span(file, source, span, max_document_bytes, hasher):
            pass
    elif file.compression:
        hasher.update(_checksum(file).encode())
    elif can_be_cut(file, source):
        with file.open() as raw:
            start = seek_record(raw, span.start)
            stop = seek_record(raw, span.stop) if span.start < span.stop else start
        return _checksum(file, start, stop)
    else:
        return _checksum(file, span.start, span.stop)
    return str(hasher.hexdigest())


def stream_checksum(file: InputFile, source: Source, max_document_bytes: int) -> str:
    """Checksum of a file that is read slice by slice (`FileEnd`)."""
    if file.format != "parquet":
        return _checksum(file)
    from packline.sources.parquet import group_count

    return piece_checksum(file, source, Span(file.index, 0, group_count(file)), max_document_bytes)


def _checksum(file: InputFile, start: int = 0, stop: int | None = None) -> str:
    hasher = Hasher()
    with file.open() as raw:
        raw.seek(start)
        while data := read_fully(raw, READ_BYTES if stop is None else min(READ_BYTES, stop - start)):
            hasher.update(data)
            start += len(data)
    return str(hasher.hexdigest())
