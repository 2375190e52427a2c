"""Slices of a file that cannot be cut before it is read: a compressed file, separator text, a huge row group.

Such a file can only be read from its start, so the process that encodes it reads all of it, and takes the
slices that are wanted; several processes may read the same file, each for other slices. A slice has whole
records, and at least `slice_bytes` of (decompressed) text. The ends of slices depend on the file alone, never
on the reader.

    x.jsonl.zst ──decompress──> [slice 0][slice 1][slice 2]...   each committed like a unit

Cost of a slice that is not wanted: it is decompressed, and its record ends are found, but nothing is decoded.
Rows of Parquet are decoded in any case, since the checksum is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from packline.fingerprint import Hasher
from packline.recipe import Source
from packline.sources.batch import BATCH_BYTES, CUT_BYTES, Batch, Block
from packline.sources.compression import DecompressedStream
from packline.sources.files import InputFile, check_assumed
from packline.sources.lines import read_lines
from packline.sources.reader import Span, decode_blocks, delimiter_of, read_span

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
    """Read a file to its end: the wanted slices in order, then one `FileEnd`.

    Args:
        wanted: called with the number of each slice when it begins.
    """
    if file.format == "parquet":
        from packline.sources.parquet import group_count

        hasher = Hasher()
        whole = Span(file.index, 0, group_count(file))
        rows = _Cutter(read_span(file, source, whole, max_document_bytes, hasher), _rows_size, slice_bytes)
        yield from rows.slices(wanted, lambda batches: batches)
        yield FileEnd(rows.count, str(hasher.hexdigest()))
        return
    with file.open(0, file.size) as raw:
        check_assumed(file, source, raw)
        stream = DecompressedStream(raw, file.compression)
        blocks = read_lines(
            stream.readinto,
            0,
            delimiter=delimiter_of(file, source),
            max_bytes=max_document_bytes,
            block_bytes=CUT_BYTES,
            problem=lambda: stream.problem,
        )
        cutter = _Cutter(blocks, _block_size, slice_bytes)
        decode = partial(decode_blocks, file, source, max_document_bytes)
        yield from cutter.slices(wanted, lambda blocks: decode(_joined(blocks)))
        yield FileEnd(cutter.count, stream.checksum())


def _block_size(block: Block) -> tuple[int, bool]:
    """Bytes of a block, and whether a slice may begin with it."""
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


class _Cutter(Generic[T]):
    """Parts of a file in order, cut into slices of at least `slice_bytes`; there is always a first slice.

    Args:
        size_of: bytes of a part, and whether a slice may begin with it.
    """

    def __init__(
        self, parts: Iterator[T], size_of: Callable[[T], tuple[int, bool]], slice_bytes: int
    ) -> None:
        self._parts: Iterator[T] = parts
        self._size_of: Callable[[T], tuple[int, bool]] = size_of
        self._slice_bytes = slice_bytes
        self._first: T | None = None
        self._ended = False
        self.count = 0
        """Slices so far."""

    def slices(
        self, wanted: Callable[[int], bool], decode: Callable[[Iterator[T]], Iterator[Batch]]
    ) -> Iterator[FileSlice]:
        """The wanted slices; of the others nothing is decoded."""
        while not self._ended:
            number, parts = self.count, self._slice()
            self.count += 1
            if wanted(number):
                yield FileSlice(number, decode(parts))
            for _ in parts:
                pass

    def _slice(self) -> Iterator[T]:
        """Parts of the next slice."""
        size = 0
        while True:
            part, self._first = self._first, None
            if part is None and (part := next(self._parts, None)) is None:
                self._ended = True
                return
            fresh, may_begin = self._size_of(part)
            if size >= self._slice_bytes and may_begin:
                self._first = part
                return
            size += fresh
            yield part
