"""The measurement of reuse: files that differ where they should, and what it refuses to report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import reusing
from benchmarks.catalogue import TokenizerFile
from benchmarks.errors import BenchmarkError
from benchmarks.process import Outcome, Peak
from benchmarks.render import render
from benchmarks.results import Results, ReuseRun, load_results, save_results
from benchmarks.tests.test_exporting import MACHINE

TOKENIZER = TokenizerFile("t", "t.json", "</s>", 0)


def run(contender: str, **fields: Any) -> ReuseRun:
    given = {"round": 1, "files": 20, "changed": 0, "text_bytes": 2 * 10**9, "run_text_bytes": 10**8}
    times = {"units": 40, "units_reused": 38, "wall_seconds": 5.0, "seconds": 4.0}
    return ReuseRun(contender=contender, **(given | times | fields))


def test_files_are_distinct_and_the_same_whenever_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "english.jsonl").write_bytes(b'{"id":"1","text":"one"}\n{"id":"2","text":"two"}\n')
    files = [tmp_path / f"{number}.jsonl" for number in range(3)]
    reusing.write_files(tmp_path / "english.jsonl", files, 60, "a")
    before = [path.read_bytes() for path in files]
    texts = [msgspec.json.decode(line)["text"] for data in before for line in data.splitlines()]
    assert texts[:3] == ["a0 one", "a0 two", "a1 one"] and len(set(texts)) == len(texts) >= 6
    reusing.write_files(tmp_path / "english.jsonl", files[:1], 60, "b")
    assert files[0].read_bytes() == before[0].replace(b"a0 ", b"b0 ").replace(b"a1 ", b"b1 ")
    reusing.write_files(tmp_path / "english.jsonl", files[:2], 60, "a")
    assert [path.read_bytes() for path in files] == before
    with pytest.raises(BenchmarkError, match="no corpus"):
        reusing.write_files(tmp_path / "nowhere", files, 60, "a")


def test_a_build_that_encodes_too_much_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = {"text_bytes": 100, "run_text_bytes": 50, "units": 4, "units_reused": 2, "seconds": 1.0}

    def pretend(command: list[str], **_: Any) -> Outcome:
        Path(command[command.index("--out") + 1]).mkdir()
        return Outcome(report, 2.0, Peak(), [], 0)

    monkeypatch.setattr(reusing, "run_fresh", pretend)
    assert reusing.measure_once(tmp_path, "first build", TOKENIZER, 1, 0).wall_seconds == 2.0
    assert reusing.measure_once(tmp_path, "reuse", TOKENIZER, 1, 10).units_reused == 2
    with pytest.raises(BenchmarkError, match="1 of 20 files changed: expected 0 MB"):
        reusing.measure_once(tmp_path, "reuse", TOKENIZER, 1, 1)


def test_the_table_has_the_share_of_the_first_build(tmp_path: Path) -> None:
    results = Results(date="2030-01-01", machine=MACHINE, versions={}, corpora={})
    results.reusing = [
        run("first build", wall_seconds=20.0, run_text_bytes=2 * 10**9, units_reused=0),
        run("reuse", changed=1),
        run("reuse", changed=1, round=2, wall_seconds=6.0),
    ]
    page = render(results)
    assert "| first build |  | 0 of 40 | 20.0 (20.0-20.0) | 1.00 |" in page
    assert "| reuse | 1 | 38 of 40 | 5.5 (5.0-6.0) | 0.28 |" in page
    assert "Other work" not in page
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
