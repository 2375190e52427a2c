"""The measurement of a cold disk: every order reads the same store, and the table shows each."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cold
from benchmarks.render import cold_table
from benchmarks.results import Results, load_results, save_results


def test_every_order_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "SHARD_TOKENS", 1 << 18)
    results = Results(date="2030-01-01", machine={"busy_cores_at_start": 0.0}, versions={}, corpora={})
    said: list[str] = []
    cold.measure_cold(tmp_path, results, size=1 << 20, rounds=1, seconds=1.0, say=said.append)
    names = ["plain reads of whole files", *(name for name, _ in cold.CONTENDERS)]
    assert [run.contender for run in results.cold] == names
    assert results.cold[0].bytes == 1 << 20
    assert all(run.bytes == 1 << 20 for run in results.cold[1:])
    assert not (tmp_path / "cold").exists()
    table = cold_table(results)
    assert cold.disk_of(tmp_path) and cold.disk_of(tmp_path) in table
    assert all(name in table for name in names) and "**blocks**" in table
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json").cold == results.cold
