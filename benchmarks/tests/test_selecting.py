"""The measurement of selections: the store has what its text says, and every case is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import selecting
from benchmarks.render import render
from benchmarks.results import load_results, new_results, save_results
from benchmarks.selecting import CASES, LISTED, make_large_store, measure_selecting
from packline.packing.options import DocumentFilter
from packline.packing.selection import Selection


def test_every_case_is_measured_in_a_fresh_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "SHARD", 3000)
    told: list[str] = []
    runs = measure_selecting(tmp_path / "new", documents=8000, rounds=1, say=told.append)
    assert [run.case for run in runs] == list(CASES) and len(told) == 1 + len(CASES)
    chosen = {run.case: run.selected for run in runs}
    assert chosen["where"] == chosen["where, again"] < 4000
    assert 7000 < chosen["unique"] < 7500 and chosen["exclude"] == 8000 - 8000 * LISTED
    assert all(run.wall_seconds > run.seconds > 0 and run.resident_bytes > 20 << 20 for run in runs)
    assert list((tmp_path / "new").iterdir()) == []
    results = new_results({})
    results.selecting = runs
    save_results(tmp_path / "results.json", results)
    assert "three columns | 8,000 | " in render(load_results(tmp_path / "results.json"))


def test_the_store_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "SHARD", 400)
    stores = [make_large_store(tmp_path / name / "store", 1000) for name in ("one", "two")]
    assert stores[0].manifest.checksum == stores[1].manifest.checksum
    hashes = [origin.hash for origin in map(stores[0].provenance, range(1000))]
    assert 1000 - len(set(hashes)) == 1000 - len(Selection(stores[0], DocumentFilter(unique=True)))
    assert 50 < 1000 - len(set(hashes)) < 150
    lengths = np.concatenate([shard.lengths for shard in stores[0].shards])
    assert 300 < np.median(lengths) < 700
