"""`packline import`, `convert`, `formats` and `verify --from`, as a user runs them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import result, run
from tests.formats.stores import EOD, write_tokenizer

import packline
from packline.formats.format import NAMES


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer", 300, 0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.bin").write_bytes(np.array([5, 6, 0, 7, 8, 9, 0], "<u2").tobytes())
    (folder / "val.bin").write_bytes(np.array([4, 0], "<u2").tobytes())
    return folder


def import_words(data: Path, tokenizer: Path) -> list[str | Path]:
    return ["import", data, "--from", "nanogpt", "--tokenizer", tokenizer, "--eod", EOD, "--out"]


def test_a_data_set_becomes_a_store(data: Path, tokenizer: Path, tmp_path: Path) -> None:
    words = import_words(data, tokenizer)
    done = run(*words, tmp_path / "store")
    assert done.returncode == 0, done.stderr
    assert "nanogpt: 2 files, 18 B, 9 tokens in 2 units" in done.stderr
    assert "3 documents, 9 tokens" in done.stdout and "\x1b" not in done.stdout + done.stderr
    expected = [[5, 6, 0], [7, 8, 9, 0], [4, 0]]
    assert [one.tolist() for one in packline.open(tmp_path / "store")] == expected
    again = run(*words, tmp_path / "store", "--json")
    values = result(again)
    assert values["nothing_to_do"] is True and values["imported"][0]["format"] == "nanogpt"
    assert values["documents"] == 3 and values["exit_code"] == 0
    deep = run("verify", tmp_path / "store", "--deep")
    assert deep.returncode == 0 and "there is no text to encode again" in deep.stdout
    assert "encoded again" not in deep.stdout
    shown = run("info", tmp_path / "store")
    assert shown.returncode == 0 and re.search(r"imported from +nanogpt", shown.stdout)
    assert result(run("info", tmp_path / "store", "--json"))["imported"][0]["format"] == "nanogpt"
    assert run("info", tmp_path / "store", "--seq-len", "4").returncode == 0


def test_damage_and_wrong_usage_end_with_their_codes(data: Path, tokenizer: Path, tmp_path: Path) -> None:
    words: list[str | Path] = ["import", data, "--from", "nanogpt", "--out", tmp_path / "store"]
    done = run(*words)
    assert done.returncode == 2 and "hint: name the one that made the ids" in done.stderr
    done = run(*words, "--tokenizer", tokenizer, "--eod", EOD, "--set", "edges")
    assert done.returncode == 2 and "name=value" in done.stderr
    (data / "train.bin").write_bytes(np.array([5, 600, 0], "<u2").tobytes())
    done = run(*words, "--tokenizer", tokenizer, "--eod", "0", "--json")
    assert done.returncode == 1
    error = result(done)["error"]
    assert error["kind"] == "CorruptStore"
    assert "train.bin: document at 0, token 1: an id outside the vocabulary" in error["message"]
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_a_foreign_data_set_is_verified(data: Path, tokenizer: Path, tmp_path: Path) -> None:
    done = run("verify", data, "--from", "nanogpt", "--tokenizer", tokenizer, "--eod", EOD)
    assert done.returncode == 0 and "all is well" in done.stdout and "3 documents" in done.stdout
    done = run("verify", data, "--from", "nanogpt")
    assert done.returncode == 0 and "boundaries of documents were not checked" in done.stdout
    (data / "val.bin").write_bytes(b"\1")
    done = run("verify", data, "--from", "nanogpt", "--json")
    values = result(done)
    assert done.returncode == 1 and values["ok"] is False
    assert any(problem["file"] == "val.bin" for problem in values["problems"])
    done = run("verify", tmp_path, "--eod", "0")
    assert done.returncode == 2 and "--from" in done.stderr


def test_formats_are_listed_and_explained() -> None:
    done = run("formats")
    assert done.returncode == 0, done.stderr
    assert all(f" {name} " in done.stdout for name in NAMES)
    values = result(run("formats", "--json"))
    assert [one["name"] for one in values["formats"]] == list(NAMES)
    undocumented = {
        (one["name"], option["name"])
        for one in values["formats"]
        for option in one["options"]
        if not option["about"]
    }
    assert undocumented == set()
    done = run("formats", "nanogpt")
    assert done.returncode == 0 and "train.bin" in done.stdout and "meta_pkl" in done.stdout
    done = run("formats", "csv")
    assert done.returncode == 2 and "megatron" in done.stderr


def test_a_dry_run_of_an_import_writes_nothing(data: Path, tokenizer: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    words = ["--from", "nanogpt", "--tokenizer", str(tokenizer), "--eod", EOD, "-o", str(tmp_path / "new")]
    done = run("import", data, *words, "--dry-run")
    assert done.returncode == 0 and "nanogpt" in done.stderr, done.stderr
    values = result(run("import", data, *words, "--dry-run", "--json"))
    assert values["dry_run"] and values["units"] and sorted(tmp_path.rglob("*")) == before
