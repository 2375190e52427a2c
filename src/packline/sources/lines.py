"""Splitting of a byte stream into blocks of whole records, in bounded memory, and decoding of plain text.

A record ends with a delimiter: a newline, or the separator of a text file. A reader of the bytes `[start,
stop)` takes the records that begin in that range, so that readers of adjacent ranges take each record exactly
once:

    bytes     aaaa\\nbbbbbbbb\\ncc\\n
    ranges    [0......)[7.....)[14..)
    records   aaaa, bbbbbbbb   -   cc

A record longer than `max_bytes` is passed on in marked pieces. Blocks are views of one reused buffer: each is
valid until the next one is requested.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO, cast

import numpy as np

from packline.recipe import Source
from packline.sources.batch import BATCH_BYTES, Block, Reason
from packline.storage.inputs import read_fully

NEWLINE = b"\n"
TOO_LARGE = "longer than max_document_bytes"
LONG_RECORD = 1024
"""Average length in bytes above which records are found one by one instead of all at once."""
PROBE_BYTES = 16 << 10

Fill = Callable[[memoryview], int]
"""Like `readinto`: reads bytes into the start of the view; returns their number, 0 at the end."""
Problem = tuple[Reason, str]


def read_lines(
    fill: Fill,
    start: int,
    *,
    stop: int | None = None,
    delimiter: bytes = NEWLINE,
    max_bytes: int,
    block_bytes: int = BATCH_BYTES,
    problem: Callable[[], Problem | None] = lambda: None,
) -> Iterator[Block]:
    """Read blocks of whole records from a reader at offset `start`, where a record begins.

    Args:
        stop: records that begin at or after it are not taken.
        max_bytes: maximum size of a record; a longer one comes in marked pieces.
        problem: called at the end of the bytes; returns the reason if they were truncated within a record.

    >>> import io
    >>> lines = io.BytesIO(b"a\\nb\\nc")
    >>> [bytes(block.data) for block in read_lines(lines.readinto, 0, stop=3, max_bytes=9)]
    [b'a\\nb\\n']
    """
    buffer, held, searched, position = bytearray(2 * block_bytes), 0, 0, start
    while True:
        if held + block_bytes > len(buffer):
            buffer = buffer[:held] + bytearray(held + block_bytes)
        fresh = _fill_fully(fill, memoryview(buffer)[held : held + block_bytes])
        size = held + fresh
        if stop is not None and position + size >= stop:
            # A record that begins at `stop` ends the range, so the delimiter before it is looked for.
            found = buffer.find(delimiter, max(stop - position - len(delimiter), 0), size)
            if found >= 0:
                yield from _whole_records(buffer, found + len(delimiter), position, delimiter, max_bytes)
                return
        held = size
        if cut := _last_end(buffer, size, delimiter, searched):
            yield from _whole_records(buffer, cut, position, delimiter, max_bytes)
            position += cut
            held = size - cut
            buffer[:held] = buffer[cut:size]
        if not fresh:
            yield from _last_record(buffer, held, position, delimiter, max_bytes, problem())
            return
        searched = max(held - len(delimiter) + 1, 0)
        if held > max_bytes:
            rest, position = yield from _skip_long(fill, buffer[:held], position, delimiter, block_bytes)
            held, searched = len(rest), 0
            buffer[:held] = rest
            if stop is not None and position >= stop:
                return


def _last_end(buffer: bytearray, size: int, delimiter: bytes, searched: int) -> int:
    """End of the last whole record, 0 if there is none; no delimiter begins before `searched`."""
    if not any(delimiter.endswith(delimiter[:length]) for length in range(1, len(delimiter))):
        found = buffer.rfind(delimiter, searched, size)
        return found + len(delimiter) if found >= 0 else 0
    # Which of two overlapping delimiters counts is decided from the left.
    end, at = 0, searched
    while (found := buffer.find(delimiter, at, size)) >= 0:
        end = at = found + len(delimiter)
    return end


def _fill_fully(fill: Fill, view: memoryview) -> int:
    filled = 0
    while filled < len(view) and (fresh := fill(view[filled:])):
        filled += fresh
    return filled


def _whole_records(
    buffer: bytearray, size: int, position: int, delimiter: bytes, max_bytes: int
) -> Iterator[Block]:
    """One block; or one block per record, if it is large enough to contain a record that is too long."""
    data = memoryview(buffer)[:size]
    starts = _record_starts(buffer, size, delimiter)
    if size <= max_bytes:
        if size:
            yield Block(data, starts, position)
        return
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), size], strict=True):
        problem: Reason | None = "too_large" if end - begin > max_bytes else None
        detail = TOO_LARGE if problem else ""
        yield Block(data[begin:end], np.zeros(1, np.int64), position + begin, problem, detail)


def _last_record(
    buffer: bytearray, size: int, position: int, delimiter: bytes, max_bytes: int, problem: Problem | None
) -> Iterator[Block]:
    """Data after the last delimiter: a record, or a reject if the bytes were truncated."""
    if problem is None:
        yield from _whole_records(buffer, size, position, delimiter, max_bytes)
    else:
        yield Block(memoryview(buffer)[:size], np.zeros(1, np.int64), position, *problem)


def _record_starts(buffer: bytearray, size: int, delimiter: bytes) -> np.ndarray:
    """Offsets int64 `[D]` at which the records of a block begin."""
    short = buffer.count(delimiter, 0, min(size, PROBE_BYTES)) * LONG_RECORD > min(size, PROBE_BYTES)
    if short and len(delimiter) == 1:
        ends = (np.frombuffer(buffer, np.uint8, size) == delimiter[0]).nonzero()[0] + 1
    else:
        found, at = [], 0
        while (place := buffer.find(delimiter, at, size)) >= 0:
            at = place + len(delimiter)
            found.append(at)
        ends = np.array(found, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])
    return starts[:-1] if len(ends) and ends[-1] == size else starts


def _skip_long(
    fill: Fill, data: bytearray, position: int, delimiter: bytes, block_bytes: int
) -> Generator[Block, None, tuple[bytearray, int]]:
    """Pass on a record in pieces up to its end; return the bytes read after it, and their offset."""
    fresh = bytearray(block_bytes)
    continued, keep = False, len(delimiter) - 1

    def piece(end: int) -> Block:
        return Block(
            memoryview(bytes(data[:end])), np.zeros(1, np.int64), position, "too_large", TOO_LARGE, continued
        )

    while True:
        found = data.find(delimiter)
        if found >= 0:
            cut = found + len(delimiter)
            yield piece(cut)
            return data[cut:], position + cut
        cut = len(data) - keep
        if cut > 0:
            yield piece(cut)
            continued = True
            position += cut
            data = data[cut:]
        count = _fill_fully(fill, memoryview(fresh))
        if not count:
            if data:
                yield piece(len(data))
            return bytearray(), position + len(data)
        data = data + fresh[:count]


def reader_of(raw: BinaryIO) -> Fill:
    return cast("Fill", raw.readinto)  # type: ignore[attr-defined]


def seek_record(file: BinaryIO, start: int, delimiter: bytes = NEWLINE) -> int:
    """Move to the first record that begins at or after `start`; return its offset.

    Only for delimiters that cannot overlap themselves, of which a newline is one.
    """
    if start == 0:
        file.seek(0)
        return 0
    at = start - len(delimiter)
    file.seek(at)
    held = b""
    while fresh := read_fully(file, 1 << 16):
        data = held + fresh
        found = data.find(delimiter)
        if found >= 0:
            begin = at + found + len(delimiter)
            file.seek(begin)
            return begin
        held = data[len(data) - len(delimiter) + 1 :] if len(delimiter) > 1 else b""
        at += len(data) - len(held)
    return at + len(held)


MARKS_OF_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
Decode = Callable[[bytes], str]


def text_decoder(source: Source) -> Decode:
    """Function from the bytes of a source's plain text to text; raises UnicodeDecodeError."""
    charset = source.charset or "utf-8"
    if not source.newlines:
        return bytes.decode if not source.charset else lambda data: data.decode(charset)
    return lambda data: data.decode(charset).replace("\r\n", "\n").replace("\r", "\n")


def not_utf8(error: UnicodeDecodeError, start: int | None = None) -> str:
    """Description of why bytes are not in their encoding; with the place, if they begin at `start`."""
    name = "UTF-8" if error.encoding == "utf-8" else error.encoding
    place = "" if start is None else f" at offset {start + error.start}"
    return f"byte 0x{error.object[error.start]:02x}{place} is not {name}: {error.reason}"


def likely_charset(head: bytes) -> str:
    return "utf-16" if head.startswith(MARKS_OF_UTF16) else "latin-1"
