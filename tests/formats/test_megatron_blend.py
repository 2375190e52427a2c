"""Sources in Megatron's files: names of pairs, and the weights of the blend."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import packline
from packline.cli.main import main
from packline.errors import RecipeError
from packline.formats.export import Exported
from packline.formats.files import split_of_name

RECIPE = """
tokenizer = "{tokenizer}"
eod = "<|endoftext|>"
[[sources]]
name = "web"
inputs = ["web.txt"]
documents = "line"
weight = 0.7
[[sources]]
name = "test"
inputs = ["code.txt"]
documents = "line"
weight = 0.3
"""


@pytest.fixture
def recipe(tokenizer_json: Path, tmp_path: Path) -> Path:
    for name, count in (("web", 30), ("code", 9)):
        text = "\n".join(f"Line {n} of the {name}, a document of its own." for n in range(count))
        (tmp_path / f"{name}.txt").write_text(text + "\n", "utf-8")
    (path := tmp_path / "recipe.toml").write_text(RECIPE.format(tokenizer=tokenizer_json), "utf-8")
    return path


def export(source: Any, out: Path, **options: Any) -> tuple[Exported, list[str], list[str]]:
    """An export; the words of its blend line, without folders, and of `data_args.json`."""
    done = packline.export(source, out=out, to="megatron", options=options, workers=0)
    (line,) = (line for line in done.trainer_lines if line.startswith("--train-data-path"))
    words = [word.removeprefix(f"{out}/") for word in shlex.split(line)[1:]]
    return done, words, json.loads((out / "data_args.json").read_bytes())["train"]


def test_pairs_have_the_names_of_the_stores_shards(recipe: Path, tmp_path: Path) -> None:
    store = packline.build(recipe, out=tmp_path / "store", workers=0)
    names = [shard.name for shard in store.manifest.shards]
    _, line, listed = export(store, tmp_path / "a")
    assert sorted(line) == sorted(listed) and listed == names == ["train-web-000000", "train-test-000000"]
    _, line, listed = export(store, tmp_path / "b", edges="none", shard_tokens=100)
    assert sorted(line) == sorted(listed) and len(listed) > 4
    assert {re.sub(r"\d{6}$", "", name) for name in listed} == {"train-web-", "train-test-"}
    packline.export(store.path, out=tmp_path / "c", to="megatron", shuffle_documents=1, options={}, workers=0)
    assert json.loads((tmp_path / "c/data_args.json").read_bytes())["train"] == ["train-000000"]
    assert split_of_name("train-test-000000.idx") == "train"


@pytest.mark.parametrize("files", ["many", "single"])
def test_the_weights_of_a_recipe_are_in_the_blend(recipe: Path, tmp_path: Path, files: str) -> None:
    _, line, listed = export(recipe, tmp_path / "out", files=files)
    pairs = {"many": "train-{}-000000", "single": "train_{}_text_document"}[files]
    assert [*line[2:], *line[:2]] == listed == ["0.7", pairs.format("web"), "0.3", pairs.format("test")]
    again = packline.export(recipe, out=tmp_path / "out", to="megatron", options={"files": files}, workers=0)
    assert again.nothing_to_do and again.trainer_lines
    assert packline.verify(tmp_path / "out.store").ok
    assert main(["verify", str(tmp_path / "out"), "--from", "megatron"]) == 0


def test_the_command_line_takes_the_weights_too(recipe: Path, tmp_path: Path) -> None:
    assert main(["export", str(recipe), "--to", "megatron", "--out", str(tmp_path / "out")]) == 0
    listed = json.loads((tmp_path / "out/data_args.json").read_bytes())["train"]
    assert listed == ["0.7", "train-web-000000", "0.3", "train-test-000000"]
    store = str(tmp_path / "out.store")
    words = ["export", store, "--to", "megatron", "--set", "weights=web=3,test=1", "--set", "edges=none"]
    assert main([*words, "--set", "shard_tokens=100", "--out", str(tmp_path / "cut")]) == 0
    listed = json.loads((tmp_path / "cut/data_args.json").read_bytes())["train"]
    weights = {name: float(weight) for weight, name in zip(listed[::2], listed[1::2], strict=True)}
    assert sum(weight for name, weight in weights.items() if "web" in name) == pytest.approx(3, 1e-4)
    assert sum(weight for name, weight in weights.items() if "test" in name) == pytest.approx(1, 1e-4)
    assert len(weights) > 4


def test_weights_that_say_nothing_are_refused(recipe: Path, tmp_path: Path) -> None:
    store = packline.build(recipe, out=tmp_path / "store", workers=0)
    for weights, words in (
        (["web=1"], "no weight for the source 'test'"),
        (["web"], "expected weights as NAME=NUMBER"),
        (["web=0", "test=1"], "above 0, found 'web=0'"),
    ):
        with pytest.raises(RecipeError, match=words):
            export(store, tmp_path / "out", weights=weights)
    with pytest.raises(RecipeError, match="--shuffle-documents mixes them"):
        packline.export(
            store, out=tmp_path / "out", to="megatron", shuffle_documents=1,
            options={"weights": ["web=1", "test=1"]}, workers=0,
        )  # fmt: skip
