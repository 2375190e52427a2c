"""Documents from whole records, for sources with templates or filters.

    JSON line, Parquet row ──> {"title": ..., "body": ...} ──transform──> text | left out | bad record

    The transform (`sources.reading`) decides the result for each record. This module decodes records,
    only with the wanted top-level fields if these are known, and combines the documents into batches with
    their positions.

Cost: one Python object for every wanted field and the time of the transform, about 5 to 20 microseconds per
record. Not used for sources without template and filter.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from packline.sources.batch import Batch, Block, Reason, Reject, reject_block
from packline.sources.jsonl import BOM, fits_a_type, not_utf8, one_object_a_line
from packline.sources.odd_json import ABSENT, decode_odd, has_raw, id_text, is_utf8, value_at
from packline.sources.odd_values import Odd, row_values
from packline.sources.texts import Texts


class RecordProblem(Exception):
    """A record that is not a document; raised by a transform.

    Args:
        reason: one of the reasons for rejects.
        detail: what was wrong with it.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason: Reason = reason
        self.detail = detail


class Transform(Protocol):
    """Interface that makes the text of a record. Hashable, so that decoders can be cached by it."""

    fields: tuple[str, ...] | None
    """Top-level fields that it needs; None for all."""

    def __hash__(self) -> int: ...

    def text(self, record: dict[str, Any]) -> str | None:
        """Make the text of a record; None if a filter removes it.

        Raises:
            RecordProblem: the record has no valid text.
        """


class Collected:
    """Builder of a batch, record by record."""

    def __init__(self, file: int, transform: Transform, id: str | None) -> None:
        self._file, self._transform = file, transform
        self._id = None if id is None else id.split(".")
        self._texts: list[str] = []
        self._positions: list[int] = []
        self._ids: list[str | None] = []
        self._rejects: list[Reject] = []
        self._filtered: list[int] = []

    def take(self, record: dict[str, Any], position: int) -> RecordProblem | None:
        """Add a record; return its problem, if any, since the caller has the bytes."""
        try:
            text = self._transform.text(record)
        except RecordProblem as problem:
            return problem
        if text is None:
            self._filtered.append(position)
            return None
        self._texts.append(text)
        self._positions.append(position)
        if self._id is not None:
            value = value_at(record, self._id)
            self._ids.append(None if value is ABSENT else id_text(value))
        return None

    def reject(self, position: int, reason: Reason, detail: str, raw: bytes) -> None:
        """Keep a bad record."""
        self._rejects.append(Reject(self._file, position, reason, detail, raw))

    def batch(self, consumed_bytes: int) -> Batch:
        """Build the batch."""
        ids = None if self._id is None else self._ids
        positions = np.array(self._positions, np.int64)
        texts = Texts.of(self._texts)
        return Batch(self._file, texts, positions, ids, self._rejects, consumed_bytes, self._filtered)


class JsonlRecords:
    """Decoder of blocks of lines to batches, with a transform.

    Args:
        transform: makes the texts.
        id: field of the document's id, `a.b` for a nested one, or None.
    """

    def __init__(self, transform: Transform, id: str | None) -> None:
        self._transform, self._id = transform, id
        self._names = None if transform.fields is None else _with_head(transform.fields, id)
        self._decoder: Any = msgspec.json.Decoder(dict[str, Any])
        if self._names is not None and not all(map(fits_a_type, self._names)):
            self._names = None
        if self._names is not None:
            places = {f"f{number}": name for number, name in enumerate(self._names)}
            fields: list[tuple[Any, ...]] = [(place, Any, msgspec.UNSET) for place in places]
            kind = msgspec.defstruct("Record", fields, rename=places, gc=False)
            self._decoder = msgspec.json.Decoder(kind)
            self._places = tuple(places)

    def decode(self, file: int, block: Block) -> Batch:
        """Documents and rejects of one block of whole lines."""
        if block.problem:
            return reject_block(file, block)
        data, starts = block.data, block.starts
        if block.position == 0 and bytes(data[:3]) == BOM:
            data = memoryview(b"   " + bytes(data[3:]))  # white space keeps the offsets
        collected = Collected(file, self._transform, self._id)
        ends = [*starts[1:].tolist(), len(data)]
        lines = list(zip(starts.tolist(), ends, strict=True))
        for (start, end), record in zip(lines, self._records(data, starts, lines), strict=True):
            if record is None:
                continue
            position = start + block.position
            problem = record if isinstance(record, RecordProblem) else collected.take(record, position)
            if problem is not None:
                raw = bytes(block.data[start:end]).removesuffix(b"\n")
                collected.reject(position, problem.reason, problem.detail, raw)
        return collected.batch(len(data))

    def _records(self, data: memoryview, starts: np.ndarray, lines: list[tuple[int, int]]) -> list[Any]:
        """For each line its record, a problem, or None if it is empty."""
        try:
            values = self._decoder.decode_lines(data)
            if len(values) == len(starts) and one_object_a_line(data, starts):
                return [self._as_dict(value) for value in values]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        return [self._record(bytes(data[start:end])) for start, end in lines]

    def _record(self, line: bytes) -> dict[str, Any] | RecordProblem | None:
        if not line.strip():
            return None
        try:
            return self._as_dict(self._decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._odd_record(line, error)

    def _odd_record(self, line: bytes, error: Exception) -> dict[str, Any] | RecordProblem:
        """Decode a record that the fast decoder refused; a problem if the fault is in a wanted field."""
        try:
            record = decode_odd(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            if isinstance(error, UnicodeDecodeError):
                return RecordProblem("invalid_utf8", not_utf8(error))
            return RecordProblem("malformed_json", str(error))
        wanted = self._transform.fields
        read = {name: record[name] for name in record if wanted is None or name in wanted}
        if has_raw(read):
            return RecordProblem("malformed_json", str(error))
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as wrong:
            if not is_utf8(read):
                return RecordProblem("invalid_utf8", not_utf8(wrong))
        return (
            record if self._names is None else {name: record[name] for name in self._names if name in record}
        )

    def _as_dict(self, value: Any) -> dict[str, Any]:
        if self._names is None:
            return value
        pairs = zip(self._names, [getattr(value, place) for place in self._places], strict=True)
        return {name: field for name, field in pairs if field is not msgspec.UNSET}


def row_batch(
    file: int, rows: pa.RecordBatch, row: int, transform: Transform, id: str | None, hasher: Any = None
) -> Batch:
    """Make documents from rows of a Parquet file.

    Args:
        rows: the wanted columns.
        row: number of the first row in the file.
        hasher: updated with the values of the rows, independent of the layout of their buffers.
    """
    collected = Collected(file, transform, id)
    records, problems = _plain_rows(rows)
    if hasher is not None:
        _hash(hasher, records)
    for number, record in enumerate(records):
        position = row + number
        problem = _problem(problems.get(number, {}), transform, id) or collected.take(record, position)
        if problem is not None:
            collected.reject(position, problem.reason, problem.detail, msgspec.json.encode(record))
    return collected.batch(rows.nbytes)


def hash_rows(hasher: Any, rows: pa.RecordBatch) -> None:
    """Update a hasher with the values of rows, as `row_batch` does."""
    _hash(hasher, _plain_rows(rows)[0])


def _hash(hasher: Any, records: list[Any]) -> None:
    for record in records:
        hasher.update(msgspec.json.encode(record))


def _plain_rows(rows: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, dict[str, Odd]]]:
    """Convert rows to JSON types: dates as ISO 8601, decimals as strings, bytes as base64.

    A value that Python cannot represent is replaced by its text or null; such values are in the second
    result, by row and column.
    """
    records, names = row_values(rows)
    problems: dict[int, dict[str, Odd]] = {}
    for number, record in enumerate(records if names else ()):
        if odd := {name: record[name] for name in names if isinstance(record[name], Odd)}:
            problems[number] = odd
            record |= {name: value.text for name, value in odd.items()}
    return msgspec.to_builtins(records), problems


def _problem(odd: dict[str, Odd], transform: Transform, id: str | None) -> RecordProblem | None:
    """Problem of a row; None if only its id is affected, which is then left out."""
    for name, value in odd.items():
        if name != id or transform.fields is None or name in transform.fields:
            return RecordProblem(value.reason, f"column {name}: {value.detail}")
    return None


def _with_head(fields: tuple[str, ...], id: str | None) -> tuple[str, ...]:
    return fields if id is None else tuple(dict.fromkeys([*fields, id.partition(".")[0]]))
