"""Elements of a file that is one JSON array of records, in bounded memory.

Only brackets, commas and strings are scanned; the caller decodes the elements. So an element that is not JSON
is one bad record, unless its brackets or quotes are wrong. Arrays inside an object are not found. Speed: 40
MB/s.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from packline.sources.batch import BATCH_BYTES, Block, Reason
from packline.sources.jsonl import BOM, decode_json

STRING = rb'"(?:[^"\\]++|\\.)*+"'
BETWEEN = re.compile(rb'(?:[^][{},"]++|' + STRING + rb')*+([][{},"])', re.DOTALL)
INSIDE = re.compile(rb'(?:[^][{}"]++|' + STRING + rb')*+([][{}"])', re.DOTALL)
"""The next bracket or comma after whole strings; a quote if a string continues beyond these bytes."""
STRING_END = re.compile(rb'(["\\])')
BLOCK_BYTES = 1 << 20
BLANK = b" \t\r\n"

Problem = tuple[Reason, str]


class Element(NamedTuple):
    position: int
    """Byte offset in the (decompressed) file."""
    data: bytes
    """Bytes of the element, without surrounding white space."""
    problem: Problem | None = None
    continued: bool = False
    """True for later pieces of an element that is too long."""


def read_array(
    read: Callable[[int], bytes], max_bytes: int, problem: Callable[[], Problem | None] = lambda: None
) -> Iterator[Element]:
    """Read the elements of an array, in order.

    Args:
        read: returns up to the given number of bytes, none at the end.
        max_bytes: maximum size of an element; a longer one is returned in marked pieces.
        problem: called at the end of the bytes; returns the reason if they were cut short.
    """
    cutter = _Cutter(max_bytes)
    while data := read(BLOCK_BYTES):
        yield from cutter.take(data)
    yield from cutter.finish(problem())


def starts_array(head: bytes) -> bool:
    return head.removeprefix(BOM).lstrip(BLANK).startswith(b"[")


def first_element(head: bytes) -> Any:
    """First element of an array; None if `head` does not contain all of it."""
    first = next(read_array(io.BytesIO(head).read, len(head)), None)
    try:
        return decode_json(first.data) if first and not first.problem else None
    except (ValueError, RecursionError):
        return None


def read_blocks(
    read: Callable[[int], bytes], max_bytes: int, problem: Callable[[], Problem | None] = lambda: None
) -> Iterator[Block]:
    """Read the elements of an array as blocks of JSON lines, with their offsets in the file.

    Arguments as in `read_array`.

    >>> import io
    >>> [block] = read_blocks(io.BytesIO(b'[{"a": 1},\\n {"a": 2}]').read, 99)
    >>> bytes(block.data), block.positions.tolist()
    (b'{"a": 1}\\n{"a": 2}\\n', [1, 12])
    """
    held: list[Element] = []
    size = 0
    for one in read_array(read, max_bytes, problem):
        wrong = one.problem or (None if one.data else ("malformed_json", "an element without a value"))
        if held and (wrong or size >= BATCH_BYTES):
            yield _block(held)
            held, size = [], 0
        if wrong:
            reason, detail = wrong
            yield Block(
                memoryview(one.data), np.zeros(1, np.int64), one.position, reason, detail, one.continued
            )
        else:
            held.append(one)
            size += len(one.data)
    if held:
        yield _block(held)


def _block(elements: list[Element]) -> Block:
    ends = np.cumsum([len(one.data) + 1 for one in elements])
    data = b"".join(b"%b\n" % one.data for one in elements)
    positions = np.array([one.position for one in elements], np.int64)
    return Block(memoryview(data), np.append(0, ends[:-1]), int(positions[0]), places=positions)


class _Cutter:
    """Parser state at the end of the bytes seen so far."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._base = 0  # offset of the buffer in the file
        self._at = 0  # end of the scanned part, in the buffer
        self._start = 0  # start of the element, in the buffer
        self._depth = 0
        self._in_string = self._too_long = self._closed = False

    def take(self, data: bytes) -> Iterator[Element]:
        """Elements that end in these bytes, which follow the previous ones."""
        self._buffer += data
        while not self._closed:
            if self._in_string:
                mark = STRING_END.search(self._buffer, self._at)
            else:
                mark = (INSIDE if self._depth > 1 else BETWEEN).match(self._buffer, self._at)
            if mark is None:
                self._at = max(self._at, len(self._buffer))
                break
            character, self._at = mark[1], mark.end()
            if character == b"\\":
                self._at += 1  # an escaped character ends nothing; it may be in the next bytes
            elif character == b'"':
                self._in_string = not self._in_string
            elif character in b"[{":
                self._depth += 1
                if self._depth == 1:
                    self._start = self._at
            elif character == b",":
                yield from self._element(mark.end() - 1, last=False)
                self._start = self._at
            else:
                self._depth -= 1
                if self._depth == 0:
                    yield from self._element(mark.end() - 1, last=True)
                    self._closed, self._start = True, self._at
        yield from self._shorten()

    def finish(self, problem: Problem | None) -> Iterator[Element]:
        """Report an unfinished array or trailing data at the end of the input."""
        if not self._closed:
            what = problem or ("malformed_json", "the JSON array is not closed")
        else:
            what = problem or ("malformed_json", "something stands behind the end of the JSON array")
        rest = bytes(self._buffer[self._start :])
        if problem or not self._closed or rest.strip(BLANK):
            yield Element(self._base + self._start, rest, what, self._too_long)

    def _element(self, end: int, *, last: bool) -> Iterator[Element]:
        data = bytes(self._buffer[self._start : end])
        position = self._base + self._start
        if not self._too_long:
            position += len(data) - len(data.lstrip(BLANK))
            data = data.lstrip(BLANK)
        if self._too_long or len(data) > self._max_bytes:
            yield Element(position, data, self._limit(), self._too_long)
        elif not last or data.strip(BLANK):
            yield Element(position, data.strip(BLANK))
        self._too_long = False

    def _shorten(self) -> Iterator[Element]:
        """Drop the bytes already returned, and return a piece of an element that is too long already."""
        if len(self._buffer) - self._start > self._max_bytes:
            self._at = max(self._at, len(self._buffer))
            data = bytes(self._buffer[self._start :])
            yield Element(self._base + self._start, data, self._limit(), self._too_long)
            self._too_long, self._start = True, len(self._buffer)
        del self._buffer[: self._start]
        self._base += self._start
        self._at -= self._start
        self._start = 0

    def _limit(self) -> Problem:
        return "too_large", f"an element longer than {self._max_bytes:,} bytes"
