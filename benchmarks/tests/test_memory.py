"""The measurement of memory: what it sees is what a build took, and a build that understates it is caught."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.catalogue import Contender, TokenizerFile
from benchmarks.errors import BenchmarkError

TOKENIZER = TokenizerFile("t", "tokenizer.json", "<|endoftext|>", 0)
BUILD = """
import json, subprocess, sys
lines = open(sys.argv[1]).readlines()
child = "import time; x = b'x' * (%d << 20); time.sleep(0.5)"
if %d:
    subprocess.run([sys.executable, "-c", child])
print(json.dumps({"documents": len(lines), "peak_rss_bytes": %d << 20}))
"""


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch):
    """Replace the build by a script whose child takes so many MiB and that reports so many."""

    def replace(takes: int, reports: int, *, child: bool = True) -> None:
        def packline(name: str, corpus: str, file: Path, tokenizer: TokenizerFile) -> Contender:
            code = BUILD % (takes, child, reports)
            return Contender(
                name, "packline", corpus, tokenizer.name, [sys.executable, "-c", code, str(file)]
            )

        monkeypatch.setattr(memory, "packline", packline)

    return replace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # 90 bytes a line.
    line = json.dumps({"text": "w" * 77}) + "\n"
    (tmp_path / "memory.jsonl").write_text(line * 1000)
    return tmp_path


def test_each_size_is_built_and_its_workers_are_watched(folder: Path, build) -> None:
    build(takes=150, reports=160)
    told: list[str] = []
    runs = memory.measure_memory(folder, TOKENIZER, [9_050, 45_000], told.append)
    assert [(run.input_bytes, run.documents) for run in runs] == [(9_000, 100), (45_000, 500)]
    assert all(150 << 20 < run.worker_resident_bytes < 190 << 20 for run in runs)
    assert all(run.main_resident_bytes < run.worker_resident_bytes for run in runs)
    assert len(told) == 2
    assert [path.name for path in folder.iterdir()] == ["memory.jsonl"]


def test_a_build_that_understates_its_memory_is_caught(folder: Path, build) -> None:
    build(takes=150, reports=60)
    with pytest.raises(BenchmarkError, match="reports 60 MiB a worker: the watcher saw"):
        memory.measure_memory(folder, TOKENIZER, [9_200], print)


def test_a_build_without_workers_is_refused(folder: Path, build) -> None:
    build(takes=1, reports=60, child=False)
    with pytest.raises(BenchmarkError, match="expected a worker a core"):
        memory.measure_memory(folder, TOKENIZER, [9_200], print)


def test_a_file_that_is_too_short_is_refused_before_any_build(folder: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"expected 9\.0 GB") as caught:
        memory.measure_memory(folder, TOKENIZER, [9 * 10**9], print)
    assert "--memory-size" in caught.value.hint
