"""Foreign documents and stored ones: boundaries moved by hand on lists, for every kind of edges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.formats.boundaries import BoundaryPolicy
from packline.formats.types import DocumentBlock, Edges
from packline.ragged import offsets_of

EOD, BOS = 9, 8

bodies_of = st.lists(st.lists(st.integers(0, 7), max_size=6), min_size=1, max_size=8)


def foreign(body: list[int], edges: Edges, bos: int | None) -> list[int]:
    """A document as a file with these edges has it."""
    marker = EOD if bos is None else bos
    return [
        *([marker] if edges in ("bos", "both") else []),
        *body,
        *([EOD] if edges in ("eod", "both") else []),
    ]


def blocks(
    documents: list[list[int]], losses: list[list[int]] | None, cuts: list[int]
) -> list[DocumentBlock]:
    """Documents in blocks that begin at these numbers."""
    made = []
    places = sorted({0, len(documents), *(cut % len(documents) for cut in cuts)})
    for start, stop in pairwise(places):
        part = documents[start:stop]
        loss = None if losses is None else [byte for one in losses[start:stop] for byte in one]
        made.append(
            DocumentBlock(
                np.array([token for one in part for token in one], np.uint16),
                offsets_of([len(one) for one in part]),
                None if loss is None else np.array(loss, np.uint8),
            )
        )
    return made


@given(bodies_of, st.sampled_from(["eod", "bos", "both", "none"]), st.booleans(), st.lists(st.integers(0, 7)))
def test_every_kind_of_edges_becomes_what_the_store_has(
    bodies: list[list[int]], edges: Edges, with_bos: bool, cuts: list[int]
) -> None:
    bos = BOS if with_bos or edges == "both" else None
    restoring = BoundaryPolicy(edges, EOD, bos, vocab_size=10)
    found = []
    for block in blocks([foreign(body, edges, bos) for body in bodies], None, cuts):
        assert list(restoring.problems(block)) == []
        ragged, loss = restoring.restore(block)
        assert loss is None
        found += [ragged[number].tolist() for number in range(len(ragged))]
    before = [] if bos is None else [bos]
    assert found == [[*before, *body, EOD] for body in bodies]


@given(bodies_of, st.lists(st.integers(0, 7)), st.data())
def test_an_end_that_was_moved_to_the_front_takes_its_loss_along_and_back(
    bodies: list[list[int]], cuts: list[int], data: st.DataObject
) -> None:
    stored = [[*body, EOD] for body in bodies]
    mask = data.draw(
        st.lists(st.integers(0, 1), min_size=sum(map(len, stored)), max_size=sum(map(len, stored)))
    )
    # Out: the whole stream moved by one; the first marker ends nothing and is not trained on.
    moved, moved_mask = [EOD, *[token for one in stored for token in one][:-1]], [0, *mask[:-1]]
    ends = np.cumsum([len(one) for one in stored])
    documents = [moved[end - len(one) : end] for one, end in zip(stored, ends, strict=True)]
    losses = [moved_mask[end - len(one) : end] for one, end in zip(stored, ends, strict=True)]
    restoring = BoundaryPolicy("bos", EOD, None, vocab_size=10)
    made = blocks(documents, losses, cuts)
    found: list[int] = []
    for number, block in enumerate(made):
        following = made[number + 1].loss if number + 1 < len(made) else None
        ragged, loss = restoring.restore(block, None if following is None else int(following[0]))
        assert loss is not None and len(loss) == len(ragged.tokens)
        found += loss.tolist()
    assert found[:-1] == mask[:-1]  # of the very last end nothing is known: as the token before it
    assert found[-1] == (moved_mask[-1] if bodies[-1] else 0)


@given(bodies_of, st.sampled_from(["eod", "bos", "both", "none"]), st.data())
def test_a_loss_mask_stays_with_its_tokens(
    bodies: list[list[int]], edges: Edges, data: st.DataObject
) -> None:
    documents = [foreign(body, edges, BOS) for body in bodies]
    losses = [
        data.draw(st.lists(st.integers(0, 1), min_size=len(one), max_size=len(one))) for one in documents
    ]
    (block,) = blocks(documents, losses, [])
    ragged, loss = BoundaryPolicy(edges, EOD, BOS, vocab_size=10).restore(block)
    assert loss is not None
    for number, (body, given_loss) in enumerate(zip(bodies, losses, strict=True)):
        found = loss[ragged.offsets[number] : ragged.offsets[number + 1]].tolist()
        first, last = edges in ("bos", "both"), edges in ("eod", "both")
        inner = given_loss[int(first) : len(given_loss) - int(last)]
        assert found[1:-1] == inner and len(found) == len(body) + 2
        assert found[0] == (given_loss[0] if first else 0)
        assert found[-1] == (given_loss[-1] if last else inner[-1] if inner else 0)


@pytest.mark.parametrize("edges", ["eod", "bos"])
def test_what_the_data_cuts_off_is_completed_and_nothing_is_doubled(edges: Edges) -> None:
    tokens, at = ([1, EOD, 2, 3], 1) if edges == "eod" else ([1, 2, EOD, 3], 0)
    offsets = [0, 2, 4]
    block = DocumentBlock(np.array(tokens, np.int32), np.array(offsets), np.array([1, 1, 0, 1], np.uint8))
    block.truncated = np.arange(2) == at
    restoring = BoundaryPolicy(edges, EOD, None, vocab_size=10)
    assert list(restoring.problems(block)) == []
    ragged, loss = restoring.restore(block)
    assert [ragged[number].tolist() for number in range(2)] == (
        [[1, EOD], [2, 3, EOD]] if edges == "eod" else [[1, 2, EOD], [3, EOD]]
    )
    assert loss is not None
    assert loss.tolist() == [1, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("edges", "documents", "words"),
    [
        ("eod", [[1, EOD], [2, 3]], "no boundary token at the end: expected 9, found 3"),
        ("eod", [[1, EOD], []], "no boundary token at the end: expected 9, found no token"),
        ("bos", [[EOD], [2, EOD]], "no boundary token at the beginning: expected 9, found 2"),
        ("none", [[1], [2, 70, 71]], "an id outside the vocabulary: expected below 10, found 70"),
        ("none", [[1], [2, -3]], "an id outside the vocabulary: expected below 10, found -3"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(edges: Edges, documents: list[list[int]], words: str) -> None:
    tokens = np.array([token for one in documents for token in one], np.int32)
    block = DocumentBlock(tokens, offsets_of([len(one) for one in documents]))
    (wrong,) = BoundaryPolicy(edges, EOD, None, vocab_size=10).problems(block)
    assert str(wrong) == words and wrong.document == 1
    assert wrong.token == (1 if edges != "bos" and documents[1] else 0)


def test_one_token_is_not_both_a_beginning_and_an_end() -> None:
    block = DocumentBlock(np.array([BOS, 1, EOD, EOD], np.uint16), np.array([0, 3, 4]))
    found = [str(wrong) for wrong in BoundaryPolicy("both", EOD, BOS, vocab_size=10).problems(block)]
    assert found[0] == "no boundary token at the beginning: expected 8, found 9"
    with pytest.raises(RecipeError, match="need a begin-of-document token"):
        BoundaryPolicy("both", EOD, None, vocab_size=10)
