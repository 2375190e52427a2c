"""The measurement of best_fit: what it reports is what was packed, and wrong work is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import packing
from benchmarks.contenders.best_fit import pack_naively
from benchmarks.errors import BenchmarkError
from benchmarks.figures import packing_figures
from benchmarks.process import Outcome, Peak
from benchmarks.render import figure_table, render
from benchmarks.results import PackingRun, load_results, new_results, save_results


def run(contender: str, **changes: Any) -> PackingRun:
    fields: dict[str, Any] = {
        "documents": 10**6,
        "seq_len": 10,
        "round": 1,
        "tokens": 900,
        "rows": 100,
        "wall_seconds": 4.0,
        "seconds": 2.0,
        "resident_bytes": 10**9,
    }
    return PackingRun(contender=contender, **{**fields, **changes})


def test_both_ways_of_packing_are_measured_in_fresh_processes(tmp_path: Path) -> None:
    told: list[str] = []
    runs = packing.measure_packing(
        tmp_path / "new", documents=3000, compared=1000, seq_len=512, rounds=1, say=told.append
    )
    assert [(one.contender, one.documents) for one in runs] == [
        ("packline", 3000),
        ("packline", 1000),
        ("naive", 1000),
    ]
    assert runs[1].rows == runs[2].rows and runs[1].tokens == runs[2].tokens < runs[0].tokens
    assert all(one.wall_seconds > one.seconds > 0 and one.resident_bytes > 20 << 20 for one in runs)
    assert all(0 <= one.padding_share < 0.1 for one in runs)
    assert len(told) == 3 and list((tmp_path / "new").iterdir()) == []


def test_lengths_are_the_same_whatever_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BLOCK", 100)
    packing.write_lengths(tmp_path / "few", 250)
    packing.write_lengths(tmp_path / "many", 1000)
    few, many = (np.fromfile(tmp_path / name, "<i4") for name in ("few", "many"))
    assert len(few) == 250 and len(many) == 1000 and np.array_equal(few, many[:250])
    assert 400 < np.median(many) < 600 and many.min() >= 1


def test_the_naive_packing_is_best_fit_decreasing() -> None:
    # 7 and 3, 6 and 4, 5 and 2: a first fit in this order would leave the 2 nowhere else either way,
    # but the 3 must go to the 7 and not to the 6.
    assert pack_naively(np.array([5, 3, 6, 4, 7, 2]), 10) == 3
    assert pack_naively(np.array([10, 20, 25]), 10) == 6


def test_a_contender_that_packs_too_little_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(*_: Any, **__: Any) -> Outcome:
        report = {"documents": 1000, "tokens": 10**6, "rows": 3, "seconds": 1.0, "resident_bytes": 1}
        return Outcome(report, 1.0, Peak(), [], 0)

    monkeypatch.setattr(packing, "run_fresh", pretend)
    with pytest.raises(BenchmarkError, match="into 3 rows: expected 1,000 documents, and rows for 1,000,000"):
        packing.measure_packing(tmp_path, documents=1000, compared=1000, seq_len=512, rounds=1, say=print)
    with pytest.raises(BenchmarkError, match="packed 1,000 documents"):
        packing.measure_packing(tmp_path, documents=999, compared=9, seq_len=512, rounds=1, say=print)


def test_figures_are_of_the_most_documents_and_of_pairs_of_one_round(tmp_path: Path) -> None:
    results = new_results({})
    assert packing_figures(results) == []
    results.packing = [
        run("packline", documents=10**8, wall_seconds=61.0, resident_bytes=2 * 10**9),
        run("packline", rows=100, tokens=900),
        run("naive", rows=100, tokens=1900, seq_len=20),
    ]
    seconds, memory, padding = results.figures = packing_figures(results)
    assert (seconds.spread.median, memory.spread.median) == (61.0, 2.0)
    assert padding.spread.median == pytest.approx(0.1 / 0.05)
    assert [one.reached for one in (seconds, memory, padding)] == [False, True, False]
    assert "packing: best_fit, 100 million documents, GB | 2.00 |" in figure_table(results.figures)
    results.packing = [run("packline"), run("naive")]
    assert packing_figures(results)[2].reached
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
    assert "| **packline, best_fit** | 1,000,000 | 10 | 4.0 (4.0-4.0) | 1.00 GB |" in render(results)
