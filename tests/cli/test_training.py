"""How a training is shown: counts that agree with its report, lines in a pipe, a bar while it merges."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from packline.cli import output as output_module
from packline.cli.main import main
from packline.cli.tokenizer import training_state
from packline.recipe import Recipe, Source
from packline.vocabulary.trained_folder import train_folder
from packline.vocabulary.training import TrainingProgress


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    words = [f"word{number % 700} of {number}" for number in range(4000)]
    lines = [msgspec.json.encode({"text": " ".join(words[at : at + 40])}) for at in range(0, 4000, 40)]
    (tmp_path / "texts.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path / "texts.jsonl"


def test_what_is_told_agrees_with_the_report(texts: Path, tmp_path: Path) -> None:
    told: list[TrainingProgress] = []
    recipe = Recipe(sources=(Source(inputs=(str(texts),)),), tokenizer="")
    report = train_folder(recipe, 900, tmp_path / "tok", on_progress=told.append)
    reading = [one for one in told if not one.merges]
    merging = [one for one in told if one.merges]
    assert (reading[-1].documents, reading[-1].text_bytes) == (report.documents, report.text_bytes)
    assert [one.merges for one in merging] == [256, 512] and report.merges == 643
    assert {one.wanted for one in told} == {643}
    assert {(one.documents, one.text_bytes) for one in merging} == {(report.documents, report.text_bytes)}
    assert told == reading + merging


def test_the_line_and_the_bar() -> None:
    counting = "counting words of 1,000 documents, 5.0 MB of text  2.5 MB/s"
    assert training_state(TrainingProgress(1_000, 5_000_000, 0, 100), 2.0) == (0.0, counting)
    merging = "1,000 documents, 5.0 MB of text  25 of 100 merges"
    assert training_state(TrainingProgress(1_000, 5_000_000, 25, 100), 2.0) == (0.25, merging)


def test_in_a_pipe_a_line_now_and_then(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output_module, "PLAIN_EVERY_SECONDS", 0.0)
    main(["tokenizer", "train", str(texts), "--vocab-size", "900", "--out", str(tmp_path / "tok")])
    out, err = capsys.readouterr()
    assert "512 of 643 merges" in err and "counting words of 100 documents" in err
    assert "merges" in out and "512 of" not in out
