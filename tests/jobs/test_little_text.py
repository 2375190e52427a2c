"""Little text is encoded in the process that builds, with the bytes that workers write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.jobs.builds import build, digests

from packline.jobs import text_build
from packline.jobs.events import BuildPlanned
from packline.jobs.executors import LocalProcesses
from packline.recipe import Engine, Recipe, RunOptions, Source

TEXTS = [f"document {number}, of a few words" for number in range(100)]


@pytest.fixture
def corpus(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(tmp_path / "in/a.jsonl", TEXTS)


def planned_workers(out: Path, corpus: Path, tokenizer: Path, **options: object) -> int:
    """Build; return the number of workers that was reported."""
    told: list[object] = []
    build(out, corpus, tokenizer, engine="auto", on_event=told.append, **options)
    return next(event.workers for event in told if isinstance(event, BuildPlanned))


def test_little_text_starts_no_processes_and_comes_to_the_same_bytes(
    corpus: Path, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned_workers(tmp_path / "two", corpus, tokenizer_json, workers=2) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(LocalProcesses, "__init__", refuse)
    assert planned_workers(tmp_path / "here", corpus, tokenizer_json, workers=None) == 0
    assert digests(tmp_path / "here") == digests(tmp_path / "two")


def test_text_of_slow_engines_is_little_up_to_one_unit(
    corpus: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(
        sources=(Source(inputs=(str(corpus),)),), tokenizer=str(tokenizer_json), eod="<|endoftext|>"
    )

    def workers(engine: Engine, here: bool = True) -> int | None:
        return text_build.prepare(recipe, RunOptions(engine=engine), here=here).options.workers

    assert (workers("auto"), workers("tokenizers"), workers("auto", here=False)) == (0, 0, None)
    monkeypatch.setattr("packline.jobs.cut_inputs.UNIT_BYTES", ((1 << 60, 100),))
    assert (workers("auto"), workers("gigatoken"), workers("tokenizers")) == (0, 0, None)
    monkeypatch.setattr(text_build, "LITTLE_TEXT", 100)
    assert (workers("auto"), workers("tokenizers")) == (None, None)
    assert text_build.prepare(recipe, RunOptions(workers=3), here=True).options.workers == 3
