"""The tally of a build's events: sums, rates, and what is left, on a clock that the test turns."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from packline.cli.progress import Tally
from packline.jobs.events import BuildPlanned, EnginesTried, Progress, UnitDone
from packline.store.ledger import Ledger


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


def started(sources: dict[str, int], **more: Any) -> tuple[Tally, Clock]:
    clock = Clock()
    tally = Tally(clock)
    tally.hear(planned(sources, **more))
    tally.hear(EnginesTried([], ["gigatoken"], "asked for"))
    return tally, clock


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


def test_work_of_an_earlier_run_is_done_and_no_part_of_the_rate() -> None:
    earlier = {"web": Ledger(documents=5, text_bytes=4_000_000)}
    tally, clock = started({"web": 10_000_000}, sources_done=earlier)
    clock.now = 2
    tally.hear(Progress("web", 5, 1_000_000, 100))
    tally.hear(UnitDone("000000", 5, 100, {"ascii": {"gigatoken": 90.0}}))
    line = "50.0%  10 documents  500 kB/s  50 tokens/s  1 of 8 units  about 10 s left"
    assert tally.state() == (0.5, line)
    assert tally.rates == {"ascii": {"gigatoken": 90.0}}


def test_before_the_first_document_it_says_what_it_waits_for() -> None:
    tally = Tally(Clock())
    assert "tokenizer" in tally.state()[1]
    tally.hear(planned({"web": 1}))
    assert "engines" in tally.state()[1]


def test_rich_is_not_imported_without_a_terminal() -> None:
    code = """
import sys
from packline.cli.output import output
from packline.cli.progress import watch, watch_bytes
with watch(), watch_bytes("reading") as hear:
    hear(1, 2)
assert not any(name.partition(".")[0] == "rich" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
