"""Documents as columns: lists around arrays, labels, schemas, and files cut between documents."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.counting import SHARDS, made

from packline.errors import CorruptStore, RecipeError
from packline.formats import columns
from packline.formats.columns import (
    ColumnFile,
    ColumnOptions,
    Columns,
    ListReader,
    labels_of,
    list_array,
    make_schema,
    plan_columns,
    record_batches,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import Target
from packline.store.report import Findings
from packline.testing import document_tokens, make_store


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1), st.booleans(), st.data())
def test_lists_are_slices_of_the_values(rows: list[list[int]], large: bool, data: st.DataObject) -> None:
    values = np.array([one for row in rows for one in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)])
    first = data.draw(st.integers(0, len(rows) - 1))
    array = list_array(values, offsets[first:], large=large)
    assert array.to_pylist() == rows[first:] and pa.types.is_large_list(array.type) == large
    array.validate(full=True)


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans())))
def test_labels_are_ids_where_trained_and_ignored_elsewhere(pairs: list[tuple[int, bool]]) -> None:
    tokens, loss = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    found = labels_of(tokens, loss.astype(np.uint8))
    assert found.dtype == tokens.dtype
    assert found.tolist() == [one if on else -100 for one, on in pairs]


@settings(max_examples=30)
@given(SHARDS, st.integers(1, 40), st.integers(1, 5), st.integers(1, 30))
def test_files_and_batches_hold_every_document_once_whatever_the_shards(
    shards: list[list[int]], file_tokens: int, most_documents: int, most_tokens: int
) -> None:
    flat = [length for shard in shards for length in shard]
    options = ColumnOptions(shard_tokens=file_tokens)
    with made(shards) as store, tempfile.TemporaryDirectory() as folder:
        view = DocumentView(store, edges="eod")
        plan = plan_columns(view, options, "arrow", "{split}-{number}-{count}")
        count = len(plan.parts)
        assert [part.name for part in plan.parts] == [f"train-{n}-{count}" for n in range(count)]
        edges = [0, *(part.stop for part in plan.parts)]
        assert [part.start for part in plan.parts] == edges[:-1] and edges[-1] == len(flat)
        for start, stop in pairwise(edges):
            assert sum(flat[start : stop - 1]) < file_tokens + max(flat)
        reported: list[int] = []
        target = Target(Path(folder), on_progress=reported.append)
        documents: list[list[int]] = []
        for part in plan.parts:
            for batch in record_batches(
                view, part, options, target, most_documents=most_documents, most_tokens=most_tokens
            ):
                ids = batch.column("input_ids").to_pylist()
                assert len(ids) <= most_documents and (len(ids) == 1 or sum(map(len, ids)) <= most_tokens)
                documents += ids
    assert documents == [document_tokens(number, length) for number, length in enumerate(flat)]
    assert sum(reported) == sum(flat)


def test_a_schema_describes_its_columns_and_names_are_not_taken_twice(tmp_path: Path) -> None:
    columns = {"a": pa.list_(pa.int32()), "b": pa.large_list(pa.int64()), "c": pa.string()}
    schema = make_schema(columns)
    assert {field.name: field.type for field in schema} == columns
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    kinds = {"Sequence": pa.list_, "LargeList": pa.large_list}
    back = {
        name: kinds[one["_type"]](pa.type_for_alias(one["feature"]["dtype"])) if "feature" in one
        else pa.type_for_alias(one["dtype"])
        for name, one in features.items()
    }  # fmt: skip
    assert back == columns
    view = DocumentView(make_store(tmp_path / "store", [[5, 1]]), edges="eod")
    for options in (ColumnOptions(column="id", provenance=True), ColumnOptions(column="")):
        with pytest.raises(RecipeError, match="expected a name unlike"):
            plan_columns(view, options, "arrow", "{number}")


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
