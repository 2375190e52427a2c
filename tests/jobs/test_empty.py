"""Stores without documents, and splits without documents: said, and no folder is spent for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import result, run
from tests.faults.test_crash import Breaker, Crash
from tests.jobs.builds import build, digests

from packline.errors import NoDocuments, ResumeMismatch
from packline.jobs.build_job import run_build
from packline.recipe import Recipe, RunOptions, Source
from packline.store.verify import verify


@pytest.fixture
def corpus(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(tmp_path / "in/a.jsonl", [f"text {number}" for number in range(42)])


def test_a_build_without_documents_is_an_error_and_its_folder_takes_the_corrected_one(
    tmp_path: Path, corpus: Path, tokenizer_json: Path
) -> None:
    out = tmp_path / "out"

    def start(sources: tuple[Source, ...], place: Path = out) -> None:
        run_build(Recipe(sources=sources, tokenizer=str(tokenizer_json)), place, RunOptions(workers=0))

    wrong = Source(inputs=(str(corpus),), name="web", min_chars=100)
    for _ in range(2):  # the second time there is nothing to do, and it is no more a success
        with pytest.raises(NoDocuments, match=r"out has no documents \(source web: 42 too short\)"):
            start((wrong,))
    assert verify(out, deep=True).ok
    right = Source(inputs=(str(corpus),), name="web")
    start((right,))
    start((right,), tmp_path / "straight")
    names = [name for name in digests(out) if name.endswith((".bin", ".idx"))]
    assert names and {name: digests(out)[name] for name in names} == {
        name: digests(tmp_path / "straight")[name] for name in names
    }
    assert verify(out).ok and not (out / ".packline").exists()
    with pytest.raises(ResumeMismatch):  # one with documents is not built over
        start((wrong,))
    assert not (out / ".packline").exists()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_while_an_empty_store_is_discarded_leaves_no_trace(
    after: bool, tmp_path: Path, corpus: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoDocuments):
        build(tmp_path / "empty", corpus, tokenizer_json, min_chars=100)
    build(tmp_path / "expected", corpus, tokenizer_json)
    expected = digests(tmp_path / "expected")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    shutil.copytree(tmp_path / "empty", tmp_path / "clean")
    breaker = Breaker(monkeypatch, ["link", "replace", "unlink", "rmdir"], Crash)
    build(tmp_path / "clean", corpus, tokenizer_json)
    calls = breaker.calls
    assert calls > 15
    for number in range(calls):
        breaker.reset(-1)
        out = tmp_path / f"out-{number}"
        shutil.copytree(tmp_path / "empty", out)
        breaker.reset(number, after=after)
        with pytest.raises(Crash):
            build(out, corpus, tokenizer_json)
        breaker.reset(-1)
        build(out, corpus, tokenizer_json)
        assert digests(out) == expected, f"call {number} of {calls}"


def test_the_command_says_which_split_has_no_document(
    tmp_path: Path, corpus: Path, tokenizer_json: Path
) -> None:
    words: list[Any] = ["build", corpus, "--tokenizer", tokenizer_json, "--workers", "0", "--json"]
    done = run(*words, "--out", "out", "--val-fraction", "1e-9", cwd=tmp_path)
    (warning,) = result(done)["warnings"]
    assert warning == "the split val has no documents: val_fraction is 1e-09 of 42 documents"
    assert result(run(*words, "--out", "half", "--val-fraction", "0.5", cwd=tmp_path))["warnings"] == []
