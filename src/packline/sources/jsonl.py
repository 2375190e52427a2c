"""Decoding of JSON lines to documents.

A block of lines is decoded in one call by a decoder for the wanted fields that skips all others, the fastest
method in Python. If that call fails, or lines and records do not match one to one, the block is decoded line
by line, so that a bad line loses only itself.

Cost: 0.5 to 0.9 GB/s per core, with no memory except the texts. Other fields are checked for JSON syntax, not
for their types or UTF-8, and never cost a document its text; an id that is not valid UTF-8 is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import NoneType
from typing import Any

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.sources.batch import Batch, Block, Reason, Reject, reject_block
from packline.sources.odd_json import ABSENT, decode_odd, id_text, lone_surrogate, value_at
from packline.sources.texts import Texts

Getter = Callable[[Any], Any]
BOM = b"\xef\xbb\xbf"


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
        return Batch(file, Texts.of(texts), starts + block.position, ids, consumed_bytes=len(data))

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
        for start, end in zip(starts.tolist(), ends, strict=True):
            line = bytes(data[start:end])
            if not line.strip():
                continue
            position = start + block.position
            try:
                record = self._decoder.decode(line)
                text = record.t if self._get_text is None else self._get_text(record)
                one = id_text(self._get_id(record)) if self._has_id else None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                found = self._decode_odd(line, error)
                if isinstance(found, Reject):
                    found.file, found.position = file, position
                    found.raw = bytes(block.data[start:end]).removesuffix(b"\n")
                    rejects.append(found)
                    continue
                text, one = found
            texts.append(text)
            ids.append(one)
            positions.append(position)
        where = np.array(positions, np.int64)
        return Batch(file, Texts.of(texts), where, ids if self._has_id else None, rejects, len(data))

    def _decode_odd(self, line: bytes, error: Exception) -> tuple[str, str | None] | Reject:
        """Text and id of a line that the fast decoder refused; for a bad line, a reject without position."""
        if isinstance(error, msgspec.ValidationError) and "out of range" not in str(error):
            missing = "missing required field" in str(error)
            return _bad("missing_field" if missing else "not_a_string", f"field {self.text!r}: {error}")
        try:
            record = decode_odd(line)
        except (ValueError, RecursionError):
            if isinstance(error, UnicodeDecodeError):
                return _bad("invalid_utf8", not_utf8(error))
            return _bad("malformed_json", str(error))
        text = value_at(record, self.text.split("."))
        if text is ABSENT:
            return _bad("missing_field", f"field {self.text!r}: there is none")
        if not isinstance(text, str):
            return _bad("not_a_string", f"field {self.text!r}: expected a string")
        if problem := lone_surrogate(text):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as wrong:
                return _bad("invalid_utf8", not_utf8(wrong))
            return _bad("lone_surrogate", problem)
        value = None if self._id is None else value_at(record, self._id.split("."))
        return text, None if value is ABSENT else id_text(value)


def _bad(reason: Reason, detail: str) -> Reject:
    return Reject(-1, -1, reason, detail, b"")


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
