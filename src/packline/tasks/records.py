"""Records of JSONL, JSON and Parquet files, whole: each with its place, and its bytes where it is bad.

    line of JSON ──> (position, value)          position: byte offset in the (decompressed) file
    element of an array ─> (position, value)    the same, of a file that is one JSON array
    row of Parquet ─> (position, value)         position: number of the row
    what cannot be read ──> Reject

Readers of text take one field of a record and skip the rest; a conversation is the whole record, so each line
is decoded to Python's own values. Arrow says null for what a record of JSON would not have; it is left out of
objects, since calls of different tools share one column.

JSON may hold what text and numbers here may not: lone surrogates, and numbers beyond a float. The decoder
refuses both wherever they are, so a record that it refuses is read again by Python's own: what nobody asks
for costs no conversation. Such a record is `unclean`, and `check_clean` looks at what is made of it.

Cost: about 100 MB/s, of an array 30. Memory: a block of lines, or of rows.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from packline.errors import InputError
from packline.filesystem import open_input
from packline.sources.batch import Block, Reason, Reject, reject_block
from packline.sources.compression import DecompressedStream
from packline.sources.delimited import Fill, read_blocks, seek_record
from packline.sources.files import COMPRESSED_NAMES, InputFile
from packline.tasks.json_array import BOM, read_array
from packline.transforms.conversations import Malformed

MAX_RECORD_BYTES = 64 << 20
"""Of one line or element: a longer one is a bad record."""
DECODE = msgspec.json.Decoder().decode
SURROGATE = re.compile("[\ud800-\udfff]")
LONGEST_INT = 4000
"""Digits; Python refuses to read more than 4,300."""
ROWS = 256
"""Of a Parquet file that are in memory together."""


class Record(NamedTuple):
    """One record as it was read."""

    position: int
    value: Any
    raw: bytes | None
    """Its line or element; None where it was a row."""
    where: str = ""
    """What messages begin with, where a position alone is hard to find: "element 3: "."""
    unclean: bool = False
    """Whether there are lone surrogates in it, or numbers out of range (which are infinite)."""

    def reject(self, file: int, reason: Reason, detail: str) -> Reject:
        """The same as a bad record, verbatim; a row as JSON."""
        raw = self.raw
        if raw is None:
            raw = msgspec.json.encode(self.value, enc_hook=str)
        detail = f"{self.where}{detail}".encode("utf-8", "backslashreplace").decode()
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
        yield from (
            _read_table(file) if plain_name(file.name).endswith(".csv") else _read_array(file, max_bytes)
        )
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
    for block in blocks:
        if block.problem:
            yield from reject_block(file, block).rejects
            continue
        data = bytes(block.data)
        starts = block.starts.tolist()
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            line = data[start:end].removesuffix(b"\n")
            position = block.position + start
            text = line.removeprefix(BOM) if position == 0 else line
            if text.strip():
                yield _decode(file, position, text, line)


def _decode(file: int, position: int, text: bytes, raw: bytes, where: str = "") -> Record | Reject:
    try:
        return Record(position, DECODE(text), raw, where)
    except UnicodeDecodeError as error:
        return Reject(file, position, "invalid_utf8", f"{where}not UTF-8: {error.reason}", raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        try:
            return Record(position, decode_unclean(text), raw, where, unclean=True)
        except (ValueError, RecursionError):
            return Reject(file, position, "malformed_json", f"{where}{error}", raw)


def decode_unclean(text: bytes) -> Any:
    """The value of JSON with lone surrogates in strings, or numbers out of range, which become infinite.

    Raises:
        ValueError: it is not JSON, or not UTF-8.

    >>> decode_unclean(b'{"title": "cut \\\\ud83d", "id": -1e400}')
    {'title': 'cut \\ud83d', 'id': -inf}
    """
    return json.loads(text.decode("utf-8"), parse_int=_read_int, parse_constant=_refuse_constant)


def _read_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_INT else float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_clean(value: Any) -> None:
    """See that no lone surrogate and no number out of range is in what is made of an unclean record.

    Raises:
        Malformed: with reason `lone_surrogate` or `malformed_json`.

    >>> check_clean({"a": ["text", 1.5]})
    >>> check_clean({"a": ["text", float("inf")]})
    Traceback (most recent call last):
    packline.transforms.conversations.Malformed: malformed_json: a number out of range
    """
    if isinstance(value, str):
        if found := SURROGATE.search(value):
            raise Malformed("lone_surrogate", f"a lone surrogate \\u{ord(found[0]):04x}")
    elif isinstance(value, float):
        if math.isinf(value):
            raise Malformed("malformed_json", "a number out of range")
    elif isinstance(value, dict):
        for name, inner in value.items():
            check_clean(name)
            check_clean(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_clean(inner)


def _read_array(file: InputFile, max_bytes: int) -> Iterator[Record | Reject]:
    with open_input(file.path) as raw:
        stream = DecompressedStream(raw, file.compression) if file.compression else None
        elements = read_array((stream or raw).read, max_bytes, lambda: stream.problem if stream else None)
        number = -1
        for one in elements:
            number += not one.continued
            if one.problem:
                reason, detail = one.problem
                detail = f"element {number}: {detail}"
                yield Reject(file.index, one.position, reason, detail, one.data, continued=one.continued)
            else:
                yield _decode(file.index, one.position, one.data, one.data, f"element {number}: ")


def first_element(head: bytes) -> Any:
    """The first element of an array; None where the head of its file does not hold it whole."""
    first = next(read_array(io.BytesIO(head).read, len(head)), None)
    found = _decode(0, 0, first.data, first.data) if first and not first.problem else None
    return found.value if isinstance(found, Record) else None


def plain_name(name: str) -> str:
    """A file's name in small letters, without the ending of its compression."""
    plain = name.lower()
    for ending in COMPRESSED_NAMES:
        plain = plain.removesuffix(ending)
    return plain


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
                        yield Record(row, _without_nulls(value), None)
                        row += 1
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield from lost_rows(file.index, group, row, end, OSError(str(error))).rejects
            row = end


def _without_nulls(value: Any) -> Any:
    """The same without what objects do not have; a list keeps its places."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
