"""A training of a tokenizer that is killed at any step: no half tokenizer, and the same command does it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_crash import Breaker
from tests.jobs.builds import digests
from tests.storage.kills import Crash

from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
from packline.recipe import Recipe, Source
from packline.vocabulary.trained_folder import train_folder

FILES = ["report.json", "token_bytes.npy", "tokenizer.json", "tokenizer_config.json"]
STEPS = ["replace", "rename", "unlink", "mkdir", "fsync"]


def train(corpus: Path, out: Path, size: int, **settings: Any) -> None:
    train_folder(Recipe(sources=(Source(inputs=(str(corpus),)),), tokenizer=""), size, out, **settings)


def without_report(folder: Path) -> dict[str, str]:
    """All but the report, which has the seconds that it took."""
    return {name: digest for name, digest in digests(folder).items() if name != "report.json"}


@pytest.mark.parametrize(
    ("place", "after"), [("new", True), ("empty", False), ("forced", False), ("forced", True)]
)
def test_a_kill_at_every_step_leaves_no_half_tokenizer(
    place: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "a.txt"
    corpus.write_text("the cat and the dog, the end. " * 50)
    train(corpus, tmp_path / "expected", 270)
    train(corpus, tmp_path / "old", 265)
    expected, old = without_report(tmp_path / "expected"), without_report(tmp_path / "old")
    settings = {"force": True} if place == "forced" else {}

    def prepare(out: Path) -> None:
        if place == "forced":
            shutil.copytree(tmp_path / "old", out)
            (out / "mine.txt").write_text("keep me")
        elif place == "empty":
            out.mkdir()

    prepare(tmp_path / "clean")
    breaker = Breaker(monkeypatch, STEPS, Crash)
    train(corpus, tmp_path / "clean", 270, **settings)
    calls = breaker.calls
    assert calls >= 12
    for number in range(calls):
        out = tmp_path / f"out-{number}"
        breaker.reset(-1)
        prepare(out)
        breaker.reset(number, after=after)
        with pytest.raises(Crash):
            train(corpus, out, 270, **settings)
        breaker.reset(-1)
        left = without_report(out) if out.is_dir() else {}
        left.pop("mine.txt", None)
        if "tokenizer.json" in left:
            assert left in (expected, old), f"step {number} of {calls} left a mixture"
        else:
            with pytest.raises(TokenizerError):
                load_tokenizer(str(out))
        if left != expected:  # else the kill came after the last step that matters
            train(corpus, out, 270, **settings)
        found = without_report(out)
        assert (found.pop("mine.txt", None) is not None) == (place == "forced")
        assert found == expected
        assert not list(tmp_path.glob(".out-*")), "the folder beside it is gone"
    assert sorted(path.name for path in (tmp_path / "clean").iterdir() if path.name != "mine.txt") == FILES
