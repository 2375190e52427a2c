"""Values of every packing: canonical choices of documents, spans of rows, counts that balance."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packline.packing.options import DocumentFilter
from packline.packing.packer import Counts, Spans
from packline.ragged import offsets_of

names = st.none() | st.text("ab", max_size=2) | st.lists(st.text("ab", max_size=2), min_size=1).map(tuple)
filters = st.builds(
    DocumentFilter,
    labels=names,
    sources=names,
    min_tokens=st.none() | st.integers(0, 3),
    max_tokens=st.none() | st.integers(1, 4),
    shuffle_documents=st.none() | st.integers(0, 3),
)


def allowed(names: str | tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset([names] if isinstance(names, str) else names)


@given(filters, filters)
def test_filters_have_one_canonical_form_just_if_they_keep_the_same_documents(
    one: DocumentFilter, other: DocumentFilter
) -> None:
    def kept(choice: DocumentFilter) -> tuple[object, ...]:
        lengths = frozenset(
            length for length in range(1, 9) if (choice.min_tokens or 0) <= length <= (choice.max_tokens or 9)
        )
        upper = None if choice.max_tokens is None else choice.max_tokens
        return (allowed(choice.labels), allowed(choice.sources), lengths, upper, choice.shuffle_documents)

    canonical = one.canonical()
    assert canonical.canonical() == canonical and kept(canonical) == kept(one)
    if one.canonical() == other.canonical():
        assert kept(one) == kept(other)
    elif kept(one)[2] and kept(other)[2]:
        assert kept(one) != kept(other)


@given(st.lists(st.lists(st.integers(1, 50), max_size=4)))
def test_a_row_is_filled_by_its_spans(rows: list[list[int]]) -> None:
    lengths = np.array([length for row in rows for length in row], np.int64)
    each = np.arange(len(lengths))
    spans = Spans(offsets_of([len(row) for row in rows]), each, each, lengths, each, lengths)
    assert spans.filled.tolist() == [sum(row) for row in rows] and len(spans) == len(rows)


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 12), st.integers(-3, 3))
def test_counts_of_padded_and_cut_documents_balance_and_any_slip_shows(
    lengths: list[int], seq_len: int, slip: int
) -> None:
    held = [min(length, seq_len) for length in lengths]
    counts = Counts(
        rows=len(lengths),
        documents=len(lengths),
        tokens=sum(lengths),
        padding_tokens=sum(seq_len - one for one in held),
        truncated_tokens=sum(lengths) - sum(held),
    )
    assert counts.imbalance(seq_len) == 0
    for name, sign in (
        ("padding_tokens", 1),
        ("tokens", 1),
        ("truncated_tokens", -1),
        ("dropped_tokens", -1),
    ):
        changed = msgspec.structs.replace(counts, **{name: getattr(counts, name) + slip})
        assert changed.imbalance(seq_len) == sign * slip
