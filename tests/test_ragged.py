"""Ragged arrays: every operation is that of a list of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packline.ragged import Ragged, concatenate, dtype_for, offsets_of

DOCUMENTS = st.lists(st.lists(st.integers(0, 60_000), max_size=6), max_size=8)
DTYPES = st.sampled_from(["<u2", "<i4", "<i8"])
TOKEN = st.none() | st.integers(0, 60_000)


def ragged_of(documents: list[list[int]], dtype: str) -> Ragged:
    tokens = np.array([token for document in documents for token in document], dtype)
    return Ragged(tokens, offsets_of([len(document) for document in documents]))


def lists_of(ragged: Ragged) -> list[list[int]]:
    """Documents, by slices of the tokens alone; the invariants of every result are checked on the way."""
    assert ragged.offsets.dtype == np.int64 and ragged.offsets[0] == 0
    assert ragged.offsets[-1] == len(ragged.tokens)
    tokens = ragged.tokens.tolist()
    return [tokens[start:stop] for start, stop in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)]


@given(DOCUMENTS, DTYPES, TOKEN, TOKEN)
def test_tokens_are_put_around_every_document(
    documents: list[list[int]], dtype: str, before: int | None, after: int | None
) -> None:
    ragged = ragged_of(documents, dtype)
    found = ragged.surround(before, after)
    head, tail = [[token] if token is not None else [] for token in (before, after)]
    assert lists_of(found) == [[*head, *document, *tail] for document in documents]
    assert found.tokens.dtype == np.dtype(dtype)
    assert lists_of(ragged) == documents, "the operand is unchanged"


@given(DOCUMENTS.filter(bool), DTYPES, st.data())
def test_documents_are_taken_in_any_order_any_number_of_times(
    documents: list[list[int]], dtype: str, data: st.DataObject
) -> None:
    ragged = ragged_of(documents, dtype)
    order = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=12))
    found = ragged.take(np.array(order, np.int64))
    assert lists_of(found) == [documents[number] for number in order]
    assert found.tokens.dtype == np.dtype(dtype)
    # A result is an operand like any other, whatever buffers it shares.
    assert lists_of(found.surround(1, None)) == [[1, *documents[number]] for number in order]


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), DTYPES)
def test_parts_are_joined_in_order(parts: list[list[list[int]]], dtype: str) -> None:
    found = concatenate([ragged_of(part, dtype) for part in parts])
    documents = [document for part in parts for document in part]
    assert lists_of(found) == documents == [found[number].tolist() for number in range(len(found))]
    assert found.lengths.tolist() == [len(document) for document in documents]


@given(DOCUMENTS, DTYPES, DTYPES)
def test_ids_survive_any_dtype_that_holds_them(documents: list[list[int]], one: str, other: str) -> None:
    found = ragged_of(documents, one).astype(np.dtype(other))
    assert found.tokens.dtype == np.dtype(other) and lists_of(found) == documents


@given(st.integers(1, 2**31 - 1) | st.integers(65_400, 65_600))
def test_a_dtype_holds_every_id_of_its_vocabulary_and_int32_where_uint16_does_not(vocab_size: int) -> None:
    dtype = dtype_for(vocab_size)
    assert np.iinfo(dtype).max >= vocab_size - 1
    assert dtype.itemsize == (2 if vocab_size < 65_500 else 4)
