"""Masks against their definition, written with loops: who sees whom, and where segments begin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.packing.layout import attention_mask, cu_seqlens

# Lengths of the segments of each row; what they leave of the row is padding.
batches = st.integers(1, 24).flatmap(
    lambda length: st.tuples(
        st.just(length),
        st.lists(
            st.lists(st.integers(1, length), max_size=length).map(lambda found: fitting(found, length)),
            min_size=1,
            max_size=5,
        ),
    )
)


def fitting(lengths: list[int], most: int) -> list[int]:
    """As many of the first lengths as go into a row."""
    while sum(lengths) > most:
        lengths = lengths[:-1]
    return lengths


def segment_ids(length: int, rows: list[list[int]]) -> np.ndarray:
    ids = np.full((len(rows), length), -1, np.int32)
    for row, lengths in enumerate(rows):
        place = 0
        for number, count in enumerate(lengths):
            ids[row, place : place + count] = number
            place += count
    return ids


@given(batches)
def test_boundaries_are_those_of_segments_and_padding(batch: tuple[int, list[list[int]]]) -> None:
    length, rows = batch
    expected = [0]
    for lengths in rows:
        padding = length - sum(lengths)
        for count in [*lengths, padding] if padding else lengths:
            expected.append(expected[-1] + count)
    found = cu_seqlens(segment_ids(length, rows))
    assert found.dtype == np.int32
    assert found.tolist() == expected
    assert found[-1] == length * len(rows)


@given(batches)
def test_a_place_sees_its_own_segment_up_to_itself(batch: tuple[int, list[list[int]]]) -> None:
    length, rows = batch
    ids = segment_ids(length, rows)
    mask = attention_mask(ids)
    assert mask.shape == (len(rows), 1, length, length)
    assert mask.dtype == np.bool_
    for row in range(len(rows)):
        for query in range(length):
            seen = [key for key in range(length) if key <= query and ids[row, key] == ids[row, query]]
            assert np.flatnonzero(mask[row, 0, query]).tolist() == seen
            assert query in seen


def test_a_single_row_is_a_batch_of_one() -> None:
    ids = np.array([0, 0, 1, -1], np.int32)
    assert cu_seqlens(ids).tolist() == cu_seqlens(ids[None]).tolist() == [0, 2, 3, 4]
    assert np.array_equal(attention_mask(ids), attention_mask(ids[None]))


def test_nothing() -> None:
    assert cu_seqlens(np.zeros((0, 8), np.int32)).tolist() == [0]


def test_too_many_tokens_for_an_int32_are_refused() -> None:
    rows = np.broadcast_to(np.int32(0), (2**20, 2**11))  # 2**31 ids in four bytes of memory
    with pytest.raises(RecipeError, match=r"2,147,483,648 tokens: cu_seqlens counts at most 2,147,483,647"):
        cu_seqlens(rows)


def test_other_shapes_are_refused() -> None:
    for make in (cu_seqlens, attention_mask):
        with pytest.raises(RecipeError, match=r"shape \[1, 2, 3\]: expected \[L\] or \[B, L\]"):
            make(np.zeros((1, 2, 3), np.int32))
