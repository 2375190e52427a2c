"""The measurement of merging: stores that differ where they should, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import merging
from benchmarks.render import render
from benchmarks.results import MergeRun, Results, load_results, save_results
from benchmarks.tests.test_exporting import MACHINE
from packline.facade import Store
from packline.jobs.merging import run_merge
from packline.store.difference import diff
from packline.testing import make_store


def run(case: str, **fields: Any) -> MergeRun:
    given = {"round": 1, "store_bytes": 10**10, "documents": 5 * 10**6, "shards": 160, "changed": 0}
    return MergeRun(case=case, **(given | {"wall_seconds": 2.0, "peak_bytes": 10**8} | fields))


def test_stores_differ_in_the_documents_of_some_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SHARD_BYTES", 1 << 12)
    monkeypatch.setattr(merging, "MEAN_TOKENS", 4)
    small = make_store(tmp_path / "small", [[9, 4, 30]])
    for number, sources in enumerate(merging.SOURCES):
        merging.write_store(small, tmp_path / str(number), sources, 1 << 14, number)
    run_merge([tmp_path / "0", tmp_path / "1"], tmp_path / "merged")
    store = Store(tmp_path / "merged")
    assert len(store.shards) == 8 and len(store.documents) == 8 * 512
    merging.change_store(store.path, tmp_path / "equal", 0)
    assert diff(store.path, tmp_path / "equal").equal
    merging.change_store(store.path, tmp_path / "some", 4)
    found = diff(store.path, tmp_path / "some")
    assert sum(source.counts.changed for source in found.sources) == 2 * 6
    assert len(found.equal_sources) == 2


def test_the_table_has_seconds_and_memory(tmp_path: Path) -> None:
    results = Results(date="2030-01-01", machine=MACHINE, versions={}, corpora={})
    results.merging = [run("merge"), run("merge", wall_seconds=3.0), run("diff, some changed", changed=8)]
    page = render(results)
    assert "| 10.0 GB in 160 shards, 5,000,000 documents, whole command |" in page
    assert "| `merge` |  | 2.5 (2.0-3.0) | 100 MB |" in page
    assert "| diff, some changed | 8 | 2.0 (2.0-2.0) | 100 MB |" in page
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
