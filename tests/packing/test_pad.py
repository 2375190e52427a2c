"""pad: a document a row, in three manners."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.counting import (
    SEQ_LENS,
    SHARDS,
    Place,
    all_tokens,
    check_conservation,
    check_rows_of,
    counted,
    made,
    tokens_of,
)

from packline.packing.options import OVERFLOWS, DocumentFilter
from packline.packing.pad import Pad
from packline.packing.selection import Selection


def reference(order: list[int], flat: list[int], seq_len: int, overflow: str) -> list[list[Place]]:
    """A document a row, token by token."""
    rows = []
    for document in order:
        tokens = [(document, place) for place in range(flat[document])]
        pieces = [tokens[start : start + seq_len] for start in range(0, len(tokens), seq_len)]
        if overflow == "truncate":
            pieces = pieces[:1]
        elif overflow == "drop" and len(pieces) > 1:
            pieces = []
        rows += pieces
    return rows


@given(
    SHARDS,
    SEQ_LENS,
    st.sampled_from(OVERFLOWS),
    st.none() | st.integers(0, 99),
    st.integers(0, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_are_those_of_documents_cut_one_by_one(
    shards: list[list[int]],
    seq_len: int,
    overflow: str,
    seed: int | None,
    least: int,
    mapped: bool,
    random: Random,
) -> None:
    flat = [length for shard in shards for length in shard]
    if max(flat) < least:
        return
    with made(shards, mapped=mapped) as store:
        selection = Selection(store, DocumentFilter(shuffle_documents=seed, min_tokens=least))
        order = selection.documents(np.arange(len(selection))).tolist()
        packer = Pad(selection, seq_len, overflow=overflow)  # type: ignore[arg-type]
        expected = reference(order, flat, seq_len, overflow)
        assert len(packer) == len(expected)
        assert all_tokens(packer) == expected
        lengths = {document: flat[document] for document in order}
        assert packer.counts == counted(packer, seq_len, lengths, overflow)
        assert packer.spans(np.arange(len(packer))).following is None
        check_conservation(packer, lengths)
        check_rows_of(packer, len(flat))
        rows = [*range(len(packer))] * 2
        random.shuffle(rows)
        assert tokens_of(packer.spans(np.array(rows, np.int64))) == [expected[row] for row in rows]
