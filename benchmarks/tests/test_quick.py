"""The comparison with a commit: its sources, its verdict, and a whole run on little text."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import quick
from benchmarks.against import TASKS, Compared
from benchmarks.errors import BenchmarkError
from benchmarks.options import ROOT

SECONDS = st.lists(st.floats(0.1, 10), min_size=3, max_size=3)
HEAD = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=False)
in_a_clone = pytest.mark.skipif(HEAD.returncode != 0, reason="sources without a repository")


@given(SECONDS, SECONDS)
def test_a_task_is_slower_if_every_run_is_and_the_medians_differ(
    this: list[float], other: list[float]
) -> None:
    apart = all(mine > theirs for mine in this for theirs in other)
    expected = apart and sorted(other)[1] < 0.85 * sorted(this)[1]
    assert quick.slower({"task": Compared(this, other)}) == (["task"] if expected else [])


@in_a_clone
def test_the_sources_of_a_commit(tmp_path: Path) -> None:
    quick.extract_sources("HEAD", tmp_path / "commit")
    assert (tmp_path / "commit/src/packline/__init__.py").is_file()
    with pytest.raises(BenchmarkError, match="no sources of 'no-such-commit'"):
        quick.extract_sources("no-such-commit", tmp_path / "other")


@in_a_clone
def test_a_slower_working_tree_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that names other seconds in the two trees stands for slower code."""
    corpus = SimpleNamespace(texts=lambda: ["Text of a document. " * 9] * 99, tokenizer=tmp_path / "t.json")
    monkeypatch.setattr(quick, "gather", lambda folder: corpus)
    monkeypatch.setattr(quick, "VOCAB_SIZE", 300)
    nap = "import packline; print(0.1 if 'commit' in packline.__file__ else 0.2)"
    monkeypatch.setattr(quick, "TASKS", {"nap": nap})
    monkeypatch.setitem(TASKS, "nap", nap)
    lines: list[str] = []
    with pytest.raises(BenchmarkError, match=r"slower than HEAD: nap \(0.50\)"):
        quick.measure_quick("HEAD", None, "<|endoftext|>", rounds=2, say=lines.append)
    assert "nap" in lines[-1] and "0.50 to 0.50" in lines[-1]
