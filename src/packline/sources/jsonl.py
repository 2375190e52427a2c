"""Decoding of JSON lines to documents.

A block of lines is decoded in one call by a decoder for the wanted fields that skips all others, the fastest
method in Python. If that call fails, or lines and records do not match one to one, the block is decoded line
by line, so that a bad line loses only itself.

Cost: 0.5 to 0.9 GB/s per core, with no memory except the texts. Other fields are checked for JSON syntax, not
for their types or UTF-8, and never cost a document its text; an id that is not valid UTF-8 is left out
and counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from types import NoneType
from typing import Any

import msgspec
import numpy as np

from packline.sources.batch import Batch, Block, RecordProblem, Reject, Texts, reject_block
from packline.sources.carried import Column, carry
from packline.sources.lines import not_utf8
from packline.sources.typed_records import RecordType, record_type

BOM = b"\xef\xbb\xbf"
ABSENT: Any = object()
"""Marker for a missing value; null is a value."""
MOST_DIGITS = 4300
"""Python's default limit for the digits of an integer."""


class JsonlDecoder:
    """Decoder of blocks of lines to batches.

    Args:
        text: field of the text, `a.b` for a nested one.
        id: field of the document's id, or None.
        columns: columns to carry along.

    Raises:
        RecipeError: one of the fields would have to contain another.

    >>> decoder = JsonlDecoder("text", "id")
    >>> lines = memoryview(b'{"id": 7, "text": "hey"}\\nnonsense\\n')
    >>> batch = decoder.decode(0, Block(lines, np.array([0, 25]), 0))
    >>> list(batch.texts), batch.ids, batch.rejects[0].reason, batch.rejects[0].position
    (['hey'], ['7'], 'malformed_json', 25)
    """

    def __init__(self, text: str, id: str | None, columns: Sequence[Column] = ()) -> None:
        self.text = text
        self._has_id, self._columns = id is not None, tuple(columns)
        names = [column.name for column in columns]
        self._fields = fields = [*([] if id is None else [id]), *names]
        self._types = [record_type(text, fields)]
        if any("." in field for field in fields):
            self._types.append(record_type(text, fields, tolerant=True))
        # Decoding ids takes 10% longer for short documents, so it begins with the first id that occurs.
        self._without_id: RecordType | None = None
        if id is not None and "." not in id and id != text.partition(".")[0] and id not in names:
            self._without_id = record_type(text, fields, types=[None])

    def decode(self, file: int, block: Block) -> Batch:
        """Documents and rejects of one block of whole lines."""
        if block.problem:
            return reject_block(file, block)
        data, starts = block.data, block.starts
        if block.position == 0 and bytes(data[:3]) == BOM:
            data = memoryview(b"   " + bytes(data[3:]))  # white space keeps the offsets
        decoded = self._decode_lines(data)
        if decoded is None:
            return self._decode_one_by_one(file, data, block, starts)
        records, made = decoded
        if len(records) != len(starts) or not one_object_a_line(data, starts):
            return self._decode_one_by_one(file, data, block, starts)
        ids = None
        if self._has_id and made is not self._without_id:
            ids = _id_texts(made.values[1](records))
        batch = Batch(file, Texts.of(made.values[0](records)), block.positions, ids, consumed_bytes=len(data))
        if not self._columns:
            return batch
        values = [one(records) for one in made.values[1 + self._has_id :]]
        return carry(batch, self._columns, values, lambda row: _line(block, row))

    def _decode_lines(self, data: memoryview) -> tuple[list[Any], RecordType] | None:
        """All records of a block with their type; None if no type has them all."""
        for made in filter(None, [self._without_id, *self._types]):
            try:
                return made.decoder.decode_lines(data), made
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                if made is self._without_id:
                    self._without_id = None
        return None

    def _decode_one_by_one(self, file: int, data: memoryview, block: Block, starts: np.ndarray) -> Batch:
        found: list[list[Any]] = []
        rows: list[int] = []
        rejects: list[Reject] = []
        ends = np.append(starts[1:], len(data))
        positions = block.positions
        first = np.frombuffer(data, np.uint8)[starts]  # almost all blank lines are known by their first byte
        full = np.flatnonzero((first != ord("\n")) & ((first != ord("\r")) | (ends - starts != 2)))
        for row, start, end in zip(*(one.tolist() for one in (full, starts[full], ends[full])), strict=True):
            line = bytes(data[start:end])
            if not line.strip():
                continue
            try:
                found.append(self._decode_line(line))
                rows.append(row)
            except RecordProblem as problem:
                rejects.append(problem.reject(file, int(positions[row]), _line(block, row)))
        texts, *others = (
            map(list, zip(*found, strict=True)) if found else [[] for _ in range(1 + len(self._fields))]
        )
        own = others.pop(0) if self._has_id else []
        ids = [id_text(one) for one in own] if self._has_id else None
        batch = Batch(file, Texts.of(texts), positions[rows], ids, rejects, len(data))
        batch.lost_ids = [int(positions[row]) for row, one in zip(rows, own, strict=False) if is_lost_id(one)]
        return carry(batch, self._columns, others, lambda place: _line(block, rows[place]))

    def _decode_line(self, line: bytes) -> list[Any]:
        """Text, id (if any) and columns of a line.

        Raises:
            RecordProblem: a bad line.
        """
        made = self._types[-1]
        try:
            record = [made.decoder.decode(line)]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._decode_odd(line, error)
        return [values(record)[0] for values in made.values]

    def _decode_odd(self, line: bytes, error: Exception) -> list[Any]:
        """Text, id and columns of a line that the fast decoder refused.

        Raises:
            RecordProblem: a bad line.
        """
        if isinstance(error, msgspec.ValidationError) and "out of range" not in str(error):
            missing = "missing required field" in str(error)
            raise RecordProblem(
                "missing_field" if missing else "not_a_string", f"field {self.text!r}: {error}"
            )
        try:
            record = decode_odd(line)
        except (ValueError, RecursionError):
            if isinstance(error, UnicodeDecodeError):
                raise RecordProblem("invalid_utf8", not_utf8(error)) from error
            raise RecordProblem("malformed_json", str(error)) from error
        text = value_at(record, self.text.split("."))
        if text is ABSENT:
            raise RecordProblem("missing_field", f"field {self.text!r}: there is none")
        if not isinstance(text, str):
            raise RecordProblem("not_a_string", f"field {self.text!r}: expected a string")
        if problem := lone_surrogate(text):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as wrong:
                raise RecordProblem("invalid_utf8", not_utf8(wrong)) from wrong
            raise RecordProblem("lone_surrogate", problem)
        values = [value_at(record, name.split(".")) for name in self._fields]
        return [text, *(None if value is ABSENT else value for value in values)]


def _line(block: Block, row: int) -> bytes:
    """Bytes of one record of a block, without the end of the line."""
    start, end = block.starts[row], (*block.starts[row + 1 : row + 2], len(block.data))[0]
    return bytes(block.data[start:end]).removesuffix(b"\n")


def fits_a_type(name: str) -> bool:
    """True if a typed decoder can have a field of this name; False if JSON escapes any of its characters.

    >>> fits_a_type("my field"), fits_a_type('a "quoted" one')
    (True, False)
    """
    return not any(letter in '"\\' or letter < " " for letter in name)


def _id_texts(values: list[Any]) -> list[str | None] | None:
    """Convert ids to strings; None if no record has an id."""
    kinds = set(map(type, values))
    if kinds <= {str, NoneType}:
        return values if str in kinds else None
    return [id_text(value) for value in values]


def one_object_a_line(data: memoryview, starts: np.ndarray) -> bool:
    """True if each line begins and ends with an object.

    `decode_lines` accepts records that span lines, and two records in one line; if this is true and there are
    as many records as lines, each line is one record.
    """
    codes = np.frombuffer(data, np.uint8)
    last = np.append(starts[1:], len(data) + (codes[-1] != ord("\n"))) - 2
    return bool((codes[starts] == ord("{")).all() and (codes[last] == ord("}")).all())


def decode_odd(line: bytes) -> Any:
    """Decode a line of valid JSON that the fast decoder refuses, with the standard library.

        a lone surrogate, as in a title cut inside an emoji ("\\ud83d")    anywhere in the line
        a number beyond the range of doubles, or of thousands of digits   in a field that is decoded
        bytes that are not UTF-8                                          in a field that is not the text

    RFC 8259 allows the first two, and none of the three is a reason to lose the text of the same record. Data
    that neither decoder reads, or that contains NaN or Infinity, is not JSON. Cost: about 50 MB/s.

    A byte that is not UTF-8 becomes a lone surrogate, as with Python's `surrogateescape`; a number that
    Python cannot represent becomes `msgspec.Raw`, verbatim.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.

    >>> decode_odd(b'{"text": "good", "n": 1e400}')["text"]
    'good'
    """
    text = line.decode("utf-8", "surrogateescape")
    return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_refuse)


def decode_json(line: bytes) -> Any:
    """Decode a line of JSON, with the fast decoder if possible.

    Raises:
        ValueError: it is not JSON; `UnicodeDecodeError` where it is not UTF-8.
        RecursionError: it is nested too deeply.

    >>> decode_json(b'{"a": 1}'), decode_json(b'"\\\\ud83d"')
    ({'a': 1}, '\\ud83d')
    """
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        line.decode("utf-8")
        try:
            return decode_odd(line)
        except ValueError:
            raise error from None


def value_at(record: Any, path: Sequence[str]) -> Any:
    """The value at a path of names, or `ABSENT`.

    >>> value_at({"a": {"b": None}}, ["a", "b"]), value_at({"a": 1}, ["a", "b"]) is ABSENT
    (None, True)
    """
    value = record
    for name in path:
        value = value.get(name, ABSENT) if isinstance(value, dict) else ABSENT
    return value


def id_text(value: Any) -> str | None:
    """Convert a document's id to a string: as JSON if it is not one; None if it is not valid UTF-8.

    >>> id_text("a"), id_text(7), id_text({"a": [1]}), id_text("\\ud83d")
    ('a', '7', '{"a":[1]}', None)
    """
    if value is None:
        return None
    try:
        if isinstance(value, str):
            value.encode("utf-8")
            return value
        return msgspec.json.encode(value, enc_hook=str).decode("utf-8")
    except UnicodeEncodeError:
        return None


def is_lost_id(value: Any) -> bool:
    """True if a record has an id of which `id_text` makes none."""
    return value is not None and value is not ABSENT and id_text(value) is None


def has_raw(value: Any) -> bool:
    """True if a value contains a number that Python cannot represent.

    >>> has_raw(decode_odd(b'{"a": [1e400]}')), has_raw({"a": [1e300]})
    (True, False)
    """
    if isinstance(value, dict | list):
        return any(map(has_raw, value.values() if isinstance(value, dict) else value))
    return isinstance(value, msgspec.Raw)


def is_utf8(value: Any) -> bool:
    """True if all strings of a value can be encoded as UTF-8.

    >>> is_utf8({"a": ["b"]}), is_utf8({"a": ["\\ud83d"]})
    (True, False)
    """
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def lone_surrogate(text: str) -> str | None:
    """Description of why a string cannot be UTF-8; None if it can.

    >>> lone_surrogate("fine"), lone_surrogate("cut \\ud83d")
    (None, 'a lone surrogate \\\\ud83d')
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a lone surrogate \\u{ord(text[error.start]):04x}"
    return None


def _integer(digits: str) -> int | msgspec.Raw:
    return int(digits) if len(digits) <= MOST_DIGITS else msgspec.Raw(digits.encode())


def _float(digits: str) -> float | msgspec.Raw:
    value = float(digits)
    return value if math.isfinite(value) else msgspec.Raw(digits.encode())


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
