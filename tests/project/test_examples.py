"""The examples run as their docstrings say, and end as they say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.stores import build_store

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
STEPS = 16


def run(*arguments: str) -> str:
    """What an example prints. Two threads, so that a run and its resumption add up in the same order."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+) +loss +([\d.]+)", printed)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_how_it_is_run(example: Path) -> None:
    documentation = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    assert f"python examples/{example.name}" in documentation
    assert example.name in (ROOT / "examples" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_tiny_gpt_learns_and_resumes_bit_for_bit(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, write_jsonl
) -> None:
    pytest.importorskip("torch", reason="the optional torch is not installed")
    write_jsonl(tmp_path / "in/a.jsonl", documents)
    build_store(tmp_path / "in", tokenizer_json, tmp_path / "store")
    example = str(ROOT / "examples" / "tiny_gpt.py")
    common = [example, str(tmp_path / "store"), "--steps", str(STEPS), "--out", str(tmp_path / "out")]

    first = run(*common)
    printed = losses(first)
    assert printed[STEPS - 1] < printed[0] - 0.5
    assert f"saved after {STEPS // 2} steps" in first

    resumed = run(*common, "--resume")
    assert f"resumed after step {STEPS // 2} of" in resumed
    assert f"{STEPS // 2} of {STEPS // 2} losses are those of the first run, bit for bit" in resumed
    assert losses(resumed)[STEPS - 1] == printed[STEPS - 1]


@pytest.mark.slow
def test_tiny_gpt_would_notice_another_loss(
    tmp_path: Path, documents: list[str], tokenizer_json: Path, write_jsonl
) -> None:
    """Resumed with weights that are a little off, it says so and fails."""
    pytest.importorskip("torch", reason="the optional torch is not installed")
    import numpy as np

    write_jsonl(tmp_path / "in/a.jsonl", documents)
    build_store(tmp_path / "in", tokenizer_json, tmp_path / "store")
    example = str(ROOT / "examples" / "tiny_gpt.py")
    common = [example, str(tmp_path / "store"), "--steps", "4", "--out", str(tmp_path / "out")]
    run(*common)
    with np.load(tmp_path / "out" / "weights.npz") as saved:
        arrays = dict(saved)
    arrays["model/tokens.weight"] = arrays["model/tokens.weight"] * np.float32(1.01)
    np.savez(tmp_path / "out" / "weights.npz", **arrays)
    with pytest.raises(AssertionError, match="0 of 2 losses are those of the first run"):
        run(*common, "--resume")
