"""A page is data: plain values all the way down, which nothing changes; bars have one scale."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.viewing.page import Block, Page, bar_cells

PLAIN = (str, int, float, bool, bytes, type(None))
VALUES = st.lists(st.tuples(st.floats(0, 1e12), st.text(max_size=3)), max_size=6).map(tuple)


def kinds_within(kind: Any, seen: set[type]) -> None:
    """Collect the classes of a page's parts; refuse a type that is neither plain, a tuple nor one of them."""
    if get_origin(kind) is Literal or kind is ... or kind in PLAIN:
        return
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind not in seen:
            seen.add(kind)
            for inner in get_type_hints(kind).values():
                kinds_within(inner, seen)
        return
    arguments = get_args(kind)
    assert arguments and get_origin(kind) is not list and get_origin(kind) is not dict, kind
    for inner in arguments:
        kinds_within(inner, seen)


def test_a_page_holds_only_plain_values_that_nothing_changes() -> None:
    seen: set[type] = set()
    kinds_within(Page, seen)
    assert set(get_args(Block)) < seen
    for kind in seen:
        parameters: Any = kind.__dataclass_params__  # type: ignore[attr-defined]
        assert parameters.frozen and parameters.eq, kind
        assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind), kind


@given(VALUES)
def test_bars_of_a_column_have_one_scale(values: tuple[tuple[float, str], ...]) -> None:
    bars = bar_cells(values)
    top = max((value for value, _ in values), default=0.0)
    assert [bar.shown for bar in bars] == [shown for _, shown in values]
    for (value, _), bar in zip(values, bars, strict=True):
        assert 0 <= bar.share <= 1
        assert bar.share * top == pytest.approx(value)
