"""`packline tokenizer`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import result, run
from tests.conftest import python_sources

from packline.cli import output as output_module
from packline.cli.tokenizer import training_state
from packline.vocabulary.training import TrainingProgress


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `corpus/`, and `tok/` and the smaller `baseline/` trained on it by the command."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "corpus").mkdir()
    for path, text in python_sources(300_000):
        (folder / "corpus" / f"{path.stem}.txt").write_text(text, "utf-8")
    done = run(
        "tokenizer", "train", "corpus", "--vocab-size", "800", "--out", "tok", "--specials", "nanochat",
        "--pattern", "nanochat", "--doc-chars", "20000", "--json", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = result(done)
    assert values["vocab_size"] == 800
    assert values["special_tokens"]["<|bos|>"] == 791
    assert values["bos_token"] == "<|bos|>"
    assert values["documents"] == len(python_sources(300_000))
    assert values["characters"] == sum(min(len(text), 20_000) for _, text in python_sources(300_000))
    words = ("tokenizer", "train", "corpus", "--vocab-size", "400", "--out", "baseline")
    assert run(*words, cwd=folder).returncode == 0
    return folder


def test_the_folder_builds_a_store(made: Path) -> None:
    words = ("build", "corpus", "--tokenizer", "tok", "--eod", "<|bos|>", "--out", "store", "--json")
    done = run(*words, cwd=made)
    assert done.returncode == 0, done.stderr
    sizes = np.load(made / "tok" / "token_bytes.npy")
    tokens = np.concatenate([np.fromfile(path, np.uint16) for path in sorted((made / "store").glob("*.bin"))])
    assert int(sizes[tokens].sum()) == sum(len(text.encode()) for _, text in python_sources(300_000))


def test_a_training_says_what_it_did_and_does_not_write_over_another(made: Path) -> None:
    words = ("tokenizer", "train", "corpus", "--vocab-size", "400", "--out")
    done = run(*words, "other", "--special-tokens", "<s>", "--special-tokens", "</s>", cwd=made)
    assert done.returncode == 0, done.stderr
    assert "2: <s> 0, </s> 1" in done.stdout
    assert "400 tokens" in done.stdout
    again = run(*words, "other", cwd=made)
    assert again.returncode == 1
    assert "not empty" in again.stderr
    assert run(*words, "other", "--force", cwd=made).returncode == 0


def test_what_was_not_read_is_said(made: Path) -> None:
    words = ("tokenizer", "train", "corpus", "--vocab-size", "300", "--max-chars", "20000", "--doc-chars")
    done = run(*words, "4000", "--out", "limited", cwd=made)
    assert done.returncode == 0, done.stderr
    report = json.loads((made / "limited" / "report.json").read_text("utf-8"))
    assert report["characters"] == 20_000
    assert 0 < report["cut_documents"] <= report["documents"]
    shown = " ".join(done.stdout.split())
    assert "stopped at 20,000 characters" in shown
    assert f"cut {report['cut_documents']} documents at 4,000 characters" in shown
    whole = run("tokenizer", "train", "corpus", "--vocab-size", "300", "--out", "whole", cwd=made).stdout
    assert "stopped" not in whole and "cut" not in whole


def test_eval_in_every_form(made: Path) -> None:
    (made / "notes.txt").write_text("import this\n" * 50)
    words = ["tokenizer", "eval", "tok", "--against", "baseline", "--against", "./none.json"]
    words += ["--text", "mine=notes.txt"]
    done = run(*words, "--html", "page.html", cwd=made)
    assert done.returncode == 0, done.stderr
    assert "Relative Diff %" in done.stdout
    assert "none.json is not available" in done.stdout
    page = (made / "page.html").read_text("utf-8")
    assert "mine" in page and "<script" not in page
    markdown = run(*words, "--markdown", cwd=made).stdout
    assert markdown.startswith("# Tokenizer tok")
    values = result(run(*words, "--json", cwd=made))
    (comparison,) = values["comparisons"]
    mine = next(row for row in comparison["rows"] if row["text"] == "mine")
    assert mine["bytes"] == 600
    assert f"| mine | 600 | {mine['base']['tokens']} |" in markdown


def test_check_ends_with_the_right_code(made: Path) -> None:
    (made / "config.json").write_text(json.dumps({"vocab_size": 800}))
    good = run("tokenizer", "check", "tok", "--model", "config.json", cwd=made)
    assert good.returncode == 0, good.stdout
    assert "all is well" in good.stdout
    (made / "config.json").write_text(json.dumps({"vocab_size": 799}))
    bad = run("tokenizer", "check", "tok", "--model", "config.json", "--json", cwd=made)
    assert bad.returncode == 1
    assert [one["about"] for one in result(bad)["findings"] if one["level"] == "problem"] == ["model"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("train", "--vocab-size", "400", "--out", "x"), 2, "no inputs"),
        (("train", "corpus", "--vocab-size", "400", "--out", "x", "--pattern", "gpt5"), 2, "pattern"),
        (("eval", "tok", "--text", "code=notes.txt"), 2, "two texts are called 'code'"),
        (("eval", "tok", "--text", "all=notes.txt"), 2, "two texts are called 'all'"),
        (("eval", "tok", "--html", "nowhere/page.html"), 1, "no folder nowhere"),
        (("check", "tok", "--model", "nowhere"), 1, "cannot read the model's"),
    ],
)
def test_what_makes_no_sense_is_an_error_of_two_lines(
    made: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = run("tokenizer", *words, cwd=made)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (made / "x").exists()


def test_the_line_and_the_bar() -> None:
    counting = "counting words of 1,000 documents, 5.0 MB of text  2.5 MB/s"
    assert training_state(TrainingProgress(1_000, 5_000_000, 0, 100), 2.0) == (0.0, counting)
    merging = "1,000 documents, 5.0 MB of text  25 of 100 merges"
    assert training_state(TrainingProgress(1_000, 5_000_000, 25, 100), 2.0) == (0.25, merging)


def test_in_a_pipe_a_line_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"word{number % 700} of {number}" for number in range(4000)]
    lines = [json.dumps({"text": " ".join(words[at : at + 40])}) for at in range(0, 4000, 40)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(output_module, "PLAIN_EVERY_SECONDS", 0.0)
    done = run("tokenizer", "train", "texts.jsonl", "--vocab-size", "900", "--out", "tok", cwd=tmp_path)
    assert "512 of 643 merges" in done.stderr and "counting words of 100 documents" in done.stderr
    assert "merges" in done.stdout and "512 of" not in done.stdout
