"""Prices are those of packing, and shares are of what they say."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.facade import Store
from packline.packing.best_fit import BestFit
from packline.packing.in_order import Concat, Pad
from packline.packing.options import DocumentFilter
from packline.packing.packer import Packer
from packline.packing.selection import Selection
from packline.packing.stats import PackingStats, compare_packings
from packline.testing import make_store

NAMES = ["concat", "best_fit", "pad, truncate", "pad, split", "pad, drop"]


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(2, 12), st.sampled_from([0, 0, 2, 9])
)
@example([9], 8, 0)
@example([1, 1, 1], 2, 0)
@example([30, 30], 2, 0)
def test_prices_are_those_of_packing_the_chosen_documents(
    lengths: list[int], seq_len: int, least: int
) -> None:
    kept = [length for length in lengths if length >= least]
    if sum(kept) < seq_len:
        return
    with TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", [lengths, [5, 6, 20]], splits=["train", "val"])
        selection = Selection(store, DocumentFilter(min_tokens=least))
        found = compare_packings(selection, seq_len)
        assert not (store.path / "plans").exists()
        assert [price.name for price in found] == NAMES
        for price in found:
            packer: Packer = Pad(selection, seq_len, overflow=price.overflow or "truncate")
            if price.overflow is None:
                packer = (Concat if price.packing == "concat" else BestFit)(selection, seq_len)
            assert price.counts == packer.counts, price.name


def test_shares_are_of_what_they_say(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", [[6, 6, 13, 3]])
    prices = {price.name: price for price in compare_packings(Selection(store), 10)}
    # concat: rows of 10, 10 and 8 of 28 tokens, the tail kept; documents 1 and 2 are cut.
    assert prices["concat"].padding == 2 / 30 and prices["concat"].split == 2 / 4
    assert prices["concat"].shared == 3 / 3
    # best_fit: 10 of the long one; 6 and 3, 6 and 3.
    assert prices["best_fit"].padding == 2 / 30 and prices["best_fit"].split == 1 / 4
    assert prices["best_fit"].shared == 2 / 3
    assert prices["pad, truncate"].lost == 3 / 28 and prices["pad, truncate"].padding == 15 / 40
    assert prices["pad, drop"].lost == 13 / 28 and prices["pad, drop"].padding == 15 / 30
    for packing, names in (("best_fit", NAMES[1:2]), ("pad", NAMES[2:])):
        assert [price.name for price in compare_packings(Selection(store), 4, [packing])] == names  # type: ignore[list-item]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store", [[3, 4]])


def test_a_packing_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(RecipeError, match="'first_fit': expected one of concat, best_fit, pad"):
        compare_packings(Selection(store), 4, ["first_fit"])  # type: ignore[list-item]


def test_a_price_of_no_rows_has_shares_all_the_same(store: Store) -> None:
    drop = compare_packings(Selection(store), 2, ["pad"])[2]
    assert (drop.name, drop.counts.rows, drop.padding, drop.lost, drop.shared) == ("pad, drop", 0, 0, 1, 0)
    assert isinstance(drop, PackingStats)
