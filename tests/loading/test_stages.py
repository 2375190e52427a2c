"""Stages in sequence: how many steps, where orders go on, and what is refused before the first batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loading.numbered import NumberedRows

from packline.errors import RecipeError
from packline.loading.mixture import Mixture, Stage
from packline.loading.order import row_order
from packline.loading.schedule import Schedule
from packline.packing.options import LoaderOptions
from packline.permutation import Permutation

Drawn = list[tuple[int, int, int]]


def schedule(*stages: Stage, batch_size: int | None = 2, seed: int = 1, shuffle: bool = True) -> Schedule:
    return Schedule(stages, batch_size=batch_size, seed=seed, order=row_order(LoaderOptions(shuffle=shuffle)))


def draws(schedule: Schedule) -> Drawn:
    """(stage, source, row) of every row of the run in order."""
    found = []
    for step in range(len(schedule)):
        drawn = schedule.rows_of_step(step)
        pairs = zip(drawn.sources.tolist(), drawn.rows.tolist(), strict=True)
        found += [(drawn.stage, source, row) for source, row in pairs]
    return found


def test_a_stage_is_as_many_whole_batches_as_fit_into_its_tokens() -> None:
    rows = NumberedRows(100, 4)
    made = schedule(Stage(rows, tokens=83), Stage(rows, tokens=24, batch_size=6))
    assert [(s.first_step, s.steps, s.batch_size) for s in made.stages] == [(0, 10, 2), (10, 1, 6)]
    assert len(made) == 11
    assert [made.stage_of(step).number for step in (0, 9, 10)] == [0, 0, 1]
    for step in (-1, 11):
        with pytest.raises(IndexError, match="of 11"):
            made.rows_of_step(step)


RUNS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from([1, 2, 3, None])),
            min_size=1,
            max_size=3,
            unique_by=lambda source: source[0],
        ),
        st.integers(1, 6),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=3,
)
SIZES = (5, 8, 13, 40)


def build(run: list[tuple[list[tuple[int, int, int | None]], int, int]], seed: int) -> Schedule | None:
    """Stages of (sources, batch size, steps) over four sources of few rows, where these suffice."""
    stages = [
        Stage(
            Mixture(
                (NumberedRows(SIZES[number], source=number), weight, epochs)
                for number, weight, epochs in sources
            ),
            tokens=steps * size * 4,
            batch_size=size,
        )
        for sources, size, steps in run
    ]
    try:
        return schedule(*stages, batch_size=None, seed=seed)
    except RecipeError as error:
        assert "is longer than its sources" in error.message
        return None


@given(RUNS, st.integers(0, 9))
def test_sources_go_on_through_stages_and_no_row_comes_more_often_than_it_may(
    run: list[tuple[list[tuple[int, int, int | None]], int, int]], seed: int
) -> None:
    made = build(run, seed)
    if made is None:
        return
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    for stage, source, row in draws(made):
        seen[run[stage][0][source][0]].append(row)
    for number, rows in seen.items():
        # Cut into epochs, every one holds each row once; the last may be short.
        epochs = [rows[start : start + SIZES[number]] for start in range(0, len(rows), SIZES[number])]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert all(len(epoch) == SIZES[number] for epoch in epochs[:-1])
        # `max_epochs` of the last stage that draws a source bounds all of its draws.
        last = [
            epochs_allowed
            for sources, _, _ in run
            for source, _, epochs_allowed in sources
            if source == number
        ]
        if last and last[-1] is not None:
            assert len(rows) <= max(e if e is not None else len(rows) for e in last) * SIZES[number]


@given(RUNS, st.integers(0, 9), st.booleans())
def test_the_way_back_finds_each_row_exactly_where_it_is(
    run: list[tuple[list[tuple[int, int, int | None]], int, int]], seed: int, every_row: bool
) -> None:
    made = build(run, seed)
    if made is None:
        return
    there: set[tuple[int, int, int, int, int, int]] = set()
    for step in range(len(made)):
        drawn = made.rows_of_step(step)
        for place in range(len(drawn.rows)):
            source, row, epoch = (int(a[place]) for a in (drawn.sources, drawn.rows, drawn.epochs))
            there.add((drawn.stage, source, row, epoch, step, place))
    back: set[tuple[int, int, int, int, int, int]] = set()
    for stage in made.stages:
        for source, rows in enumerate(stage.mixture.rows):
            wanted = [np.arange(len(rows))] if every_row else [np.array([row]) for row in range(len(rows))]
            for some in wanted:
                uses = made.occurrences_of(stage.number, source, some)
                assert np.all(np.diff(uses.steps) >= 0)
                arrays = (uses.rows, uses.epochs, uses.steps, uses.places)
                for row, epoch, step, place in zip(*(array.tolist() for array in arrays), strict=True):
                    back.add((stage.number, source, row, epoch, step, place))
    assert back == there
    assert made.occurrences_of(0, 0, np.empty(0, np.int64)).rows.tolist() == []


def test_sources_of_one_size_have_orders_of_their_own_and_these_never_change() -> None:
    """Row of draw k of source n: what a resumed run relies on, written out."""
    mixture = Mixture((NumberedRows(50, source=source), 1, 2) for source in range(3))
    other_first = Stage(NumberedRows(50, source=2), tokens=40)
    found = draws(schedule(other_first, Stage(mixture, tokens=3 * 60 * 4), seed=7))
    numbers = {2: 0, 0: 1, 1: 2}  # by first appearance in the run
    for source in range(3):
        rows = [row for stage, place, row in found if (stage, place) in {(1, source), (0, source - 2)}]
        expected = [
            int(Permutation(50, 7, numbers[source], draw // 50)(np.array([draw % 50]))[0])
            for draw in range(len(rows))
        ]
        assert rows == expected
        assert len(rows) == 60 + 10 * (source == 2)


def test_a_source_that_does_not_last_is_refused_with_what_is_missing() -> None:
    short, long = NumberedRows(10), NumberedRows(1000, source=1)
    with pytest.raises(RecipeError, match=r"stage 0 is longer .*: source 0 \(store-0\) needs 12 rows") as e:
        schedule(Stage(short, tokens=48))
    assert "has 10 x 1 epochs: 2 are missing" in e.value.message
    assert "max_epochs = 2 for source 0" in e.value.hint
    schedule(Stage(short, tokens=40))  # all of its rows
    mixture = Mixture([(long, 1), (short, 1, 2)])
    schedule(Stage(mixture, tokens=40 * 4))
    with pytest.raises(
        RecipeError, match=r"source 1 \(.*\) needs 21 rows and has 10 x 2 epochs: 1 are missing"
    ):
        schedule(Stage(mixture, tokens=42 * 4))
    with pytest.raises(RecipeError, match=r"stage 1 .* source 0 .* needs 4 rows after 8 in earlier stages"):
        schedule(Stage(short, tokens=32), Stage(short, tokens=16))
    # What the hint says is enough, and without a limit anything is.
    schedule(Stage(Mixture([(short, 1, 2)]), tokens=48))
    schedule(Stage(Mixture([(short, 1, None)]), tokens=48_000))


def test_stages_that_make_no_sense_are_refused() -> None:
    rows = NumberedRows(10)
    with pytest.raises(RecipeError, match="at least one stage"):
        schedule()
    with pytest.raises(RecipeError, match="at least one batch of 2 rows of 4 tokens, found 7 tokens"):
        schedule(Stage(rows, tokens=7))
    with pytest.raises(RecipeError, match="at least one batch of 11 rows of 4 tokens, found 10 rows"):
        schedule(Stage(rows), batch_size=11)
    with pytest.raises(RecipeError, match="stage 0 has no end"):
        schedule(Stage(Mixture([(rows, 1, None)])))
    for size in (None, 0, -2):
        with pytest.raises(RecipeError, match="stage 0: expected a batch_size above 0"):
            schedule(Stage(rows), batch_size=size)
    with pytest.raises(RecipeError, match="batch_size above 0, found 0"):
        Stage(rows, batch_size=0)
    with pytest.raises(RecipeError, match="tokens of a stage above 0, found 0"):
        Stage(rows, tokens=0)
    with pytest.raises(RecipeError, match="cannot cut rows of 4 tokens into rows of 3"):
        Stage(rows, seq_len=3)
    other = NumberedRows(10, source=1, tokenizer="words")
    with pytest.raises(RecipeError, match=r"stage 1: expected ids of the tokenizer bytes .* as in stage 0"):
        schedule(Stage(rows), Stage(other))


def test_a_run_of_a_billion_rows_is_made_at_once() -> None:
    """Closed forms: nothing of the size of the run is computed or kept."""
    mixture = Mixture([(NumberedRows(10**9), 0.9, 50), (NumberedRows(10**8, source=1), 0.1, None)])
    made = schedule(Stage(mixture, tokens=10**10 * 4), batch_size=1000)
    last = made.rows_of_step(len(made) - 1)
    assert len(made) == 10**7
    assert Counter(last.sources.tolist()) == {0: 900, 1: 100}
    assert set(last.epochs.tolist()) == {8, 9}
    uses = made.occurrences_of(0, int(last.sources[3]), last.rows[3:4])
    assert (len(made) - 1, 3) in zip(uses.steps.tolist(), uses.places.tolist(), strict=True)
