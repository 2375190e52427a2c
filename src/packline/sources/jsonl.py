"""Decoding of JSON lines to documents.

A block of lines is decoded in one call by a decoder for the wanted fields that skips all others, the fastest
method in Python. If that call fails, or lines and records do not match one to one, the block is decoded line
by line, so that a bad line loses only itself.

Cost: 0.5 to 0.9 GB/s per core, with no memory except the texts. Other fields are checked for JSON syntax, not
for their types or UTF-8, and never cost a document its text; an id that is not valid UTF-8 is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.sources.batch import Batch, Block, RecordProblem, Reject, Texts, reject_block

Getter = Callable[[Any], Any]
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

    >>> decoder = JsonlDecoder("text", "id")
    >>> lines = memoryview(b'{"id": 7, "text": "hey"}\\nnonsense\\n')
    >>> batch = decoder.decode(0, Block(lines, np.array([0, 25]), 0))
    >>> list(batch.texts), batch.ids, batch.rejects[0].reason, batch.rejects[0].position
    (['hey'], ['7'], 'malformed_json', 25)
    """

    def __init__(self, text: str, id: str | None) -> None:
        self.text = text
        self._id, self._has_id = id, id is not None
        record, self._get_text, self._get_id = _record_type(text, id)
        self._decoder = msgspec.json.Decoder(record)
        # Decoding ids takes 10% longer for short documents, so it begins with the first id that occurs.
        self._without_id: Any = None
        if id is not None and id != text.partition(".")[0] and "." not in id:
            self._without_id = msgspec.json.Decoder(_record_type(text, id, None)[0])

    def decode(self, file: int, block: Block) -> Batch:
        """Documents and rejects of one block of whole lines."""
        if block.problem:
            return reject_block(file, block)
        data, starts = block.data, block.starts
        if block.position == 0 and bytes(data[:3]) == BOM:
            data = memoryview(b"   " + bytes(data[3:]))  # white space keeps the offsets
        try:
            records, ids = self._decode_lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._decode_one_by_one(file, data, block, starts)
        if len(records) != len(starts) or not one_object_a_line(data, starts):
            return self._decode_one_by_one(file, data, block, starts)
        get_text = self._get_text
        texts = [record.t for record in records] if get_text is None else list(map(get_text, records))
        return Batch(file, Texts.of(texts), block.positions, ids, consumed_bytes=len(data))

    def _decode_lines(self, data: memoryview) -> tuple[list[Any], list[str | None] | None]:
        """All records of a block, and their ids if there are any."""
        if self._without_id is not None:
            try:
                return self._without_id.decode_lines(data), None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._without_id = None
        records = self._decoder.decode_lines(data)
        return records, _id_texts(list(map(self._get_id, records))) if self._has_id else None

    def _decode_one_by_one(self, file: int, data: memoryview, block: Block, starts: np.ndarray) -> Batch:
        texts: list[str] = []
        ids: list[str | None] = []
        positions: list[int] = []
        rejects: list[Reject] = []
        ends = [*starts[1:].tolist(), len(data)]
        for start, end, position in zip(starts.tolist(), ends, block.positions.tolist(), strict=True):
            line = bytes(data[start:end])
            if not line.strip():
                continue
            try:
                record = self._decoder.decode(line)
                text = record.t if self._get_text is None else self._get_text(record)
                one = id_text(self._get_id(record)) if self._has_id else None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                try:
                    text, one = self._decode_odd(line, error)
                except RecordProblem as problem:
                    raw = bytes(block.data[start:end]).removesuffix(b"\n")
                    rejects.append(problem.reject(file, position, raw))
                    continue
            texts.append(text)
            ids.append(one)
            positions.append(position)
        where = np.array(positions, np.int64)
        return Batch(file, Texts.of(texts), where, ids if self._has_id else None, rejects, len(data))

    def _decode_odd(self, line: bytes, error: Exception) -> tuple[str, str | None]:
        """Text and id of a line that the fast decoder refused.

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
        value = None if self._id is None else value_at(record, self._id.split("."))
        return text, None if value is ABSENT else id_text(value)


def not_utf8(error: UnicodeDecodeError) -> str:
    """Description of why bytes are not UTF-8."""
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8: {error.reason}"


def fits_a_type(name: str) -> bool:
    """True if a typed decoder can have a field of this name; False if JSON escapes any of its characters.

    >>> fits_a_type("my field"), fits_a_type('a "quoted" one')
    (True, False)
    """
    return not any(letter in '"\\' or letter < " " for letter in name)


def _record_type(text: str, id: str | None, id_type: Any = Any) -> tuple[Any, Getter | None, Getter]:
    """Build a type with only the wanted fields, and their getters; None if the text is at `.t`.

    Args:
        id_type: type of the id field; null is always allowed.
    """
    if "." not in text:
        fields: list[tuple[Any, ...]] = [("t", str)]
        rename = {"t": text}
        get_text = None
    else:
        path = text.split(".")
        inner: Any = str
        for name in reversed(path[1:]):
            inner = msgspec.defstruct("Inner", [("t", inner)], rename={"t": name}, gc=False)
        fields = [("t", inner)]
        rename = {"t": path[0]}
        get_text = attrgetter(".".join(["t"] * len(path)))
    get_id: Getter = attrgetter("i")
    if id is not None:
        outer, *rest = id.split(".")
        if outer == rename["t"]:
            # The id shares the text's object, or is the text: the cheap typed path has no room for both.
            return _shared_type(text, id)
        fields.append(("i", id_type, None))
        rename["i"] = outer
        if rest:
            get_id = _path_getter(rest)
    return msgspec.defstruct("Record", fields, rename=rename, gc=False), get_text, get_id


def _path_getter(path: list[str]) -> Getter:
    def get(record: Any) -> Any:
        value = record.i
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    return get


def _shared_type(text: str, id: str) -> tuple[Any, Getter, Getter]:
    """Types for text and id within one object; the id may have any type and is optional."""
    text_path, id_path = text.split("."), id.split(".")
    if text_path == id_path:
        record, get_text, _ = _record_type(text, None)
        same = get_text or attrgetter("t")
        return record, same, same
    if text_path[: len(id_path)] == id_path or id_path[: len(text_path)] == text_path:
        raise RecipeError(f"text {text!r} and id {id!r}: one field cannot hold the other")
    shared = 0
    while shared < len(id_path) - 1 and text_path[shared] == id_path[shared]:
        shared += 1
    inner: Any = str
    for depth in range(len(text_path) - 1, -1, -1):
        fields: list[tuple[Any, ...]] = [("t", inner)]
        rename = {"t": text_path[depth]}
        if depth == shared:
            fields.append(("i", Any, None))
            rename["i"] = id_path[shared]
        inner = msgspec.defstruct("Inner", fields, rename=rename, gc=False)
    get_text = attrgetter(".".join(["t"] * len(text_path)))
    below = _path_getter(id_path[shared + 1 :])

    def get_id(record: Any) -> Any:
        for _ in range(shared):
            record = record.t
        return below(record)

    return inner, get_text, get_id


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
