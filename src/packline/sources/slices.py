"""Slices of a file that cannot be cut before it is read: a compressed file, separator text, a huge row group.

    x.jsonl.zst ──decompress──> [slice 0][slice 1][slice 2]...   each committed like a unit

Several processes may read the same file, each for other slices. A slice has whole records, and at least
`slice_bytes` of (decompressed) text; its end depends on the file alone. A slice that is not wanted is
decompressed, and its record ends are found, but nothing is decoded (except rows of Parquet, whose checksum is
theirs).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, TypeVar

import numpy as np

from packline.fingerprint import Hasher
from packline.recipe import Source
from packline.sources.batch import BATCH_BYTES, CUT_BYTES, Batch, Block
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile, check_assumed
from packline.sources.reader import Span, decode_blocks, read_span, read_stream
from packline.sources.record_text import transform_of

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
