"""Batches: the output of a source and the input of an encoder.

A batch has about 1 MB of documents of one file, in order, with the origin of each, and the unreadable records
of the same range. Its texts are one buffer, so that a document costs no Python object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from packline.errors import BadRecord
from packline.sources.texts import Texts

BATCH_BYTES = 1 << 20
"""Input bytes per batch: half or twice as much takes 4% longer, because of calls or of cache misses.

The bytes of a store do not depend on it.
"""
CUT_BYTES = 1 << 20
"""Step size for cutting a stream into slices, and size of a Parquet batch.

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
    # of conversations
    "not_a_conversation",
    "unknown_role",
    "roles_out_of_order",
    "empty_content",
    "content_not_text",
    "tool_call_without_output",
    "tool_output_without_call",
    "nothing_to_train",
    "too_long",
    "template",
    "mask",
]


class RecordProblem(BadRecord):
    """A record that is not a document or conversation: the reason under which it is counted, and details.

    Args:
        reason: one of the reasons for rejects.
        detail: position within the record, and description of the problem.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.detail)

    def reject(self, file: int, position: int, raw: bytes) -> Reject:
        """The bad record, with its place and bytes."""
        return Reject(file, position, self.reason, self.detail, raw)


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

    def __len__(self) -> int:
        return len(self.texts)

    def keep(self, kept: np.ndarray) -> Batch:
        """The documents at these indices, int64 `[N]`, without the rejects."""
        ids = self.ids
        return Batch(
            self.file,
            self.texts.take(kept),
            self.positions[kept],
            None if ids is None else [ids[index] for index in kept],
        )


def without_documents(file: int, reject: Reject, consumed_bytes: int = 0) -> Batch:
    """Build a batch with one reject and no documents."""
    return Batch(file, Texts.of([]), np.empty(0, np.int64), rejects=[reject], consumed_bytes=consumed_bytes)


def reject_block(file: int, block: Block) -> Batch:
    """Build a batch without documents for a block that has a problem."""
    assert block.problem is not None
    raw = bytes(block.data).removesuffix(b"\n")
    reject = Reject(file, block.position, block.problem, block.detail, raw, continued=block.continued)
    return without_documents(file, reject, len(block.data))
