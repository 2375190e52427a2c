"""Progress of jobs: sums, rates, and what is left, on a clock that the test turns; the report of reuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.cli.main import main
from packline.cli.progress import SHOWN, Tally, reuse_lines
from packline.jobs.events import BuildPlanned, EnginesTried, Progress, ReusePlanned, SourceReuse, UnitDone
from packline.store.ledger import Ledger
from packline.viewing.text import plain


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


def shown(planned: ReusePlanned) -> list[str]:
    return [plain(line).rstrip() for line in reuse_lines(planned)]


def test_one_line_for_each_source_and_reason() -> None:
    web = SourceReuse("web", 149, 1_900_000_000, {"content changed": 12, "new file": 1})
    lines = shown(ReusePlanned("old", [web, SourceReuse("books", 3)], 5_000_000, ["old/x is damaged"]))
    assert lines[0].split(maxsplit=1) == ["reuse", "152 of 165 units, about 1.9 GB of text, from old"]
    assert [line.strip() for line in lines[1:]] == [
        "web: 12 units to run: content changed",
        "web: 1 unit to run: new file",
        "5.0 MB of inputs were read to compare their content",
        "damaged: old/x is damaged",
    ]
    many = [SourceReuse(f"s{number}", 0, 0, {"new source": 1}) for number in range(SHOWN + 2)]
    lines = shown(ReusePlanned("old", many, 0))
    assert len(lines) == SHOWN + 2 and lines[-1].strip() == "and 2 more reasons; --json lists all"


def test_the_command_reports_what_it_reuses(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"in/{number}.jsonl", [f"text {number} {place}" for place in range(9)])
    common = [str(tmp_path / "in"), "--tokenizer", str(tokenizer_json), "--workers", "0"]
    assert main(["build", *common, "--out", str(tmp_path / "old")]) == 0
    capsys.readouterr()
    command = ["build", *common, "--out", str(tmp_path / "new"), "--reuse", str(tmp_path / "old"), "--json"]
    os.utime(tmp_path / "in/0.jsonl")
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["units_reused"] == 1 and result["run_text_bytes"] == 0
    (source,) = result["reuse"]["sources"]
    assert source == {"source": "in", "units": 1, "text_bytes": source["text_bytes"], "run": {}}
    absent = ["build", *common, "--out", str(tmp_path / "x"), "--reuse", str(tmp_path / "nowhere"), "--json"]
    assert main(absent) == 1
    assert "StoreNotFound" in capsys.readouterr().out and not (tmp_path / "x").exists()
