"""JSON lines to documents.

A block of lines is decoded in one call by a decoder that knows which fields are wanted and skips the
rest, which is the fastest way there is in Python; where that call fails, or the lines and the records
do not pair up one to one, the block is decoded line by line, so that a bad line costs itself only.

Cost: 0.5 to 0.9 GB/s a core, nothing beyond the texts themselves in memory. Fields that are not asked
for are checked for JSON syntax, not for their types or their UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from packline.errors import RecipeError
from packline.sources.batch import Batch, Block, Reason, Reject, reject_block
from packline.sources.texts import Texts

Getter = Callable[[Any], Any]


class JsonlDecoder:
    """Turn blocks of lines into batches.

    Args:
        text: field of the text, `a.b` for one inside an object.
        id: field of the document's id, or None.

    >>> decoder = JsonlDecoder("text", "id")
    >>> lines = memoryview(b'{"id": 7, "text": "hey"}\\nnonsense\\n')
    >>> batch = decoder.decode(0, Block(lines, np.array([0, 25]), 0))
    >>> list(batch.texts), batch.ids, batch.rejects[0].reason, batch.rejects[0].position
    (['hey'], ['7'], 'malformed_json', 25)
    """

    def __init__(self, text: str, id: str | None) -> None:
        self.text = text
        self._has_id = id is not None
        record, self._get_text, self._get_id = _record_type(text, id)
        self._decoder = msgspec.json.Decoder(record)

    def decode(self, file: int, block: Block) -> Batch:
        """Documents and rejects of one block of whole lines."""
        if block.problem:
            return reject_block(file, block)
        data, starts = block.data, block.starts
        if block.position == 0 and bytes(data[:3]) == b"\xef\xbb\xbf":
            data = memoryview(b"   " + bytes(data[3:]))  # a byte order mark; white space keeps the offsets
        try:
            records = self._decoder.decode_lines(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._decode_one_by_one(file, data, block, starts)
        if len(records) != len(starts) or not one_object_a_line(data, starts):
            return self._decode_one_by_one(file, data, block, starts)
        get_text = self._get_text
        texts = [record.t for record in records] if get_text is None else list(map(get_text, records))
        ids = [_id_text(self._get_id(record)) for record in records] if self._has_id else None
        return Batch(file, Texts.of(texts), starts + block.position, ids, consumed_bytes=len(data))

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
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                reason, detail = self._diagnose(line, error)
                raw = line.removesuffix(b"\n")
                rejects.append(Reject(file, position, reason, detail, raw))
                continue
            texts.append(record.t if self._get_text is None else self._get_text(record))
            ids.append(_id_text(self._get_id(record)) if self._has_id else None)
            positions.append(position)
        where = np.array(positions, np.int64)
        return Batch(file, Texts.of(texts), where, ids if self._has_id else None, rejects, len(data))

    def _diagnose(self, line: bytes, error: Exception) -> tuple[Reason, str]:
        if isinstance(error, UnicodeDecodeError):
            return "invalid_utf8", f"byte 0x{error.object[error.start]:02x} is not UTF-8: {error.reason}"
        if isinstance(error, msgspec.ValidationError):
            missing = "missing required field" in str(error)
            return ("missing_field" if missing else "not_a_string"), f"field {self.text!r}: {error}"
        try:
            record = json.loads(line)
            for name in self.text.split("."):
                record = record[name]
            record.encode("utf-8")
        except UnicodeEncodeError as problem:
            return "lone_surrogate", f"a lone surrogate \\u{ord(problem.object[problem.start]):04x}"
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass
        return "malformed_json", str(error)


def fits_a_type(name: str) -> bool:
    """Whether a typed decoder can have a field of this name: not with characters that JSON escapes.

    >>> fits_a_type("my field"), fits_a_type('a "quoted" one')
    (True, False)
    """
    return not any(letter in '"\\' or letter < " " for letter in name)


def _record_type(text: str, id: str | None) -> tuple[Any, Getter | None, Getter]:
    """A type with the wanted fields alone, and how to get at them; None where the text is at `.t`."""
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
        fields.append(("i", Any, None))
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
    """Text and id below one object: a tree of types, the id's leaf of any type and optional."""
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


def _id_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def one_object_a_line(data: memoryview, starts: np.ndarray) -> bool:
    """Whether each line opens and closes an object.

    `decode_lines` takes records that span lines, or two in one line; with as many records as lines and
    this, each record is its line.
    """
    codes = np.frombuffer(data, np.uint8)
    last = np.append(starts[1:], len(data) + (codes[-1] != ord("\n"))) - 2
    return bool((codes[starts] == ord("{")).all() and (codes[last] == ord("}")).all())
