"""Documents as columns: lists around arrays, labels, schemas, and files cut between documents."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.counting import SHARDS, made

from packline.errors import RecipeError
from packline.formats.columns import (
    ColumnOptions,
    labels_of,
    list_array,
    make_schema,
    plan_columns,
    record_batches,
)
from packline.formats.document_view import DocumentView
from packline.formats.export_folder import Target
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
