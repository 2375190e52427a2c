"""Cut a stream of bytes into blocks of whole records, in bounded memory.

A record ends with a delimiter: a newline, or the separator of a text file. A reader of the bytes
`[start, stop)` takes the records that begin there, so that readers of neighbouring ranges take each
record exactly once, whatever the ranges:

    bytes     aaaa\\nbbbbbbbb\\ncc\\n
    ranges    [0......)[7.....)[14..)
    records   aaaa, bbbbbbbb   -   cc

A record longer than `max_bytes` is passed on in pieces that say so, and never held whole.
Cost: one copy of the bytes. It does not look inside records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from packline.filesystem import read_fully
from packline.sources.batch import BATCH_BYTES, Block, Reason

NEWLINE = b"\n"
TOO_LARGE = "longer than max_document_bytes"


def read_blocks(
    read: Callable[[int], bytes],
    start: int,
    *,
    stop: int | None = None,
    delimiter: bytes = NEWLINE,
    max_bytes: int,
    block_bytes: int = BATCH_BYTES,
) -> Iterator[Block]:
    """Blocks of whole records from a reader that stands at `start`, which begins a record.

    Args:
        read: gives the next bytes, at most as many as asked for, none at the end.
        stop: records that begin at or after it are not taken.

    >>> import io
    >>> [block.data for block in read_blocks(io.BytesIO(b"a\\nb\\nc").read, 0, stop=3, max_bytes=9)]
    [b'a\\nb\\n']
    """
    held, position = b"", start
    while True:
        fresh = read(block_bytes)
        data = held + fresh if held else fresh
        if not fresh:
            yield from _whole_records(data, position, delimiter, max_bytes)
            return
        if stop is not None and position + len(data) >= stop:
            # A record that begins at `stop` ends the range, so the delimiter before it is looked for.
            found = data.find(delimiter, max(stop - position - len(delimiter), 0))
            if found >= 0:
                yield from _whole_records(data[: found + len(delimiter)], position, delimiter, max_bytes)
                return
        searched_from = max(len(held) - len(delimiter) + 1, 0)
        cut = data.rfind(delimiter, searched_from) + len(delimiter)
        if cut >= len(delimiter):
            yield from _whole_records(data[:cut], position, delimiter, max_bytes)
            position += cut
            held = data[cut:]
        else:
            held = data
        if len(held) > max_bytes:
            rest = yield from _skip_long(read, held, position, delimiter, block_bytes)
            held, position = rest
            if stop is not None and position >= stop:
                return


def _whole_records(data: bytes, position: int, delimiter: bytes, max_bytes: int) -> Iterator[Block]:
    """One block; or, where it is large enough to hold a record that is too long, a block a record."""
    if len(data) <= max_bytes:
        if data:
            yield Block(data, position)
        return
    start = 0
    while start < len(data):
        found = data.find(delimiter, start)
        end = found + len(delimiter) if found >= 0 else len(data)
        record = data[start:end]
        problem: Reason | None = "too_large" if len(record) > max_bytes else None
        yield Block(record, position + start, problem, TOO_LARGE if problem else "")
        start = end


def _skip_long(
    read: Callable[[int], bytes], data: bytes, position: int, delimiter: bytes, block_bytes: int
) -> Iterator[Block]:
    """Pass on a record in pieces up to its end; return what was read beyond it, and where that is."""
    continued, keep = False, len(delimiter) - 1
    while True:
        found = data.find(delimiter)
        if found >= 0:
            cut = found + len(delimiter)
            yield Block(data[:cut], position, "too_large", TOO_LARGE, continued)
            return data[cut:], position + cut
        cut = len(data) - keep
        if cut > 0:
            yield Block(data[:cut], position, "too_large", TOO_LARGE, continued)
            continued = True
            position += cut
        fresh = read(block_bytes)
        if not fresh:
            if data[cut:]:
                yield Block(data[cut:], position, "too_large", TOO_LARGE, continued)
            return b"", position + len(data[cut:])
        data = data[cut:] + fresh


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


def mark_broken_end(
    blocks: Iterator[Block], delimiter: bytes, problem: Callable[[], tuple[Reason, str] | None]
) -> Iterator[Block]:
    """Take the record at the end of a stream apart from the others where the stream broke off.

    Args:
        problem: asked once the blocks are out: what was wrong, or None if all is well.
    """
    last: Block | None = None
    for block in blocks:
        if last is not None:
            yield last
        last = block
    found = problem()
    if found is None:
        if last is not None:
            yield last
        return
    last = last or Block(b"", 0)
    cut = last.data.rfind(delimiter) + len(delimiter)
    cut = cut if cut >= len(delimiter) else 0
    if cut:
        yield Block(last.data[:cut], last.position, last.problem, last.detail, last.continued)
    reason, detail = found
    yield Block(last.data[cut:], last.position + cut, reason, detail)
