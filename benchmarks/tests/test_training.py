"""The measurement of trainers: the same texts and merges for all, figures by pattern, a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training
from benchmarks.errors import BenchmarkError
from benchmarks.figures import training_figures
from benchmarks.render import render, training_table
from benchmarks.results import Results, TrainingRun, load_results, save_results
from benchmarks.tests.test_exporting import MACHINE


def run(contender: str, **changes: Any) -> TrainingRun:
    fields: dict[str, Any] = {
        "pattern": "gpt2",
        "vocab_size": 32768,
        "round": 1,
        "text_bytes": 3 * 10**8,
        "seconds": 10.0,
        "resident_bytes": 10**9,
    }
    return TrainingRun(contender=contender, **{**fields, **changes})


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    lines = [
        json.dumps({"text": " ".join(words[i % 10] + words[i % 7] for i in range(n))}) for n in range(1, 99)
    ]
    (tmp_path / "english.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_trainers_are_measured_on_the_same_texts_and_find_the_same_merges(corpus: Path) -> None:
    results = Results(date="d", machine=MACHINE, versions={}, corpora={})
    training.measure_training(
        corpus,
        results,
        text_bytes=20_000,
        vocab_size=300,
        rounds=1,
        peers_python=None,
        say=lambda line: None,
    )
    names = {(one.pattern, one.contender) for one in results.training}
    assert names == {
        (pattern, name) for pattern in training.PATTERNS for name in training.trainers(pattern, False)
    }
    assert len({one.text_bytes for one in results.training}) == 1
    assert all(one.seconds > 0 and one.resident_bytes > 10**6 for one in results.training)
    hashes = {
        one.merges for one in results.training if one.pattern == "gpt2" and one.contender != training.COMMAND
    }
    assert len(hashes) == 1 and None not in hashes
    assert any("rustbpe" in line for line in results.left_out)
    assert not (corpus / "training").exists()


def test_other_merges_end_the_measurement() -> None:
    same = [run("packline", merges="1"), run("HF tokenizers", merges="1"), run("rustbpe")]
    training.check_merges(same)
    with pytest.raises(BenchmarkError, match="gpt2: packline and gigatoken found different merges"):
        training.check_merges([run("packline", merges="1"), run("gigatoken", merges="2")])


def test_a_corpus_that_is_too_small_is_refused(corpus: Path) -> None:
    with pytest.raises(BenchmarkError, match="expected 1000 MB"):
        training.write_beginning(corpus / "english.jsonl", corpus / "out.jsonl", 10**9)
    with pytest.raises(BenchmarkError, match="no corpus"):
        training.write_beginning(corpus / "absent.jsonl", corpus / "out.jsonl", 1)


def test_figures_are_ratios_round_by_round(tmp_path: Path) -> None:
    results = Results(date="d", machine=MACHINE, versions={}, corpora={})
    assert training_figures(results) == []
    results.training = [
        run("packline", seconds=10.0),
        run("rustbpe", seconds=30.0),
        run("packline", seconds=20.0, round=2),
        run("rustbpe", seconds=30.0, round=2),
        run("packline", seconds=8.0, pattern="gpt4"),
        run("HF tokenizers", seconds=80.0, pattern="gpt4"),
    ]
    rustbpe, reference = results.figures = training_figures(results)
    assert (rustbpe.spread.least, rustbpe.spread.greatest, rustbpe.reached) == (1.5, 3.0, True)
    assert (reference.name, reference.spread.median) == (
        "gpt4: HF tokenizers / packline, seconds",
        10.0,
    )
    save_results(tmp_path / "results.json", results)
    assert load_results(tmp_path / "results.json") == results
    table = training_table(results)
    assert "| **packline** | 15.0 (10.0-20.0) | 8.0 (8.0-8.0) | 1.0 GB |" in table
    assert table in render(results)
