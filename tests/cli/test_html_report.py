"""`packline info --html`: a file that a browser opens, and lines that say where it is and what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.command import result, run

from packline.jobs.build_job import run_build
from packline.recipe import Recipe, RunOptions, Source


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, documents: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for place, text in enumerate(documents[:40]):
        (folder / f"{place}.txt").write_text(text, "utf-8")
    (folder / "bad.txt").write_bytes(b"\xff\xfe\xff")
    recipe = Recipe(sources=(Source(inputs=(str(folder / "*.txt"),)),), tokenizer=str(tokenizer_json))
    run_build(recipe, folder / "store", RunOptions(workers=0), None)
    return folder / "store"


def test_it_writes_a_file_and_says_what_is_wrong(store: Path, tokenizer_json: Path, tmp_path: Path) -> None:
    out = tmp_path / "there.html"
    words = ["--rows", "1", "--seq-len", "128", "--packing", "best_fit", "--against", str(tokenizer_json)]
    done = run("info", store, "--html", out, "--json", *words)
    values = result(done)
    assert values["out"] == str(out) and values["bytes"] == out.stat().st_size
    assert values["exit_code"] == done.returncode == 0
    assert any("could not be read" in warning for warning in values["warnings"])
    page = out.read_text("utf-8")
    assert re.search(r"\b1 row of [\d,]+, packed by best_fit", page)
    assert "Packings in rows of 128 tokens" in page and "Bytes per token, by source" in page


@pytest.mark.parametrize(
    "words, message, code",
    [
        (["--rows", "3"], "are for --html FILE", 2),
        (["--html", "x.html", "--where", "a == 1"], "--html describes the whole store", 2),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    store: Path, tmp_path: Path, words: list[str], message: str, code: int
) -> None:
    done = run("info", store, *words, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
