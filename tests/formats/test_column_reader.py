"""Documents from columns: any mix of masks, padding and kinds of lists gives what plain lists give."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import CorruptStore
from packline.formats import columns
from packline.formats.columns import ColumnFile, Columns, ListReader
from packline.store.report import Findings

token = st.tuples(st.integers(0, 9), st.booleans(), st.booleans(), st.booleans())
"""Id, trained by labels, trained by loss_mask, kept by attention_mask."""


def columns_of(batch: pa.RecordBatch, with_loss: bool = True) -> Columns:
    found = Columns.of(batch.schema, "input_ids", with_loss, "x", Findings())
    assert found is not None
    return found


@given(
    st.lists(st.lists(token, max_size=5), min_size=1, max_size=8),
    st.sets(st.sampled_from(["labels", "loss_mask", "attention_mask"])),
    st.sampled_from([pa.list_, pa.large_list]),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_documents_are_those_of_plain_lists(
    rows: list[list[tuple[int, bool, bool, bool]]], present: set[str], lists: Any, skip: int, most: int
) -> None:
    whole = {
        "input_ids": [[one for one, *_ in row] for row in rows],
        "labels": [[one if on else -100 for one, on, _, _ in row] for row in rows],
        "loss_mask": [[int(on) for _, _, on, _ in row] for row in rows],
        "attention_mask": [[int(on) for *_, on in row] for row in rows],
    }
    kept = {
        name: pa.array(whole[name], lists(pa.int64())) for name in whole if name in present | {"input_ids"}
    }
    batch = pa.RecordBatch.from_pydict(kept).slice(skip)  # offsets that do not begin at 0
    expected = [
        [
            (one, ("labels" not in present or a) and ("loss_mask" not in present or b))
            for one, a, b, c in row
            if c or "attention_mask" not in present
        ]
        for row in rows[skip:]
    ]
    found: list[list[tuple[int, bool]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK_TOKENS", most)
        for block in columns_of(batch).blocks(batch, "x", 40):
            assert len(block) == 1 or len(block.tokens) <= most
            assert block.positions is not None and block.positions[0] == 40 + len(found)
            loss = np.ones(len(block.tokens)) if block.loss is None else block.loss
            pairs = list(zip(block.tokens.tolist(), (loss == 1).tolist(), strict=True))
            found += [pairs[a:b] for a, b in pairwise(block.offsets.tolist())]
    assert found == expected
    without = columns_of(batch, with_loss=False)
    assert not without.has_loss and without.block(batch, "x", 0).loss is None


def test_lists_that_go_backwards_are_refused() -> None:
    for offsets in ([0, 2, 1, 3], [2, 0, 3, 3], [0, 3, 2, 2]):
        bounds = pa.py_buffer(np.array(offsets, np.int32))
        values = pa.array([1, 2, 3])
        array = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [None, bounds], children=[values])
        batch = pa.RecordBatch.from_arrays([array], ["input_ids"])
        with pytest.raises(CorruptStore, match="column input_ids from row 0: Offset invariant failure"):
            ListReader("x", 0).lists(batch, "input_ids")


class Groups(ColumnFile):
    """A file whose groups have these tokens, ten bytes each."""

    def __init__(self, tokens: list[int]) -> None:
        self.file, self.split, self.path, self.size = 2, "train", "x", 10 * len(tokens) + 5
        self.tokens = np.array(tokens, np.int64)
        self.begins = 10 * np.arange(len(tokens))

    def batches(self, start: int, stop: int) -> Any:
        raise NotImplementedError


@given(st.lists(st.integers(0, 30), max_size=12))
def test_units_are_whole_groups_that_cover_the_file_once(tokens: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "UNIT_TOKENS", 20)
        units = list(Groups(tokens).units([(0, 0, 7)]))
    assert [number for unit in units for number in range(unit.start, unit.stop)] == list(range(len(tokens)))
    edges = [piece[1:] for unit in units for piece in unit.pieces if piece[0] == 2]
    assert edges[0][0] == 0 and edges[-1][1] == 10 * len(tokens) + 5
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    assert [unit.pieces[1:] for unit in units] == [((0, 0, 7),), *[()] * (len(units) - 1)]
    for unit in units:
        assert sum(tokens[unit.start : unit.stop]) <= 20 or unit.stop - unit.start == 1
