"""Reporting: figures follow from the runs, tables from the figures, and no other text is touched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.corpus import Facts
from benchmarks.errors import BenchmarkError
from benchmarks.figures import all_figures
from benchmarks.options import ROOT
from benchmarks.render import END, START, figure_table, render, replace_between, rewrite
from benchmarks.results import MemoryRun, Results, Run, busy_cores, load_results, new_results, save_results
from benchmarks.tests.runs import run

FACTS = {"english": Facts(10, 1000, {}, {}), "slice": Facts(5, 500, {}, {})}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """New results look at the machine for two seconds, which only one test needs."""
    monkeypatch.setattr("benchmarks.results.busy_cores", lambda: 0.0)


def results_of(runs: list[Run]) -> Results:
    results = new_results(FACTS)
    results.runs = runs
    results.figures = all_figures(results)
    return results


def memory_run(size: int, resident: int) -> MemoryRun:
    return MemoryRun("t", size, 5, 1.0, resident, resident, 50 << 20, 2 * resident, resident)


def three_rounds() -> list[Run]:
    """The machine is twice as slow in the second round; the slower ceiling is best in none."""
    runs = []
    for number, slow in ((1, 1.0), (2, 2.0), (3, 1.0)):
        runs.append(run("fast", "ceiling", round=number, seconds=2.0 * slow))
        runs.append(run("slower", "ceiling", round=number, seconds=3.0 * slow))
        times = {
            "wall_seconds": 3.5 * slow,
            "first_unit_seconds": 1.0 * slow,
            "tokenizer_seconds": 0.4 * slow,
        }
        runs.append(run("packline, JSONL", "packline", round=number, tokens=310, **times))
        runs.append(
            run("datatrove", "peer", corpus="slice", round=number, text_bytes=500, seconds=100.0 * slow)
        )
    return runs


def test_a_ratio_is_taken_round_by_round_against_the_best_ceiling() -> None:
    ratios = {one.name: one for one in results_of(three_rounds()).figures}
    steady = ratios["packline, JSONL, steady / ceiling"]
    # 2.5 s of steady work against 2.0 s in memory, however slow the machine was in that round.
    assert (steady.spread.median, steady.spread.least, steady.spread.greatest) == pytest.approx(
        (0.8, 0.8, 0.8)
    )
    assert steady.goal == 0.75
    assert ratios["packline, JSONL, whole / ceiling"].spread.median == pytest.approx(2.0 / 3.5)
    # 1000 bytes in 3.5 s against 500 in 100 s: rates, not times.
    assert ratios["packline, JSONL, whole / datatrove, job"].spread.median == pytest.approx((1000 / 3.5) / 5)
    assert not any("Megatron" in name or "HF datasets" in name for name in ratios)


def test_fixed_cost_leaves_out_loading_the_tokenizer() -> None:
    one = run("p", "packline", first_unit_seconds=2.5, tokenizer_seconds=0.5)
    assert one.fixed_seconds == 2.0
    assert one.steady == pytest.approx(1000 / 1.5 / 1e6)
    with pytest.raises(BenchmarkError, match="does not say"):
        _ = run("c", "ceiling").steady


def test_results_survive_the_file(tmp_path: Path) -> None:
    results = results_of(three_rounds())
    results.memory = [memory_run(10**9, 700 << 20)]
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_results_name_no_path_and_no_host(tmp_path: Path) -> None:
    import platform

    text = msgspec.json.encode(results_of(three_rounds())).decode()
    assert platform.node() not in text or len(platform.node()) < 4
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert "python" in results_of([]).machine


def test_tables_show_the_numbers_of_the_runs() -> None:
    scaled = [msgspec.structs.replace(one, text_bytes=one.text_bytes * 10**6) for one in three_rounds()]
    results = results_of(scaled)
    lines = [*render(results).splitlines(), *figure_table(results.figures).splitlines()]
    row = next(line for line in lines if line.startswith("| **packline, JSONL**"))
    # 10^9 bytes in 2.5 s, twice that in the slow round; the ceiling makes 500 MB/s.
    assert row == "| **packline, JSONL** | 400 (200-400) | 286 (143-286) | 0.80 |"
    assert any(line.startswith("| ceiling: fast") and "500 (250-500) |  | 1.00" in line for line in lines)
    assert any("| 0.80 | 0.80 to 0.80 | at least 0.75: reached |" in line for line in lines)
    assert not any("slower" in line for line in lines)


def test_a_goal_that_was_missed_is_called_so() -> None:
    runs = [run("fast", "ceiling", seconds=1.0)]
    runs.append(run("packline, JSONL", "packline", first_unit_seconds=1.0, tokenizer_seconds=0.5))
    assert "0.33 | 0.33 to 0.33 | at least 0.75: not reached |" in figure_table(results_of(runs).figures)


def test_memory_is_judged_by_the_largest_input_and_by_its_growth() -> None:
    results = new_results(FACTS)
    results.memory = [memory_run(5 * 10**9, 1200 << 20), memory_run(600_000_000, 600 << 20)]
    results.figures = all_figures(results)
    assert [one.spread.median for one in results.figures] == pytest.approx([1200 / 1024, 2.0])
    assert [one.reached for one in results.figures] == [False, False]
    results.memory = [memory_run(600_000_000, 600 << 20), memory_run(5 * 10**9, 610 << 20)]
    assert all(one.reached for one in all_figures(results))
    assert "| 5.0 GB | 610 MiB | 50 MiB |" in render(results)


def test_fixed_cost_is_judged_against_three_seconds() -> None:
    runs = [run("packline, JSONL", "packline", first_unit_seconds=3.9, tokenizer_seconds=0.5)]
    (figure,) = all_figures(results_of(runs))
    assert figure.spread.median == pytest.approx(3.4)
    assert not figure.reached


def test_busy_cores_are_counted() -> None:
    code = "import time; end = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as worker:
        try:
            assert busy_cores(1.0) > 0.3
        finally:
            worker.kill()


def test_a_busy_machine_is_confessed() -> None:
    results = results_of(three_rounds())
    results.machine["busy_cores_at_start"] = 2.5
    assert "Other work ran at the same time (2.5 cores busy at the start)" in render(results)
    results.machine["busy_cores_at_start"] = 0.1
    assert "Other work" not in render(results)


def test_what_was_left_out_is_said() -> None:
    results = results_of(three_rounds())
    results.left_out = ["peers: none here"]
    assert "Not measured: peers: none here." in render(results)


def test_rendering_twice_is_rendering_once_and_touches_nothing_else(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# A\n\n{START}\nold\n{END}\n\nend\n")
    results = results_of(three_rounds())
    rewrite(readme, render(results))
    once = readme.read_text()
    rewrite(readme, render(results))
    assert readme.read_text() == once
    assert once.startswith(f"# A\n\n{START}\n") and once.endswith(f"{END}\n\nend\n") and "old" not in once


@pytest.mark.parametrize("text", ["", START, END, f"{END} {START}", f"{START} {START} {END}"])
def test_missing_or_doubled_markers_are_refused(text: str) -> None:
    with pytest.raises(BenchmarkError, match="expected one of each") as caught:
        replace_between(text, "tables", "README.md")
    assert START in caught.value.hint


def test_a_missing_readme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="cannot read"):
        rewrite(tmp_path / "README.md", render(results_of([])))


def test_the_figures_of_the_readme_are_in_the_tables() -> None:
    """Rows of the README's speed table are copied by hand; none is left behind when tables are rendered."""
    tables = render(load_results(ROOT / "benchmarks" / "results.json"))
    speed = (ROOT / "README.md").read_text("utf-8").split("## Speed")[1].split("## ")[0]
    rows = [line for line in speed.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 5
    figures = [one for row in rows for cell in row.split("|")[2:] for one in re.findall(r"\d[\d.]*", cell)]
    assert set(figures) - set(re.findall(r"\d[\d.]*", tables)) == set(), "copy them from docs/benchmarks.md"
