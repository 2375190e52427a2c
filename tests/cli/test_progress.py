"""The tally of a build's events: sums, rates, and what is left, on a clock that the test turns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.cli.output import plain
from packline.cli.progress import WINDOW_SECONDS, Tally, draw, plain_line
from packline.jobs.events import BuildPlanned, EnginesTried, Progress, UnitDone
from packline.viewing.text import cells


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def planned(sources: dict[str, int], **more: Any) -> BuildPlanned:
    values: dict[str, Any] = {
        "files": 3,
        "units": 8,
        "units_done": 0,
        "workers": 2,
        "tokenizer": "gpt2/tokenizer.json",
        "vocab_size": 50257,
        "eod": "<|endoftext|>",
        "eod_id": 50256,
        "dtype": "uint16",
        "seconds": 1.0,
        "sources_done": {},
    }
    return BuildPlanned(sources=sources, **{**values, **more})


def started(sources: dict[str, int]) -> tuple[Tally, Clock]:
    clock = Clock()
    tally = Tally(clock)
    tally.hear(planned(sources))
    tally.hear(EnginesTried([], ["gigatoken"], "asked for"))
    return tally, clock


def test_an_even_build_is_predicted_to_the_second() -> None:
    tally, clock = started({"web": 100_000_000})
    for _ in range(20):
        clock.now += 0.5
        tally.hear(Progress("web", 10, 1_000_000, 250_000))
    rate, tokens = tally.speed()
    assert rate == pytest.approx(2e6, rel=0.06)
    assert tokens == pytest.approx(5e5, rel=0.06)
    assert tally.remaining_seconds() == pytest.approx(40, rel=0.06)
    assert tally.total.documents == 200


def test_a_rate_is_that_of_the_last_seconds() -> None:
    tally, clock = started({"web": 10**9})
    for rate in (10_000_000, 1_000_000):
        for _ in range(int(2 * WINDOW_SECONDS)):
            clock.now += 1
            tally.hear(Progress("web", 1, rate, 1))
    assert tally.speed()[0] == pytest.approx(1e6, rel=0.15)


@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**8), max_size=30))
def test_what_is_done_is_never_all_and_never_less_than_before(expected: int, pieces: list[int]) -> None:
    tally, clock = started({"web": expected})
    last = 0.0
    for piece in pieces:
        clock.now += 1
        tally.hear(Progress("web", 1, piece, piece))
        fraction = tally.sources["web"].fraction
        assert last <= fraction < 1
        last = fraction
        assert (tally.remaining_seconds() or 0) >= 0
    assert tally.total.text_bytes == sum(pieces)


def test_a_stream_that_is_larger_than_guessed_has_something_left() -> None:
    tally, clock = started({"web": 1000})
    clock.now = 5
    tally.hear(Progress("web", 1, 1_000_000, 10))
    assert tally.sources["web"].remaining_bytes > 10_000


@given(st.integers(60, 160), st.lists(st.integers(1, 10**12), min_size=1, max_size=12))
def test_bars_fit_the_terminal(width: int, sizes: list[int]) -> None:
    tally, clock = started({f"source-{n}-名前": expected for n, expected in enumerate(sizes)})
    clock.now = 3
    for name, source in tally.sources.items():
        tally.hear(Progress(name, 12_345, source.expected_bytes // 3, 999))
        tally.hear(UnitDone("u", 1, 1, {}))
    lines = [plain(line) for line in draw(tally, width)]
    assert max(map(cells, lines)) <= width
    assert len(lines) <= 12


def test_a_line_says_how_far_it_is() -> None:
    tally, clock = started({"web": 10_000_000})
    clock.now = 4
    tally.hear(Progress("web", 1_234, 5_000_000, 1_000_000))
    tally.hear(UnitDone("000000", 1_234, 1_000_000, {"ascii": {"gigatoken": 90.0}}))
    assert (
        plain_line(tally) == "50.0%  1,234 documents  1.2 MB/s  250 k tokens/s  1 of 8 units  about 5 s left"
    )
    assert tally.rates == {"ascii": {"gigatoken": 90.0}}


def test_before_the_first_document_it_says_what_it_waits_for() -> None:
    tally = Tally(Clock())
    assert "tokenizer" in plain(draw(tally, 80)[0])
    tally.hear(planned({"web": 1}))
    assert "engines" in plain(draw(tally, 80)[0])
