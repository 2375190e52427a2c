"""Rows counted by hand: what the laws of every packing are held against."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from packline.facade import Store
from packline.packing import offsets
from packline.packing.packer import Counts, Spans
from packline.packing.selection import Selection
from packline.packing.stats import compare_packings
from packline.testing import make_store, shards

SHARDS = shards()
SEQ_LENS = st.integers(2, 12)

Place = tuple[int, int]
"""A token: document, place within it."""


@contextmanager
def made(shards: list[list[int]], *, mapped: bool = False, **settings: Any) -> Iterator[Store]:
    """A store for one case; `mapped` has its indexes searched as those of a huge store are."""
    held = 0 if mapped else offsets.IN_MEMORY_BYTES
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(offsets, "IN_MEMORY_BYTES", held):
        yield make_store(Path(folder) / "store", shards, **settings)


def tokens_of(spans: Spans) -> list[list[Place]]:
    """The tokens of each row, one by one."""
    rows = []
    for start, stop in pairwise(spans.offsets.tolist()):
        here = slice(start, stop)
        columns = zip(
            *(column[here].tolist() for column in (spans.documents, spans.starts, spans.lengths)), strict=True
        )
        rows.append(
            [(document, start + step) for document, start, length in columns for step in range(length)]
        )
    return rows


def all_tokens(rows: Any) -> list[list[Place]]:
    """The tokens of all rows, of anything that has spans and a length."""
    return tokens_of(rows.spans(np.arange(len(rows))))


def counted(rows: Any, seq_len: int, lengths: dict[int, int], overflow: str = "") -> Counts:
    """The price of a packing of these documents, from its rows alone.

    Args:
        lengths: of the selected documents, by their number.
        overflow: `truncate` counts what is in no row as truncated, anything else as dropped.
    """
    held = all_tokens(rows)
    tokens = sum(map(len, held))
    times = Counter(document for row in held for document in {document for document, _ in row})
    lost = sum(lengths.values()) - tokens
    return Counts(
        rows=len(held),
        documents=len(lengths),
        tokens=sum(lengths.values()),
        padding_tokens=len(held) * seq_len - tokens,
        dropped_tokens=0 if overflow == "truncate" else lost,
        truncated_tokens=lost if overflow == "truncate" else 0,
        split_documents=sum(count > 1 for count in times.values()),
        rows_with_several_documents=sum(len({document for document, _ in row}) > 1 for row in held),
    )


def prices(lengths: list[int], seq_len: int) -> dict[str, Counts]:
    """Counts of every packing of these documents by its name, which `test_stats` holds to the rows."""
    with tempfile.TemporaryDirectory() as folder:
        selection = Selection(make_store(Path(folder) / "store", [lengths]))
        return {price.name: price.counts for price in compare_packings(selection, seq_len)}


def check_conservation(rows: Any, lengths: dict[int, int]) -> None:
    """No row is overfull, no token is in two places, and none is of a document that was not selected."""
    held = all_tokens(rows)
    assert all(len(row) <= rows.seq_len for row in held)
    once = Counter(place for row in held for place in row)
    assert set(once.values()) <= {1}
    assert set(once) <= {(document, place) for document, length in lengths.items() for place in range(length)}


def check_rows_of(rows: Any, documents: int) -> None:
    """`rows_of` is exactly the rows whose spans hold the document, for every document of the store."""
    where: dict[int, list[int]] = {document: [] for document in range(documents)}
    for number, row in enumerate(all_tokens(rows)):
        for document in {document for document, _ in row}:
            where[document].append(number)
    for document, expected in where.items():
        found = rows.rows_of(document)
        assert found.dtype == np.int64
        assert found.tolist() == expected
