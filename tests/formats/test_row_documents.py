"""Of rows that were not neighbours, a document is whole if it has its boundary tokens, wherever it stands."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.formats.shared.row_documents import cut_rows
from packline.formats.types import Edges

EOD, BOS = 0, 1
Piece = tuple[bool, list[int], bool]
"""Whether it has its beginning, its text, whether it has its end."""
body = st.lists(st.integers(2, 9), min_size=1, max_size=4)
pieces = st.tuples(st.booleans(), body, st.booleans())
rows = st.lists(st.lists(pieces, min_size=1, max_size=5), min_size=1, max_size=5)


def as_they_can_be(row: list[Piece], edges: Edges) -> list[Piece]:
    """Within a row a piece goes on to its end, or the next one could not be told from it."""
    last = len(row) - 1
    if edges == "bos":
        return [(begins or place > 0, text, True) for place, (begins, text, _) in enumerate(row)]
    return [
        (begins or edges == "eod", text, ends or place < last)
        for place, (begins, text, ends) in enumerate(row)
    ]


@given(rows, st.sampled_from(["eod", "bos", "both"]))
def test_what_lacks_a_boundary_token_is_not_whole(drawn: list[list[Piece]], edges: Edges) -> None:
    made = [as_they_can_be(row, edges) for row in drawn]
    documents = [
        [
            *([EOD if edges == "bos" else BOS] if begins and edges != "eod" else []),
            *text,
            *([EOD] if ends and edges != "bos" else []),
        ]
        for row in made
        for begins, text, ends in row
    ]
    lengths = iter(map(len, documents))
    row_ends = np.cumsum([sum(itertools.islice(lengths, len(row))) for row in made])
    tokens = np.array(list(itertools.chain(*documents)), np.uint16)
    offsets, unfinished = cut_rows(tokens, row_ends, marker=EOD, edges=edges, bos_id=BOS)
    assert [one.tolist() for one in np.split(tokens, offsets[1:-1])] == documents
    assert unfinished is not None
    assert unfinished.tolist() == [not (begins and ends) for row in made for begins, _, ends in row]


@pytest.mark.parametrize("edges", ["eod", "bos", "both"])
def test_of_what_is_not_known_nothing_is_expected(edges: Edges) -> None:
    tokens, ends = np.array([1, 5, 0, 6, 0], np.uint16), np.array([3, 5])
    offsets, unfinished = cut_rows(tokens, ends, marker=None, edges=edges, bos_id=BOS)
    assert offsets.tolist() == [0, 3, 5]
    assert unfinished is not None and unfinished.tolist() == [True, True]
    _, unfinished = cut_rows(tokens, ends, marker=EOD, edges="both", bos_id=None)
    assert unfinished is not None and unfinished.tolist() == [True, True]
    _, unfinished = cut_rows(tokens, ends, marker=EOD, edges="none", bos_id=None)
    assert unfinished is None
