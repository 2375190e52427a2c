"""The examples run as their docstrings say, and end as they say."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.store.stores import build_store

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STEPS = 10


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+) +loss +([\d.]+)", printed)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run(example: Path) -> None:
    documentation = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    assert f"python examples/{example.name}" in documentation
    assert example.name in (ROOT / "examples" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_tiny_gpt_learns_resumes_bit_for_bit_and_would_notice_another_loss(
    tmp_path: Path,
    documents: list[str],
    tokenizer_json: Path,
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch = pytest.importorskip("torch", reason="the optional torch is not installed")
    write_jsonl(tmp_path / "in/a.jsonl", documents[:200])
    build_store(tmp_path / "in", tokenizer_json, tmp_path / "store")
    example = str(ROOT / "examples" / "tiny_gpt.py")
    common = [example, str(tmp_path / "store"), "--steps", str(STEPS), "--out", str(tmp_path / "out")]

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", [*common, *more])
        try:
            runpy.run_path(example, run_name="__main__")
        finally:
            torch.use_deterministic_algorithms(False)
        return capsys.readouterr().out

    first = run()
    printed = losses(first)
    assert printed[STEPS - 1] < printed[0] - 0.2
    assert f"saved after {STEPS // 2} steps" in first

    resumed = run("--resume")
    assert f"resumed after step {STEPS // 2} of" in resumed
    assert f"{STEPS // 2} of {STEPS // 2} losses are those of the first run, bit for bit" in resumed
    assert losses(resumed)[STEPS - 1] == printed[STEPS - 1]

    with np.load(tmp_path / "out" / "weights.npz") as saved:
        arrays = dict(saved)
    arrays["model/tokens.weight"] = arrays["model/tokens.weight"] * np.float32(1.01)
    np.savez(tmp_path / "out" / "weights.npz", **arrays)
    with pytest.raises(SystemExit):
        run("--resume")
    assert f"0 of {STEPS // 2} losses are those of the first run" in capsys.readouterr().out
