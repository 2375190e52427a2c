"""The tally of a build's events: sums, rates, and what is left, on a clock that the test turns."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from packline.cli.output import MOST_BARS, Row, State
from packline.cli.progress import Tally
from packline.cli.transfer import Bars
from packline.jobs.events import BuildPlanned, EnginesTried, Progress, UnitDone
from packline.store.ledger import Ledger
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


def drawn(state: Callable[[], State], width: int) -> list[str]:
    """Lines of the bars on a terminal of that width."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(*Bars(state, console).get_renderables())
    return captured.get().splitlines()


@given(st.integers(1, 10**9), st.lists(st.integers(0, 10**8), max_size=30))
def test_what_is_done_is_never_all_and_never_less_than_before(expected: int, pieces: list[int]) -> None:
    tally, clock = started({"web": expected})
    last = 0.0
    for piece in pieces:
        clock.now += 1
        tally.hear(Progress("web", 1, piece, piece))
        done, kept, whole, noun = tally.measure()
        assert (kept, noun) == (0, "bytes")
        assert last <= round(done / whole, 9) < 1
        last = round(done / whole, 9)
    assert tally.text_bytes == sum(pieces)


def test_a_stream_that_is_larger_than_guessed_has_something_left() -> None:
    tally, clock = started({"web": 1000})
    clock.now = 5
    tally.hear(Progress("web", 1, 1_000_000, 10))
    assert tally.sources["web"].whole_bytes > 1_010_000


def test_work_of_an_earlier_run_is_done_and_no_part_of_the_rate() -> None:
    clock = Clock()
    tally = Tally(clock)
    tally.hear(planned({"web": 10_000_000}, sources_done={"web": Ledger(documents=5, text_bytes=4_000_000)}))
    tally.hear(EnginesTried([], ["gigatoken"], "asked for"))
    clock.now = 2
    tally.hear(Progress("web", 5, 1_000_000, 100))
    assert tally.line() == "50.0%  10 documents  500 kB/s  50 tokens/s  0 of 8 units  about 10 s left"


@given(st.sampled_from([80, 100, 120, 160]), st.lists(st.integers(1, 10**12), min_size=1, max_size=12))
def test_bars_fit_the_terminal(width: int, sizes: list[int]) -> None:
    tally, clock = started({f"source-{n}-[b]-名前": expected for n, expected in enumerate(sizes)})
    clock.now = 3
    for name, source in tally.sources.items():
        tally.hear(Progress(name, 12_345, source.expected_bytes // 3, 999))
        tally.hear(UnitDone("u", 1, 1, {}))
    lines = drawn(tally.state, width)
    assert max(map(cells, lines)) <= width
    assert len(lines) == (1 if len(sizes) == 1 else min(len(sizes), MOST_BARS) + 1)
    assert all(re.search("[━╸╺]{3}.* 33%", line) for line in lines if min(sizes) > 100)
    assert "[b]" in lines[0]


def test_a_total_that_grows_does_not_forget_the_rate() -> None:
    done = [0]

    def state() -> State:
        return [Row("web", done[0], 2 * done[0] + 10, "bytes", "\x1b[31mred")]

    now = [0.0]
    bars = Bars(state, Console(file=io.StringIO(), width=100))
    bars.get_time = lambda: now[0]
    for _ in range(5):
        now[0] += 1
        done[0] += 2_000_000
        bars.get_renderables()
    task = bars.tasks[0]
    assert task.speed == pytest.approx(2e6)
    assert task.total == 2 * done[0] + 10
    assert "\x1b" not in task.fields["says"]


def test_a_line_says_how_far_it_is() -> None:
    tally, clock = started({"web": 10_000_000})
    clock.now = 4
    tally.hear(Progress("web", 1_234, 5_000_000, 1_000_000))
    tally.hear(UnitDone("000000", 1_234, 1_000_000, {"ascii": {"gigatoken": 90.0}}))
    assert tally.line() == "50.0%  1,234 documents  1.2 MB/s  250 k tokens/s  1 of 8 units  about 5 s left"
    assert tally.rates == {"ascii": {"gigatoken": 90.0}}


def test_before_the_first_document_it_says_what_it_waits_for() -> None:
    tally = Tally(Clock())
    (line,) = drawn(tally.state, 80)
    assert "tokenizer" in line
    tally.hear(planned({"web": 1}))
    (line,) = drawn(tally.state, 80)
    assert "engines" in line


def test_rich_is_not_imported_without_a_terminal() -> None:
    code = """
import sys
from packline.cli.output import output
from packline.cli.progress import Tally, watch, watch_bytes
with watch(Tally()), watch_bytes("reading") as hear:
    hear(1, 2)
assert not any(name.partition(".")[0] == "rich" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
