"""`packline analyze`: stores, other projects' files, batches; what goes where, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import result, run
from tests.viewing.token_stores import store_of

from packline.viewing.analysis import analyze

BODIES = [[5] * 200, [1, 2, 3], [1, 2, 3], [4, 9]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(tmp_path_factory.mktemp("analyze") / "store", [BODIES, [[7] * 40]]).path


def save(path: Path, **arrays: list[list[int]]) -> Path:
    values: Any = {key: np.array(value, np.int32) for key, value in arrays.items()}
    np.savez(path, **values)
    return path


def test_json_has_every_figure(store: Path) -> None:
    done = run("analyze", store, "--seq-len", "8", "--top", "3", "--json")
    assert done.returncode == 0, done.stderr
    values, right = result(done), analyze(store, seq_len=8, top=3, workers=0)
    assert (values["command"], values["exit_code"]) == ("analyze", 0)
    assert (values["documents"], values["tokens"]) == (5, right.tokens)
    assert values["bytes_per_token"] == right.bytes_per_token
    assert [one["id"] for one in values["most_used"]] == [one.id for one in right.most_used] == [5, 7, 1]
    assert values["duplicates"]["largest"][0]["documents"] == [1, 2]
    assert values["places"]["1"] == right.places[1]
    assert len(values["prices"]) == 5 and values["prices"][0]["padding_share"] == right.prices[0].padding
    assert {one["reason"]: one["count"] for one in values["suspicious"]}["long run"] == 1
    assert any("duplicates" in line for line in values["warnings"])
    assert len(done.stdout.splitlines()) == 1


def test_the_page_is_plain_text_in_a_pipe(store: Path) -> None:
    done = run("analyze", store, "--seq-len", "8", "--packing", "concat")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and "\x1b" not in done.stdout
    for shown in ("documents", "By split and source", "Packings", "concat", "Most used", "w5", "Long run"):
        assert shown in done.stdout
    assert "best_fit" not in done.stdout


def test_a_batch_is_counted_by_tensor(tmp_path: Path, tokenizer_json: Path) -> None:
    rows = [[97, 98, 99, 100, 101, 102, 0, 0], [97, 98, 0, 0, 0, 0, 0, 0]]
    name = save(tmp_path / "batch.npz", input_tensor=rows).name
    done = run("analyze", name, "--tokenizer", tokenizer_json, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = next(line.split() for line in done.stdout.splitlines() if line.startswith("  input"))
    assert shown == ["input", "2", "8", "8", "4.00", "8", "4.00", "32", "B"]
    assert "No target tensor found in batch.npz" in done.stdout
    assert done.stderr == "padding is determined by the padding tokens (id 0) at the end of each row\n"
    only = run("analyze", name, "--tensor-type", "target", cwd=tmp_path)
    assert (only.returncode, only.stdout) == (0, "  No target tensor found in batch.npz\n")
    values = result(run("analyze", name, "--json", cwd=tmp_path))
    assert values["missing"] == ["target"]
    assert [(one["real_tokens"], one["padding_tokens"]) for one in values["tensors"]] == [(8, 8)]


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["nowhere"], 1, "nowhere does not exist"),
        (["text.bin"], 2, "no tokenizer was named"),
        (["text.bin", "--tokenizer", "TOKENIZER"], 1, "expected files of one format"),
        (["text.bin", "--tokenizer", "TOKENIZER", "--seq-len", "8"], 2, "--seq-len is for a store"),
        (["STORE", "--tensor-type", "input"], 2, "--tensor-type and --pad-id are for batches"),
        (["STORE", "--packing", "pad"], 2, "--packing belongs to --seq-len"),
        (["STORE", "--top", "-1"], 2, "--top is -1"),
    ],
)
def test_what_makes_no_sense_is_an_error(
    tmp_path: Path, store: Path, tokenizer_json: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "text.bin").write_text("no tokens")
    known = {"STORE": str(store), "TOKENIZER": str(tokenizer_json)}
    done = run("analyze", *(known.get(word, word) for word in words), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("error: ") and said in done.stderr and "Traceback" not in done.stderr
