"""Batches: the output of a source and the input of an encoder.

A batch has about 2 MB of documents of one file, in order, and the unreadable records of the same range. Its
texts are two buffers, as in a `large_string` array of Arrow. Sources guarantee that no text is null and that
all are valid UTF-8; this is not checked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packline.errors import BadRecord, RecipeError
from packline.fingerprint import hash_texts
from packline.ragged import Ragged

BATCH_BYTES = 2 << 20
"""Input bytes per batch: half as much takes 5% longer, because of calls; twice as much is no faster.

The bytes of a store do not depend on it.
"""
CUT_BYTES = 1 << 20
"""Step size for cutting a stream into chunks, and size of a Parquet batch.

The contents of a store depend on it: the ends of units, and the number of rows lost with a damaged page.
"""

Reason = Literal[
    "malformed_json",
    "missing_field",
    "not_a_string",
    "invalid_utf8",
    "lone_surrogate",
    "too_large",
    "truncated_stream",
    "corrupt_stream",
    "corrupt_parquet",
    "special_token",
    "filter",
    "column_type",
    # of conversations
    "not_a_conversation",
    "preference_data",
    "unknown_role",
    "roles_out_of_order",
    "empty_content",
    "content_not_text",
    "tool_output_without_call",
    "nothing_to_train",
    "too_long",
    "template",
    "mask",
]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of documents.

    >>> texts = Texts.of(["one", "drei", ""])
    >>> len(texts), texts[1], texts.sizes.tolist(), texts.take(np.array([1, 0])).data.tobytes()
    (3, 'drei', [3, 4, 0], b'dreione')
    """

    array: pa.Array
    """`large_string [D]`."""
    strings: list[str] | None = None
    """The same texts as Python strings, if available: some engines accept nothing else."""

    @classmethod
    def of(cls, strings: list[str]) -> Texts:
        return cls(pa.array(strings, pa.large_string()), strings)

    @classmethod
    def one(cls, data: bytes) -> Texts:
        """Build one text from its UTF-8, without a copy."""
        buffers = [None, pa.py_buffer(np.array([0, len(data)], np.int64)), pa.py_buffer(data)]
        return cls(pa.Array.from_buffers(pa.large_string(), 1, buffers))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> str:
        return str(self.array[index].as_py())

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_list())

    def to_list(self) -> list[str]:
        return self.array.to_pylist() if self.strings is None else self.strings

    @property
    def offsets(self) -> np.ndarray:
        """Start of each text in `data`, and the end, int64 `[D+1]`."""
        offsets = self._offsets
        return offsets - offsets[0] if offsets[0] else offsets

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each text, int64 `[D]`."""
        return np.diff(self._offsets)

    @property
    def data(self) -> memoryview:
        first, last = self._offsets[[0, -1]].tolist()
        if first == last:
            return memoryview(b"")
        return np.frombuffer(self.array.buffers()[2], np.uint8, last - first, first).data

    def characters(self) -> np.ndarray:
        """Code points of each text, int64 `[D]`."""
        if self.strings is not None:
            return np.fromiter(map(len, self.strings), np.int64, len(self))
        return pc.utf8_length(self.array).to_numpy()

    def raw(self) -> list[bytes]:
        data = self.data
        return [bytes(data[start:end]) for start, end in pairwise(self.offsets.tolist())]

    def hashes(self, seed: int = 0) -> np.ndarray:
        """Hash of each text, uint64 `[D]` (`fingerprint.hash_texts`)."""
        return hash_texts(self.data, self.offsets, seed)

    def take(self, places: np.ndarray) -> Texts:
        """The texts of `places [N]` (any integers), in that order."""
        strings = None if self.strings is None else [self.strings[place] for place in places]
        return Texts(self.array.take(pa.array(places, pa.int64())), strings)

    @property
    def _offsets(self) -> np.ndarray:
        """Offsets as stored by Arrow: those of a slice do not begin with 0."""
        if not len(self.array):
            return np.zeros(1, np.int64)
        return np.frombuffer(self.array.buffers()[1], np.int64, len(self.array) + 1, self.array.offset * 8)


class RecordProblem(BadRecord):
    """A record that is not a document or conversation: the reason under which it is counted, and details."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.detail)

    def reject(self, file: int, position: int, raw: bytes) -> Reject:
        return Reject(file, position, self.reason, self.detail, raw)


class TemplateTimeout(RecipeError):
    """A template that has used up its processor time for one record; the job stops there."""

    def at(self, path: str, format: str, position: int) -> RecipeError:
        """The error with the place of the record: a row of Parquet, or a byte."""
        unit = "row" if format == "parquet" else "byte"
        hint = "leave the record out with a filter, or look at the loops of the template"
        return RecipeError(f"{path}, {unit} {position}: {self.message}", hint=hint)


@dataclass(slots=True)
class Reject:
    """A record that is not a document: its bytes, verbatim, and what is wrong with it."""

    file: int
    position: int
    """Byte offset in the (decompressed) file, or row number in a Parquet file."""
    reason: Reason
    detail: str
    raw: bytes
    records: int = 1
    """Number of records lost: the rest of a Parquet row group, else 1."""
    continued: bool = False
    """True for further bytes of the previous reject: a huge record is passed on in pieces."""


@dataclass(slots=True)
class Block:
    """Whole records as bytes; or, with a problem, one record (or a piece of it) that cannot be decoded."""

    data: memoryview
    """A view of a buffer that the next block will overwrite."""
    starts: np.ndarray
    """int64 `[D]`: start offset of each record in `data`."""
    position: int
    """Offset of `data` in the file."""
    problem: Reason | None = None
    detail: str = ""
    continued: bool = False
    """True if it is not the first piece of its record."""
    places: np.ndarray | None = None
    """int64 `[D]`: offset of each record in the file, if they are not adjacent there."""

    @property
    def positions(self) -> np.ndarray:
        """Offset of each record in the file, int64 `[D]`."""
        return self.starts + self.position if self.places is None else self.places

    def line(self, row: int) -> bytes:
        """Bytes of one record, without the end of the line."""
        end = len(self.data) if row + 1 == len(self.starts) else self.starts[row + 1]
        return bytes(self.data[self.starts[row] : end]).removesuffix(b"\n")


@dataclass(slots=True)
class Batch:
    """Documents of one file, in order."""

    file: int
    texts: Texts
    positions: np.ndarray
    """int64 `[D]`: byte offset in the (decompressed) file, or row number in a Parquet file."""
    ids: list[str | None] | None = None
    """Ids from the data; None if the data has none."""
    rejects: list[Reject] = field(default_factory=list)
    consumed_bytes: int = 0
    """Bytes of (decompressed) input in this batch, for progress."""
    filtered: list[int] = field(default_factory=list)
    """Positions of records removed by a filter."""
    columns: pa.RecordBatch | None = None
    """`[D]` rows of the columns that the source carries; None if it carries none."""
    lost_ids: list[int] = field(default_factory=list)
    """Positions of records whose id is no valid Unicode, and None here; not all need be documents."""
    loss: Ragged | None = None
    """Loss mask of each document's tokens, uint8; None if all of them are trained on."""
    decoded_bytes: np.ndarray | None = None
    """int64 `[D]`: bytes of each text without control tokens, if it may have any."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def text_bytes(self) -> np.ndarray:
        """Bytes of each text, int64 `[D]`."""
        return self.texts.sizes if self.decoded_bytes is None else self.decoded_bytes

    def keep(self, kept: np.ndarray) -> Batch:
        """The documents at these indices, int64 `[N]`, without the rejects."""
        ids = self.ids
        return Batch(
            self.file,
            self.texts.take(kept),
            self.positions[kept],
            None if ids is None else [ids[index] for index in kept],
            columns=None if self.columns is None else self.columns.take(pa.array(kept, pa.int64())),
            lost_ids=self.lost_ids,
            loss=None if self.loss is None else self.loss.take(kept),
            decoded_bytes=None if self.decoded_bytes is None else self.decoded_bytes[kept],
        )


def without_documents(file: int, reject: Reject, consumed_bytes: int = 0) -> Batch:
    return Batch(file, Texts.of([]), np.empty(0, np.int64), rejects=[reject], consumed_bytes=consumed_bytes)


def reject_block(file: int, block: Block) -> Batch:
    assert block.problem is not None
    raw = bytes(block.data).removesuffix(b"\n")
    reject = Reject(file, block.position, block.problem, block.detail, raw, continued=block.continued)
    return without_documents(file, reject, len(block.data))
