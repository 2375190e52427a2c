"""Documents from whole records, for sources with templates or filters.

Records are decoded with the wanted top-level fields alone, where these are known. A comparison of values that
have no order, such as a number and a string, makes a bad record instead of a silent loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from packline.recipe import Source
from packline.sources.batch import Batch, Block, RecordProblem, TemplateTimeout, Texts, reject_block
from packline.sources.carried import Column, Odd, Values, carry
from packline.sources.files import InputFile
from packline.sources.jsonl import (
    ABSENT,
    FAILURES,
    RecordType,
    decode_all,
    decode_each,
    decode_odd,
    fits_a_type,
    has_raw,
    id_text,
    is_lost_id,
    is_utf8,
    text_field,
    value_at,
    without_mark,
)
from packline.sources.lines import not_utf8
from packline.where.conditions import Incomparable, field_value, fields_of, parse_where, record_test

if TYPE_CHECKING:
    from packline.sources.template import Template


class RecordText:
    """Makes the text of a source's records: filters, then the template or the text field.

    >>> made = RecordText(Source(inputs=("x",), template="{{ a }}!", where="n > 1"), "", 1000)
    >>> made.fields, made.text({"a": "hey", "n": 2}), made.text({"a": "hey", "n": 1})
    (('a', 'n'), 'hey!', None)
    """

    def __init__(self, source: Source, field: str, max_bytes: int) -> None:
        self._passes, filtered = _filter(source)
        self._field, self._max_bytes = field, max_bytes
        self._template: Template | None = None
        wanted: list[str] | None = [field.partition(".")[0]]
        if source.template is not msgspec.UNSET:
            from packline.sources.template import Template

            self._template = Template(source.template, max_bytes)
            wanted = None if self._template.fields is None else list(self._template.fields)
        self.fields = None if wanted is None else tuple(dict.fromkeys([*wanted, *filtered]))
        """Top-level fields that it needs; None for all."""

    def text(self, record: dict[str, Any]) -> str | None:
        """Make the text of a record; None if a filter removes it."""
        if not self._passes(record):
            return None
        text = text_field(record, self._field) if self._template is None else self._template.render(record)
        try:
            size = len(text) if text.isascii() else len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise RecordProblem("lone_surrogate", str(error)) from error
        if size > self._max_bytes:
            raise RecordProblem("too_large", f"its text has {size:,} bytes, more than {self._max_bytes:,}")
        return text

    def renders(self, record: dict[str, Any]) -> bool:
        try:
            return self._template is not None and bool(self._template.render(record))
        except RecordProblem:
            return False


def _filter(source: Source) -> tuple[Callable[[dict[str, Any]], bool], list[str]]:
    """Test of a source's `where`, and the top-level fields that it needs."""
    if source.where is msgspec.UNSET:
        return lambda record: True, []
    condition = parse_where(source.where)
    test = record_test(condition)

    def passes(record: dict[str, Any]) -> bool:
        try:
            return test(record)
        except Incomparable as error:
            raise RecordProblem("filter", str(error)) from None

    return passes, [name.partition(".")[0] for name in fields_of(condition)]


@cache
def transform_of(source: Source, field: str, max_bytes: int) -> RecordText:
    """Transform of a source, cached per process since templates are compiled."""
    return RecordText(source, field, max_bytes)


def text_batch(
    file: InputFile,
    transform: RecordText,
    records: Iterable[tuple[int, dict[str, Any] | RecordProblem]],
    raw: Callable[[int], bytes],
    values: Sequence[Values | None],
) -> Batch:
    """Make the texts of records.

    Args:
        records: each with its position; or what is wrong with it.
        raw: returns the bytes of the record of a number, for the bad ones.
        values: for each column that the file carries its values, of each record one.
    """
    path = None if file.id is None else file.id.split(".")
    texts: list[str] = []
    ids: list[str | None] = []
    kept: list[int] = []
    positions: list[int] = []
    batch = Batch(file.index, Texts.of([]), np.empty(0, np.int64))
    for number, (position, record) in enumerate(records):
        try:
            if isinstance(record, RecordProblem):
                raise record
            if (text := transform.text(record)) is None:
                batch.filtered.append(position)
                continue
        except RecordProblem as problem:
            batch.rejects.append(problem.reject(file.index, position, raw(number)))
            continue
        except TemplateTimeout as error:
            raise error.at(file.path, file.format, position) from error
        texts.append(text)
        kept.append(number)
        positions.append(position)
        if path is not None:
            value = value_at(record, path)
            ids.append(None if value is ABSENT else id_text(value))
            if is_lost_id(value):
                batch.lost_ids.append(position)
    batch.texts, batch.positions = Texts.of(texts), np.array(positions, np.int64)
    batch.ids = None if path is None else ids
    own = [_taken(one, kept) for one in values]
    batch = carry(batch, file.carried or (), own, lambda place: raw(kept[place]))
    batch.rejects.sort(key=lambda one: one.position)
    return batch


def _taken(values: Values | None, kept: list[int]) -> Values | None:
    if values is None or isinstance(values, list):
        return values and [values[number] for number in kept]
    return values.take(pa.array(kept, pa.int64()))


class JsonlRecords:
    def __init__(self, transform: RecordText, id: str | None, columns: Sequence[Column] = ()) -> None:
        self._transform, self._columns = transform, columns
        self._names: tuple[str, ...] | None = None
        self._decoder: Any = msgspec.json.Decoder(dict[str, Any])
        if transform.fields is not None:
            heads = [] if id is None else [id.partition(".")[0]]
            heads += [column.path[0] for column in columns]
            names = tuple(dict.fromkeys([*transform.fields, *heads]))
            if all(map(fits_a_type, names)):
                made = RecordType(names, default=msgspec.UNSET)
                self._names, self._decoder, self._places = names, made.decoder, made.attributes

    def decode(self, file: InputFile, block: Block) -> Batch:
        if block.problem:
            return reject_block(file.index, block)
        data = without_mark(block)
        values = decode_all(self._decoder, data, block.starts)
        if values is None:
            records, rows, rejects = decode_each(file.index, data, block, self._record)
        else:
            records, rows, rejects = list(map(self._as_dict, values)), list(range(len(values))), []
        batch = text_batch(
            file,
            self._transform,
            zip(block.positions[rows].tolist(), records, strict=True),
            lambda number: block.line(rows[number]),
            [[field_value(one, column.path) for one in records] for column in self._columns],
        )
        batch.rejects = sorted(batch.rejects + rejects, key=lambda one: one.position)
        batch.consumed_bytes = len(data)
        return batch

    def _record(self, line: bytes) -> dict[str, Any]:
        try:
            return self._as_dict(self._decoder.decode(line))
        except FAILURES as error:
            return self._odd_record(line, error)

    def _odd_record(self, line: bytes, error: Exception) -> dict[str, Any]:
        try:
            record = decode_odd(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            if isinstance(error, UnicodeDecodeError):
                raise RecordProblem("invalid_utf8", not_utf8(error)) from error
            raise RecordProblem("malformed_json", str(error)) from error
        wanted = self._transform.fields
        read = {name: record[name] for name in record if wanted is None or name in wanted}
        if has_raw(read):
            raise RecordProblem("malformed_json", str(error)) from error
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as wrong:
            if not is_utf8(read):
                raise RecordProblem("invalid_utf8", not_utf8(wrong)) from wrong
        return (
            record if self._names is None else {name: record[name] for name in self._names if name in record}
        )

    def _as_dict(self, value: Any) -> dict[str, Any]:
        if self._names is None:
            return value
        fields = [getattr(value, place) for place in self._places.values()]
        return {
            name: field
            for name, field in zip(self._places, fields, strict=True)
            if field is not msgspec.UNSET
        }


def row_batch(file: InputFile, rows: pa.RecordBatch, row: int, transform: RecordText, hasher: Any) -> Batch:
    from packline.sources.parquet import carried_arrays

    records, problems = _plain_rows(rows)
    for record in records:
        hasher.update(msgspec.json.encode(record))
    batch = text_batch(
        file,
        transform,
        (
            (row + number, _problem(problems.get(number, {}), transform) or record)
            for number, record in enumerate(records)
        ),
        lambda number: msgspec.json.encode(records[number]),
        carried_arrays(file, rows),
    )
    lost = [row + number for number, odd in problems.items() if file.id in odd and odd[file.id].text is None]
    batch.lost_ids += lost
    batch.consumed_bytes = rows.nbytes
    return batch


def _plain_rows(rows: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, dict[str, Odd]]]:
    """Convert rows to JSON types: dates as ISO 8601, decimals as strings, bytes as base64.

    A value that Python cannot represent is replaced by its text or null; such values are in the second
    result, by row and column.
    """
    from packline.sources.parquet import row_values

    records, names = row_values(rows)
    problems: dict[int, dict[str, Odd]] = {}
    for number, record in enumerate(records if names else ()):
        if odd := {name: record[name] for name in names if isinstance(record[name], Odd)}:
            problems[number] = odd
            record |= {name: value.text for name, value in odd.items()}
    return msgspec.to_builtins(records), problems


def _problem(odd: dict[str, Odd], transform: RecordText) -> RecordProblem | None:
    """Problem of a row; None if only its id, which is then left out, or carried columns are affected."""
    for name, value in odd.items():
        if transform.fields is None or name in transform.fields:
            return RecordProblem(value.reason, f"column {name}: {value.detail}")
    return None
