"""Mixtures: exact shares after any number of rows, and what cannot be mixed."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows

from packline.errors import RecipeError
from packline.loading import mixture as shares_module
from packline.loading.mixture import Interleaving, Mixture

# Of one kind each time, so that periods stay short enough to go through.
WEIGHTS = st.one_of(
    st.lists(st.integers(1, 60), min_size=1, max_size=9),
    st.lists(st.decimals("0.01", "3", places=2).map(float), min_size=1, max_size=7),
    st.lists(st.fractions(Fraction(1, 12), 2, max_denominator=12), min_size=1, max_size=3),
)


LONGEST_PERIOD = 1 << 10
"""Of the test of rounding; the real one would take a quarter of a second each time."""


def exact(weights: list[int | float | Fraction]) -> list[Fraction]:
    """Shares as they are meant: decimals as they are written, in rational arithmetic."""
    meant = [Fraction(Decimal(str(w))) if isinstance(w, float) else Fraction(w) for w in weights]
    return [weight / sum(meant) for weight in meant]


@given(WEIGHTS)
def test_counts_are_within_one_of_their_shares_after_any_number_of_rows(weights: list[float]) -> None:
    shares = Interleaving(weights)
    assert shares.exact == exact(list(weights))
    period = shares.period
    taken = shares.sources(0, period)
    # Whole numbers: |count - share * k| <= 1 becomes |count * period - part * k| <= period.
    counts = np.cumsum(taken[:, None] == np.arange(len(weights)), axis=0, dtype=np.int64)
    after = np.arange(1, period + 1)[:, None]
    parts = np.array([int(share * period) for share in shares.exact])
    assert np.abs(counts * period - parts * after).max() <= period
    assert counts[-1].tolist() == parts.tolist()  # so every period begins anew, and the law holds for ever


@given(WEIGHTS, st.integers(0, 10**12), st.integers(0, 300))
def test_sources_counts_and_places_agree(weights: list[float], start: int, length: int) -> None:
    shares = Interleaving(weights)
    taken = shares.sources(start, start + length).tolist()
    counts = shares.counts(start)
    assert sum(counts) == start
    for place, source in enumerate(taken, start):
        assert shares.place(source, counts[source]) == place
        assert shares.places(source, np.array([counts[source]])).tolist() == [place]
        counts[source] += 1
    assert shares.counts(start + length) == counts


@given(st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=8))
def test_weights_that_need_a_long_period_are_rounded_and_say_so(weights: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares_module, "LONGEST_PERIOD", LONGEST_PERIOD)
        shares = Interleaving(weights)
    assert shares.period <= LONGEST_PERIOD
    assert sum(shares.exact) == 1
    assert min(shares.exact) > 0
    # A source keeps one row a period at least, which the others give up.
    for found, meant in zip(shares.exact, exact(list(weights)), strict=True):
        assert abs(found - meant) <= Fraction(len(weights), LONGEST_PERIOD)


def test_decimals_count_as_they_are_written() -> None:
    assert Interleaving([0.1, 0.2, 0.7]).parts == [1, 2, 7]
    assert Interleaving([np.float64(0.3), "0.3", Fraction(3, 10), "3/10"]).parts == [1, 1, 1, 1]
    assert Interleaving([2**0.5]).parts == [1]
    assert Interleaving([30, 10]).sources(0, 8).tolist() in ([0, 1, 0, 0] * 2, [0, 0, 1, 0] * 2)


@pytest.mark.parametrize("weight", [0, -0.5, float("nan"), float("inf"), "much", None, True])
def test_a_weight_that_is_none_is_refused(weight: Any) -> None:
    with pytest.raises(RecipeError, match="source 1: expected a weight above 0, found"):
        Mixture([(NumberedRows(3), 1), (NumberedRows(3, source=1), weight)])


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "2", True])
def test_max_epochs_that_make_no_sense_are_refused(epochs: Any) -> None:
    with pytest.raises(RecipeError, match="source 0: expected max_epochs of 1 or more"):
        Mixture([(NumberedRows(3), 1, epochs)])


@pytest.mark.parametrize("entry", [(NumberedRows(3),), (NumberedRows(3), 1, 1, 1), NumberedRows(3)])
def test_a_source_without_a_weight_is_refused(entry: object) -> None:
    with pytest.raises(RecipeError, match=r"expected \(rows, weight\)"):
        Mixture([entry])  # type: ignore[list-item]


def test_what_cannot_share_a_batch_is_refused() -> None:
    rows = NumberedRows(3)
    with pytest.raises(RecipeError, match="at least one source"):
        Mixture([])
    with pytest.raises(RecipeError, match="source 1: expected rows of 4 tokens as in source 0, found 8"):
        Mixture([(rows, 1), (NumberedRows(3, 8, source=1), 1)])
    with pytest.raises(RecipeError, match=r"tokenizer bytes .* in source 0, found words"):
        Mixture([(rows, 1), (NumberedRows(3, source=1, tokenizer="words"), 1)])
    with pytest.raises(RecipeError, match="sources 0 and 2 are the same rows"):
        Mixture([(rows, 1), (NumberedRows(3, source=1), 1), (NumberedRows(3), 2)])
    with pytest.raises(RecipeError, match="source 1 has no rows"):
        Mixture([(rows, 1), (NumberedRows(0, source=1), 1)])


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 3))),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_the_limit_is_the_last_row_before_a_source_is_used_up(
    sources: list[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    mixture = Mixture(
        (NumberedRows(count, source=number), weight, epochs)
        for number, (count, weight, epochs) in enumerate(sources)
    )
    drawn = [data.draw(st.integers(0, count * (epochs or 1))) for count, _, epochs in sources]
    limit = mixture.limit(drawn)

    def used_up(rows: int) -> bool:
        counts = mixture.interleaving.counts(rows)
        return any(
            epochs is not None and before + taken > epochs * count
            for (count, _, epochs), before, taken in zip(sources, drawn, counts, strict=True)
        )

    if limit is None:
        assert all(epochs is None for _, _, epochs in sources)
    else:
        assert not used_up(limit)
        assert used_up(limit + 1)


def test_a_mixture_cut_to_another_length_keeps_its_shares() -> None:
    mixture = Mixture([(NumberedRows(3, 8), 1, 2), (NumberedRows(5, 8, source=1), 3, None)])
    cut = mixture.split_to(4)
    assert (cut.seq_len, [len(rows) for rows in cut.rows]) == (4, [6, 10])
    assert (cut.shares, cut.max_epochs) == ([Fraction(1, 4), Fraction(3, 4)], (2, None))
    assert mixture.split_to(8) is mixture
    for seq_len in (3, 16, 0):
        with pytest.raises(RecipeError, match="cannot cut rows of 8 tokens"):
            mixture.split_to(seq_len)
    assert "0.25 of" in repr(mixture)
