"""Orders: each row once an epoch, another order every epoch, and the way back."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.loading import schedule as order_module
from packline.loading.schedule import Order

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**64)


@given(SIZES, SEEDS, st.integers(0, 5), st.booleans())
def test_each_row_comes_once_an_epoch(rows: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = Order(rows, seed, 0, shuffle=shuffle)
    drawn = order.between(epoch * rows, (epoch + 1) * rows)
    assert sorted(drawn.tolist()) == list(range(rows))
    if not shuffle:
        assert drawn.tolist() == list(range(rows))


@given(SIZES, SEEDS, st.integers(0, 2000), st.integers(0, 700), st.booleans())
def test_any_stretch_is_what_its_draws_are_alone(
    rows: int, seed: int, start: int, count: int, shuffle: bool
) -> None:
    order = Order(rows, seed, 3, shuffle=shuffle)
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


def test_epochs_sources_and_seeds_have_orders_of_their_own() -> None:
    first = Order(500, 1, 0).between(0, 500)
    others = [
        Order(500, 1, 0).between(500, 1000),
        Order(500, 1, 1).between(0, 500),
        Order(500, 2, 0).between(0, 500),
    ]
    for other in others:
        # Two random orders agree in one place on average.
        assert (first == other).sum() < 10
    assert np.array_equal(Order(500, 1, 0).between(0, 500), first)


def between(order: Order) -> list[int]:
    return order.between(10, 20).tolist()


def test_an_order_goes_to_another_process_without_its_block() -> None:
    order = Order(10_000_000, 1, 2)
    expected = between(order)
    assert len(order.__getstate__()["_block"][2]) == 0  # type: ignore[index]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(between, (order,)) == expected


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_not_there_is_refused(shuffle: bool) -> None:
    with pytest.raises(RecipeError, match="has none"):
        Order(0, 1)
    for row in (-1, 5):
        with pytest.raises(IndexError, match=r"outside range\(5\)"):
            Order(5, 1, shuffle=shuffle).draws_of(np.array([row]), 0)
