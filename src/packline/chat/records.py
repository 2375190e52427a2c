"""Whole records of JSONL, JSON and Parquet files: each with its position, and its bytes if it is bad.

    line of JSON ──> (position, value)          position: byte offset in the (decompressed) file
    element of an array ─> (position, value)    the same, of a file that is one JSON array
    row of Parquet ─> (position, value)         position: number of the row
    unreadable record ──> Reject

Readers of text take one field of a record and skip the rest; a conversation is the whole record, so each line
is decoded to Python values. Arrow has nulls where a JSON record would lack the field; they are removed from
objects, since calls of different tools share one column. Cost: about 100 MB/s, 30 MB/s for an array. Memory:
one block of lines or rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from packline.chat.json_array import BOM, read_array
from packline.errors import InputError
from packline.sources.batch import Block, Reason, Reject, reject_block
from packline.sources.compression import DecompressedStream
from packline.sources.delimited import Fill, read_blocks, seek_record
from packline.sources.files import COMPRESSED_NAMES, DEFAULT_ID, InputFile
from packline.sources.odd_json import decode_json
from packline.storage.inputs import open_input

MAX_RECORD_BYTES = 64 << 20
"""Maximum bytes of a line or element: a longer one is a bad record."""
DECODE = msgspec.json.Decoder().decode
ROWS = 256
"""Rows of a Parquet file to hold in memory."""


class Record(NamedTuple):
    """One record as read."""

    position: int
    value: Any
    raw: bytes | None
    """Bytes of its line or element; None for a row."""
    where: str = ""
    """Prefix for messages if a position alone is hard to find: "element 3: "."""
    odd: bool = False
    """True if it may contain lone surrogates, or numbers out of Python's range as `msgspec.Raw`."""

    def reject(self, file: int, reason: Reason, detail: str) -> Reject:
        """Turn it into a bad record, verbatim; a row as JSON."""
        raw = self.raw
        if self.odd:
            detail = detail.encode("utf-8", "backslashreplace").decode("utf-8")
        if raw is None:
            raw = msgspec.json.encode(self.value, enc_hook=str)
        return Reject(file, self.position, reason, f"{self.where}{detail}", raw)


def read_records(file: InputFile, start: int, stop: int, max_bytes: int) -> Iterator[Record | Reject]:
    """Records that begin in a range of a file, in order.

    Args:
        start: first byte, if the file can be split; else 0.
        stop: end of the range (exclusive); else the file's size.
        max_bytes: maximum size of a line; a longer one is a bad record.
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
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = error
    except RecursionError as error:
        return Reject(file, position, "malformed_json", f"{where}{error}", raw)
    try:
        return Record(position, decode_json(text), raw, where, odd=True)
    except UnicodeDecodeError as error:
        return Reject(file, position, "invalid_utf8", f"{where}not UTF-8: {error.reason}", raw)
    except (ValueError, RecursionError):
        return Reject(file, position, "malformed_json", f"{where}{reason}", raw)


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
    """First element of an array; None if `head` does not contain all of it."""
    first = next(read_array(io.BytesIO(head).read, len(head)), None)
    try:
        return decode_json(first.data) if first and not first.problem else None
    except (ValueError, RecursionError):
        return None


def plain_name(name: str) -> str:
    """File name in lower case, without the extension of its compression."""
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
    """Rows of CSV as lists of strings, without the header; a position is the number of the row."""
    try:
        text = read_whole(file).decode("utf-8-sig")
        for number, row in enumerate(csv.reader(io.StringIO(text, newline=""), strict=True)):
            if row and not (number == 0 and row[0] == "question"):
                yield Record(number, row, None)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file.path} is not CSV in UTF-8: {error}") from error


def _read_rows(file: InputFile) -> Iterator[Record | Reject]:
    import pyarrow as pa

    from packline.sources.odd_values import row_values
    from packline.sources.parquet import lost_rows, open_parquet

    with open_input(file.path) as raw:
        parquet = open_parquet(raw, file.path)
        row = 0
        for group in range(parquet.metadata.num_row_groups):
            end = row + parquet.metadata.row_group(group).num_rows
            try:
                for batch in parquet.iter_batches(ROWS, row_groups=[group], use_threads=False):
                    values, odd = row_values(batch)
                    for value in values:
                        yield _row(file.index, row, value, odd)
                        row += 1
            except (pa.ArrowException, OSError) as error:
                yield from lost_rows(file.index, group, row, end, OSError(str(error))).rejects
            row = end


def _row(file: int, row: int, value: dict[str, Any], odd: set[str]) -> Record | Reject:
    """Record of a row, without values that Python cannot represent; invalid text makes a bad row."""
    from packline.sources.odd_values import Odd

    for name in odd:
        if isinstance(one := value[name], Odd):
            value[name] = one.text
            if one.reason == "invalid_utf8" and name != DEFAULT_ID:
                return Record(row, value, None).reject(file, one.reason, f"column {name}: {one.detail}")
    return Record(row, _without_nulls(value), None)


def _without_nulls(value: Any) -> Any:
    """Remove the nulls of objects; lists keep theirs."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
