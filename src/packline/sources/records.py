"""Whole records of JSONL, JSON, CSV and Parquet files, for conversations and evaluation sets.

Arrow has nulls where a JSON record would lack the field; they are removed from objects, since calls of
different tools share one column. Positions are byte offsets in the (decompressed) file, or numbers of rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from packline.errors import InputError
from packline.sources.batch import Reason, Reject, reject_block
from packline.sources.compression import DecompressedStream, detect_compression
from packline.sources.files import DEFAULT_ID, InputFile, plain_name
from packline.sources.json_array import read_blocks
from packline.sources.jsonl import BOM, decode_json, has_raw, is_utf8
from packline.sources.lines import read_lines, reader_of, seek_record
from packline.sources.listing import JSON_LINES, expand
from packline.storage.inputs import InputState, open_input

MAX_RECORD_BYTES = 64 << 20
"""Maximum bytes of a line or element: a longer one is a bad record."""
DECODE = msgspec.json.Decoder().decode
ROWS = 256
"""Rows of a Parquet file to hold in memory."""
TEST = re.compile(r"(?:^|[/_.-])test(?:[/_.-]|$)", re.IGNORECASE)
ENDINGS = (*JSON_LINES, ".json", ".csv", ".parquet")


class Record(NamedTuple):
    position: int
    value: Any
    raw: bytes | None
    """Bytes of its line or element; None for a row."""
    where: str = ""
    """Prefix for messages if a position alone is hard to find: "element 3: "."""
    odd: bool = False
    """True if it may contain lone surrogates, or numbers out of Python's range as `msgspec.Raw`."""
    lost_id: bool = False
    """True if the row has an id that is no valid Unicode, and null in `value`."""

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
    if file.format == "text" and plain_name(file.name).endswith(".csv"):
        yield from _read_table(file)
        return
    is_array = file.format != "jsonl"
    with file.open() as raw:
        stream = DecompressedStream(raw, file.compression)
        if is_array:
            blocks = read_blocks(stream.read, max_bytes, lambda: stream.problem)
        elif file.compression:
            blocks = read_lines(stream.readinto, 0, max_bytes=max_bytes, problem=lambda: stream.problem)
        elif (begin := seek_record(raw, start)) < stop:
            blocks = read_lines(reader_of(raw), begin, stop=stop, max_bytes=max_bytes)
        else:
            return
        number = -1
        for block in blocks:
            for row, position in enumerate(block.positions.tolist()):
                number += not block.continued
                where = f"element {number}: " if is_array else ""
                if block.problem:
                    for bad in reject_block(file.index, block).rejects:
                        bad.detail = where + bad.detail
                        yield bad
                    continue
                line = block.line(row)
                text = line.removeprefix(BOM) if position == 0 else line
                if text.strip():
                    yield _decode(file.index, position, text, line, where)


def first_objects(file: InputFile, most: int) -> tuple[list[dict[str, Any]], int]:
    """The objects among the first records of a file, as JSON has them, and the number of bad records."""
    read = islice(read_records(file, 0, file.size, MAX_RECORD_BYTES), most)
    found = [one for one in read if isinstance(one, Record) or not one.continued]
    values = [usable(one.value) for one in found if isinstance(one, Record)]
    records = [msgspec.to_builtins(value) for value in values if isinstance(value, dict)]
    return records, len(found) - len(records)


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


def _table(data: bytes, path: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not CSV in UTF-8: {error}") from error


def _read_table(file: InputFile) -> Iterator[Record]:
    """Rows of CSV as lists of strings, without the header; a position is the number of the row."""
    for number, row in enumerate(_table(read_bytes(file.path, file.state), file.path)):
        if row and not (number == 0 and row[0] == "question"):
            yield Record(number, row, None)


def _read_rows(file: InputFile) -> Iterator[Record | Reject]:
    import pyarrow as pa

    from packline.sources.parquet import lost_rows, open_parquet, row_values

    with file.open() as raw:
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
            except InputError:
                raise
            except (pa.ArrowException, OSError) as error:
                yield from lost_rows(file.index, group, row, end, OSError(str(error))).rejects
            row = end


def _row(file: int, row: int, value: dict[str, Any], odd: set[str]) -> Record | Reject:
    """Record of a row, without values that Python cannot represent; invalid text makes a bad row."""
    from packline.sources.carried import Odd

    lost_id = False
    for name in odd:
        if isinstance(one := value[name], Odd):
            value[name] = one.text
            lost_id |= name == DEFAULT_ID and one.text is None
            if one.reason == "invalid_utf8" and name != DEFAULT_ID:
                return Record(row, value, None).reject(file, one.reason, f"column {name}: {one.detail}")
    return Record(row, _without_nulls(value), None, lost_id=lost_id)


def _without_nulls(value: Any) -> Any:
    """Remove the nulls of objects; lists keep theirs."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def files_of(path: str) -> list[str]:
    """Files below a path, in order of name; only those of the test split if their names show it."""
    paths = [found.path for found in expand(path) if plain_name(found.path).endswith(ENDINGS)]
    if not paths:
        raise InputError(f"{path}: expected {', '.join(ENDINGS)}, found no such file")
    root = path.rstrip("/")
    tests = [found for found in paths if TEST.search(found.removeprefix(root))] if len(paths) > 1 else []
    return tests or paths


def read_bytes(path: str, state: InputState | None = None) -> bytes:
    with open_input(path, state) as raw:
        try:
            data = raw.read()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    kind = detect_compression(data[:64])
    stream = DecompressedStream(io.BytesIO(data), kind)
    if kind:
        data = b"".join(iter(partial(stream.read, 1 << 24), b""))
    if stream.problem:
        raise InputError(f"{path}: {stream.problem[1]}")
    return data


def lines_of(path: str) -> Iterator[tuple[int, bytes]]:
    data = read_bytes(path).removeprefix(BOM)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line := line.strip():
            yield number, line


def records_of(path: str) -> Iterator[tuple[str, Any]]:
    """Read each record, a dict, or for CSV a row of strings, with its location for messages."""
    if (name := plain_name(path)).endswith(".parquet"):
        yield from _rows_of(path)
    elif name.endswith(".csv"):
        rows = _table(read_bytes(path), path)
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1) if row)
    else:
        for number, line in lines_of(path):
            where = f"{path}, line {number}"
            try:
                record = decode_json(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON: {error}") from error
            yield where, usable(record)


def usable(record: Any) -> Any:
    """Record without fields that contain lone surrogates or numbers out of range; few fields are used."""
    if not isinstance(record, dict) or (is_utf8(record) and not has_raw(record)):
        return record
    return {name: value for name, value in record.items() if is_utf8({name: value}) and not has_raw(value)}


def _rows_of(path: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(pa.BufferReader(read_bytes(path)), use_threads=False).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not Parquet: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))
