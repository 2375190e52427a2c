"""Orders: each row once an epoch, another order every epoch, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.loading import order as order_module
from packline.loading.order import Order, RowOrder, row_order
from packline.packing.options import LoaderOptions, check_options

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**64)
BLOCKS = st.builds(
    lambda rows, blocks: row_order(LoaderOptions(order="blocks", block_rows=rows, window_blocks=blocks)),
    st.integers(1, 40),
    st.integers(1, 12),
)
ORDERS = st.one_of(st.just(row_order()), st.just(row_order(LoaderOptions(shuffle=False))), BLOCKS)


@given(SIZES, SEEDS, st.integers(0, 5), ORDERS)
def test_each_row_comes_once_an_epoch(rows: int, seed: int, epoch: int, how: RowOrder) -> None:
    order = Order(rows, seed, 0, order=how)
    drawn = order.between(epoch * rows, (epoch + 1) * rows)
    assert sorted(drawn.tolist()) == list(range(rows))
    if how.kind == "stored":
        assert drawn.tolist() == list(range(rows))


@given(SIZES, SEEDS, BLOCKS)
def test_the_first_epoch_takes_windows_in_stored_order(rows: int, seed: int, how: RowOrder) -> None:
    drawn, size = Order(rows, seed, order=how).between(0, rows), how.window_rows
    for first in range(0, rows, size):
        window = sorted(drawn[first : first + size].tolist())
        assert window == list(range(first, min(first + size, rows)))


@given(st.integers(1, 6), st.integers(0, 200), SEEDS, BLOCKS)
def test_full_windows_of_the_first_epoch_do_not_depend_on_later_rows(
    windows: int, more: int, seed: int, how: RowOrder
) -> None:
    rows = windows * how.window_rows
    short, long = Order(rows, seed, 2, order=how), Order(rows + more, seed, 2, order=how)
    assert np.array_equal(short.between(0, rows), long.between(0, rows))
    assert np.array_equal(short.draws_of(np.arange(rows), 0), long.draws_of(np.arange(rows), 0))


@given(SIZES, SEEDS, st.integers(1, 4), BLOCKS)
def test_every_window_of_a_later_epoch_is_made_of_whole_blocks(
    rows: int, seed: int, epoch: int, how: RowOrder
) -> None:
    drawn, size = Order(rows, seed, order=how).between(epoch * rows, (epoch + 1) * rows), how.window_rows
    last = rows // how.block_rows  # the short block, if any
    for first in range(0, rows, size):
        window = drawn[first : first + size]
        blocks, counts = np.unique(window // how.block_rows, return_counts=True)
        assert (counts[blocks < last] == how.block_rows).all()
    if rows % how.block_rows:
        assert (drawn[-size if rows % size == 0 else -(rows % size) :] // how.block_rows == last).any()


def test_blocks_are_permuted_from_the_second_epoch_on() -> None:
    order = Order(8000, 1, order=row_order(LoaderOptions(order="blocks", block_rows=10, window_blocks=20)))
    first, second, third = (order.between(e * 8000, e * 8000 + 200) // 10 for e in range(3))
    assert set(first.tolist()) == set(range(20))
    assert len({*second.tolist()} & {*third.tolist()}) < 5
    assert max(second) - min(second) > 400


@given(SIZES, SEEDS, st.integers(0, 2000), st.integers(0, 700), ORDERS)
def test_any_stretch_is_what_its_draws_are_alone(
    rows: int, seed: int, start: int, count: int, how: RowOrder
) -> None:
    order = Order(rows, seed, 3, order=how)
    draws = np.arange(start, start + count)
    expected = order(draws)
    assert order.between(start, start + count).tolist() == expected.tolist()
    for draw, row in list(zip(draws.tolist(), expected.tolist(), strict=True))[:5]:
        epoch = draw // rows
        assert order.draws_of(np.array([row]), epoch).tolist() == [draw]


def test_a_stretch_across_blocks_is_seamless(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Order(1000, 1).between(0, 5100)
    monkeypatch.setattr(order_module, "ORDER_BLOCK", 64)
    order = Order(1000, 1)
    assert np.array_equal(order.between(0, 5100), expected)
    for start in (4990, 0, 63, 64, 65, 1000):
        assert np.array_equal(order.between(start, start + 70), expected[start : start + 70])
    with pytest.raises(ValueError, match="read-only"):
        order.between(0, 3)[0] = 7


@pytest.mark.parametrize(
    "how",
    [row_order(), row_order(LoaderOptions(shuffle=False)), row_order(LoaderOptions(order="blocks"))],
    ids=str,
)
def test_what_is_not_there_is_refused(how: RowOrder) -> None:
    with pytest.raises(RecipeError, match="has none"):
        Order(0, 1)
    for row in (-1, 5):
        with pytest.raises(IndexError, match=r"outside range\(5\)"):
            Order(5, 1, order=how).draws_of(np.array([row]), 0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"order": "sorted"}, "order is 'sorted': expected blocks or global"),
        ({"block_rows": 8}, "block_rows is 8, and order is global"),
        ({"order": "blocks", "shuffle": False}, "expected one of them"),
        ({"order": "blocks", "window_blocks": 1 << 40}, "expected at most"),
    ],
)
def test_orders_that_cannot_be_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        row_order(check_options(LoaderOptions(**settings)))
