"""The batch: what a source gives and an encoder takes.

A batch is about a MB of documents of one file, in their order, with where each came from, and beside
them the records of that stretch that could not be read. Its texts are one buffer, so that a document costs
no Python object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from packline.sources.texts import Texts

BATCH_BYTES = 1 << 20
"""Input bytes a batch: half or twice as much takes 4% longer, for its calls or for what falls out of the
cache. No byte of a store depends on it."""
CUT_BYTES = 1 << 20
"""Steps in which a stream is cut into slices, and a batch of Parquet. What a store holds depends on it: where
units end, and how many rows are lost with a damaged page."""

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


@dataclass(slots=True)
class Reject:
    """One record that is no document: what it was, verbatim, and what was wrong with it."""

    file: int
    position: int
    """Byte offset in the (decompressed) file, or row number in a Parquet file."""
    reason: Reason
    detail: str
    raw: bytes
    records: int = 1
    """How many records were lost with it: the rest of a Parquet row group, else 1."""
    continued: bool = False
    """More bytes of the reject before it: a huge record is passed on in pieces."""


@dataclass(slots=True)
class Block:
    """Whole records as bytes; or, with a problem, one record (or a piece of it) that cannot be decoded."""

    data: memoryview
    """A view of a buffer that the next block will overwrite."""
    starts: np.ndarray
    """int64 `[D]`: where in `data` each record begins."""
    position: int
    """Offset of `data` in the file."""
    problem: Reason | None = None
    detail: str = ""
    continued: bool = False
    """Not the first piece of its record."""


@dataclass(slots=True)
class Batch:
    """Documents of one file, in order."""

    file: int
    texts: Texts
    positions: np.ndarray
    """int64 `[D]`: byte offset in the (decompressed) file, or row number in a Parquet file."""
    ids: list[str | None] | None = None
    """The documents' own ids; None where the data has none."""
    rejects: list[Reject] = field(default_factory=list)
    consumed_bytes: int = 0
    """Bytes of input (decompressed) behind this batch, for progress."""
    filtered: list[int] = field(default_factory=list)
    """Positions of records that a filter left out."""

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
    """A batch that only says what could not be read."""
    return Batch(file, Texts.of([]), np.empty(0, np.int64), rejects=[reject], consumed_bytes=consumed_bytes)


def reject_block(file: int, block: Block) -> Batch:
    """A batch without documents, for a block that has a problem."""
    assert block.problem is not None
    raw = bytes(block.data).removesuffix(b"\n")
    reject = Reject(file, block.position, block.problem, block.detail, raw, continued=block.continued)
    return without_documents(file, reject, len(block.data))
