"""Selection: equal to filtering a list, and nothing read where nothing has to be."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packing.counting import SHARDS, made

from packline.errors import RecipeError, StoreError
from packline.packing import selection as choosing
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection
from packline.testing import make_store

LABELS = [None, "web", "code"]


@given(SHARDS, st.booleans(), st.data())
def test_it_is_a_filtered_list_in_the_order_asked_for(
    shards: list[list[int]], mapped: bool, data: st.DataObject
) -> None:
    count = len(shards)
    splits = data.draw(st.lists(st.sampled_from(["train", "val"]), min_size=count, max_size=count))
    labels = data.draw(st.lists(st.sampled_from(LABELS), min_size=count, max_size=count))
    split = data.draw(st.sampled_from(["all", *splits]))
    known = [label for label in labels if label]
    wanted = data.draw(st.none() | st.lists(st.sampled_from(known), min_size=1)) if known else None
    least, most = data.draw(st.integers(0, 5)), data.draw(st.none() | st.integers(5, 40))
    seed = data.draw(st.none() | st.integers(0, 2**63 - 1))
    whence = [number for number, shard in enumerate(shards) for _ in shard]
    flat = [length for shard in shards for length in shard]
    expected = [
        number
        for number, (shard, length) in enumerate(zip(whence, flat, strict=True))
        if split in ("all", splits[shard])
        and (wanted is None or labels[shard] in wanted)
        and least <= length <= (most or 99)
    ]
    with made(shards, mapped=mapped, splits=splits, labels=labels) as store:
        settings = {"split": split, "labels": wanted, "min_tokens": least, "max_tokens": most}
        if not expected:
            with pytest.raises(StoreError, match=f"no document is left of {len(flat)}: "):
                Selection(store, DocumentFilter(**settings, shuffle_documents=seed))  # type: ignore[arg-type]
            return
        selection = Selection(store, DocumentFilter(**settings, shuffle_documents=seed))  # type: ignore[arg-type]
        assert len(selection) == len(expected)
        assert selection.tokens == sum(flat[number] for number in expected)
        places = np.arange(len(expected))
        order = selection.documents(places)
        assert sorted(order.tolist()) == expected
        if seed is None:
            assert order.tolist() == expected
        check_lengths(selection, order.tolist(), flat)
        back = selection.places(np.arange(len(flat)))
        assert [document for document in range(len(flat)) if back[document] >= 0] == expected
        assert np.array_equal(selection.places(order), places)


def check_lengths(selection: Selection, order: list[int], flat: list[int]) -> None:
    """Every way to ask for lengths."""
    starts = [0, *accumulate(flat)]
    expected = [flat[document] for document in order]
    count = len(order)
    numbers, begins, sizes = selection.at(np.arange(count)[::-1])
    assert numbers.tolist() == order[::-1] and sizes.tolist() == expected[::-1]
    assert begins.tolist() == [starts[document] for document in order[::-1]]
    assert selection.lengths(0, count + 5).tolist() == expected
    assert selection.lengths(count // 3, count // 2).tolist() == expected[count // 3 : count // 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "BLOCK", 7)
        assert [len(block) for block in selection.blocks()] == [min(7, count - n) for n in range(0, count, 7)]
        assert np.concatenate(list(selection.blocks())).tolist() == expected
        part = [length for block in selection.blocks(count // 3, count - 1) for length in block.tolist()]
        assert part == expected[count // 3 : count - 1]


def test_a_shuffle_depends_on_its_seed_alone(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [list(range(1, 200)), list(range(1, 100))])
    places = np.arange(298)
    one, again, other = (
        Selection(store, DocumentFilter(shuffle_documents=seed)).documents(places).tolist()
        for seed in (4, 4, 5)
    )
    assert one == again != other
    assert one != sorted(one)
    moved = np.abs(np.array(one) - places)
    assert moved.mean() > 298 / 6  # a third for a shuffle, hardly anything for a disturbance


def test_sources_choose_documents(tmp_path: Path) -> None:
    store = make_store(
        tmp_path / "store",
        [[1, 2], [3], [4, 5], [6]],
        sources=("novels", "law", "films", "novels"),
        labels=("a", "a", "b", "a"),
    )
    assert store.verify().ok
    chosen = Selection(store, DocumentFilter(sources="novels", labels="a"))
    assert chosen.documents(np.arange(len(chosen))).tolist() == [0, 1, 5]
    assert len(Selection(store, DocumentFilter(sources=("law",)))) == 1
    assert len(Selection(store, DocumentFilter(labels=("b", "a")))) == 6
    with pytest.raises(StoreError, match="is left of 6: 6 of another split, label or source") as caught:
        Selection(store, DocumentFilter(sources="law", labels="b"))
    assert "loosen a filter" in caught.value.hint


def test_equal_choices_have_equal_fingerprints_and_others_do_not(tmp_path: Path) -> None:
    shards, labels = [[5, 6], [7, 2]], ["a", "b"]
    store = make_store(tmp_path / "one", shards, labels=labels)
    same = make_store(tmp_path / "two", shards, labels=labels)
    other = make_store(tmp_path / "three", [[5, 6], [7, 3]], labels=labels)
    first = Selection(store, DocumentFilter(labels=("b", "a"), min_tokens=1)).fingerprint
    assert first == Selection(same, DocumentFilter(labels=("a", "b"))).fingerprint
    assert (
        Selection(store, DocumentFilter(labels="a")).fingerprint
        == Selection(store, DocumentFilter(labels=("a",))).fingerprint
    )
    different = [
        Selection(other, DocumentFilter(labels=("a", "b"))),
        Selection(store),
        Selection(store, DocumentFilter(labels=("a",))),
        Selection(store, DocumentFilter(labels=("a", "b"), min_tokens=3)),
        Selection(store, DocumentFilter(labels=("a", "b"), max_tokens=6)),
        Selection(store, DocumentFilter(labels=("a", "b"), shuffle_documents=0)),
        Selection(store, DocumentFilter(labels=("a", "b"), shuffle_documents=1)),
    ]
    assert len({first, *(selection.fingerprint for selection in different)}) == 1 + len(different)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, "split is 'test': expected one of train, all in .*"),
        ({"labels": ["web"]}, " has no label 'web': expected 'code'"),
        ({"sources": "web"}, " has no source 'web': expected 'made' or 'made-code'"),
        ({"min_tokens": -1}, "min_tokens is -1: expected at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0: expected at least 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "max_tokens is 8: expected at least min_tokens, 9"),
        ({"shuffle_documents": True}, "shuffle_documents is true: expected a whole number"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    store = make_store(tmp_path / "store", [[5], [6]], labels=(None, "code"))
    with pytest.raises(RecipeError, match=message):
        Selection(store, DocumentFilter(**settings))  # type: ignore[arg-type]
