"""The measurement of exports: the same bytes copied, tokens counted, figures round by round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import packline
from benchmarks import exporting
from benchmarks.errors import BenchmarkError
from benchmarks.figures import exporting_figures
from benchmarks.process import Outcome, Peak
from benchmarks.render import render
from benchmarks.results import ExportRun, Results, load_results, save_results
from benchmarks.suite import ROOT, environment

MACHINE: dict[str, str | int | float] = {
    "cores": 2, "processor": "p", "memory_gib": 1, "system": "s", "python": "3", "busy_cores_at_start": 0.0
}  # fmt: skip


def run(contender: str, **changes: Any) -> ExportRun:
    fields: dict[str, Any] = {
        "format": "llmc",
        "round": 1,
        "store_bytes": 10**9,
        "output_bytes": 10**9,
        "shared_bytes": 0,
        "files": 3,
        "wall_seconds": 2.0,
        "seconds": 1.0,
        "copy_seconds": 1.5,
    }
    return ExportRun(contender=contender, **{**fields, **changes})


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores as `measure_exporting` makes them, of made-up text and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("exporting")
    words = {word: number for number, word in enumerate(["<eod>", "a", "b", "c", "d", "e", "f"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="f"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    text = "\n".join(f'{{"text": "{" ".join("abcde" * length)}"}}' for length in range(1, 60))
    (folder / "english.jsonl").write_text(text)
    packline.build(
        folder / "english.jsonl", folder / "tokenizer.json", out=folder / "built", eod="<eod>", workers=0
    )
    exporting.repeat_store(folder / "built", folder / "large", 100_000)
    return folder


def test_a_repeated_store_is_the_same_documents_again_and_again(work: Path) -> None:
    once, often = packline.open(work / "built"), packline.open(work / "large")
    tokens, size = exporting.stored_tokens(work / "large")
    assert 100_000 <= size < 100_000 + exporting.stored_tokens(work / "built")[1] and size == 2 * tokens
    assert len(often.documents) > len(once.documents) and len(often.documents) % len(once.documents) == 0
    last = len(once.documents)
    assert often.documents[last].tolist() == once.documents[0].tolist()
    assert often.documents[-1].tolist() == once.documents[-1].tolist()


@pytest.mark.parametrize(
    "contender",
    [
        exporting.Contender("llmc", "llmc"),
        exporting.Contender("rows", "litdata", ["--seq-len", "64", "--batch-size", "2"]),
        exporting.Contender("megatron, linked", "megatron", copied=False),
    ],
    ids=lambda contender: contender.name,
)
def test_an_export_is_measured_beside_a_copy_of_it(work: Path, contender: exporting.Contender) -> None:
    before = sorted(path.name for path in work.iterdir())
    found = exporting.measure_once(contender, work, 3)
    assert sorted(path.name for path in work.iterdir()) == before
    assert found.round == 3 and found.wall_seconds > found.seconds > 0
    assert found.output_bytes > found.store_bytes > 100_000
    assert (found.copy_seconds is None) != contender.copied
    assert (found.shared_bytes > 0) != contender.copied
    assert found.copy_seconds is None or found.copy_seconds > 0


def test_the_copy_is_whole(tmp_path: Path) -> None:
    (tmp_path / "from/inner").mkdir(parents=True)
    (tmp_path / "from/one").write_bytes(b"abc" * 1000)
    (tmp_path / "from/inner/two").write_bytes(b"d")
    words = [str(tmp_path / "from"), str(tmp_path / "to")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.contenders.copying", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        check=True,
    )
    report = msgspec.json.decode(done.stdout)
    assert (report["files"], report["bytes"]) == (2, 3001) and report["seconds"] > 0
    assert (tmp_path / "to/one").read_bytes() == b"abc" * 1000
    assert (tmp_path / "to/inner/two").read_bytes() == b"d"


def test_an_export_that_leaves_tokens_out_is_caught(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, _ = exporting.stored_tokens(work / "large")
    report: dict[str, Any] = {"tokens": tokens - 7, "bytes": 1, "shared": {}, "files": 1, "seconds": 1.0}
    report["lost"] = [{"what": "dropped tokens", "count": 7}, {"what": "provenance", "count": 9}]

    def pretend(*_: Any, **__: Any) -> Outcome:
        return Outcome(report, 1.5, Peak(), [], 0)

    monkeypatch.setattr(exporting, "run_fresh", pretend)
    contender = exporting.Contender("llmc", "llmc", copied=False)
    assert exporting.measure_once(contender, work, 1).wall_seconds == 1.5
    report["lost"][0]["count"] = 6
    with pytest.raises(BenchmarkError, match="left out 6: expected"):
        exporting.measure_once(contender, work, 1)


def test_figures_are_of_one_round_and_links_of_two_sizes(tmp_path: Path) -> None:
    results = Results(date="2030-01-01", machine=MACHINE, versions={}, corpora={})
    assert exporting_figures(results) == []
    linked: dict[str, Any] = {"copy_seconds": None, "shared_bytes": 9}
    results.exporting = [
        run("llmc"),
        run("llmc", round=2, wall_seconds=1.0),
        run("parquet", encodes=True, copy_seconds=0.2),
        run("linked", store_bytes=10**8, wall_seconds=0.5, **linked),
        run("linked", store_bytes=2 * 10**9, wall_seconds=1.75, **linked),
    ]
    llmc, parquet, link = results.figures = exporting_figures(results)
    assert (llmc.spread.least, llmc.spread.greatest, llmc.reached) == (0.75, 1.5, True)
    assert parquet.spread.median == pytest.approx(0.1) and parquet.goal is None
    assert (link.spread.median, link.reached) == (1.25, False) and "2.0 GB than for 0.1 GB" in link.name
    page = render(results)
    assert "| llmc | 1.0 GB | 1.0 GB | 1.5 (1.0-2.0) |" in page
    assert "| linked | 2.0 GB | 1.0 GB | 1.8 (1.8-1.8) |" in page and "100 MB" not in page
    assert "Other work" not in page
    results.exporting.append(run("npy", busy_cores=3.0))
    assert "Other work" not in render(results)
    results.exporting = [run("npy", busy_cores=1.5)]
    assert "Other work ran during exports (1.5 (1.5-1.5) cores)" in render(results)
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
