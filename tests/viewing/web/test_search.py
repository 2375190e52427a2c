"""A search finds what a slow one finds, whatever its pages are cut into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.stores import make_store

import packline.viewing.web.search as searching
from packline.facade import Store
from packline.viewing.web.search import Found, Hit, Part, find_tokens

ALL_OF_THEM = 1 << 30
FEW = st.integers(2, 4)
"""Ids of few kinds, so that sequences repeat and overlap."""


@pytest.fixture(scope="module")
def repetitive(tmp_path_factory: pytest.TempPathFactory) -> Store:
    random = np.random.default_rng(3)
    bodies = [random.integers(2, 5, size).tolist() for size in random.integers(0, 30, 60)]
    return make_store(tmp_path_factory.mktemp("few") / "store", bodies, vocab_size=300, eod_id=0, shards=4)


def slowly(store: Store, ids: list[int]) -> set[tuple[int, int, int]]:
    found = set()
    for number in range(len(store.documents)):
        tokens = store.documents[number].tolist()
        for start in range(len(tokens) - len(ids) + 1):
            if tokens[start : start + len(ids)] == ids:
                found.add((number, start, len(ids)))
    return found


def pages(store: Store, ids: list[int], *, most: int, budget: float) -> list[Found]:
    found = [find_tokens(store, ids, Part(most=most, each=ALL_OF_THEM, budget=budget))]
    while found[-1].after is not None:
        assert len(found) < 10_000
        part = Part(found[-1].after, most=most, each=ALL_OF_THEM, budget=budget)
        found.append(find_tokens(store, ids, part))
    return found


@given(
    ids=st.lists(FEW, min_size=1, max_size=5),
    most=st.integers(1, 40),
    block=st.sampled_from([1, 2, 7, 64, 1 << 18]),
    budget=st.sampled_from([0.0, 10.0]),
)
def test_pages_together_find_what_a_slow_search_finds(
    repetitive: Store, ids: list[int], most: int, block: int, budget: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "BLOCK", block)
        found = pages(repetitive, ids, most=most, budget=budget)
    hits = [hit for page in found for hit in page.hits]
    assert len(hits) == len(set(hits))
    assert {(hit.document, hit.start, hit.length) for hit in hits} == slowly(repetitive, ids)
    assert [hit.document for hit in hits] == sorted(hit.document for hit in hits)
    assert all(len(page.hits) <= most for page in found)
    done = [page.done for page in found]
    assert done == sorted(done) and done[-1] == 1.0


def test_a_page_ends_when_its_time_is_up(repetitive: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "BLOCK", 16)
    found = find_tokens(repetitive, [299, 298], Part(budget=0.0))
    assert found.hits == () and found.after == 16


@given(ids=st.lists(FEW, min_size=1, max_size=2), each=st.integers(1, 3))
def test_further_hits_of_a_document_are_counted(repetitive: Store, ids: list[int], each: int) -> None:
    found = find_tokens(repetitive, ids, Part(most=ALL_OF_THEM, each=each, budget=10.0))
    expected = sorted(slowly(repetitive, ids))
    for document in range(len(repetitive.documents)):
        places = [place for place in expected if place[0] == document]
        hits = [hit for hit in found.hits if hit.document == document]
        assert [(hit.document, hit.start, hit.length) for hit in hits] == places[:each]
        assert sum(hit.more for hit in hits) == max(len(places) - each, 0)
    last = expected[-1][0] if expected else 0
    until = int(sum(map(len, (repetitive.documents[one] for one in range(last)))))
    part = Part(until=until, most=ALL_OF_THEM, each=ALL_OF_THEM, budget=10.0)
    assert {hit.document for hit in find_tokens(repetitive, ids, part).hits} == {
        one[0] for one in expected if one[0] < last
    }


@pytest.mark.parametrize("ids", [[], [70_000], [-1], [5] * 600])
def test_what_no_store_can_hold_is_not_found(repetitive: Store, ids: list[int]) -> None:
    assert find_tokens(repetitive, ids) == Found((), None, 1.0)


def test_a_hit_does_not_reach_into_the_next_document(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[5, 6], [7, 8]], vocab_size=300, eod_id=0)
    assert find_tokens(store, [0, 7]).hits == ()
    assert find_tokens(store, [6, 0]).hits == (Hit(0, 1, 2),)
