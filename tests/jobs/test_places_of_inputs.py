"""Inputs of a recipe: named as its file names them, wherever the file is and whoever builds it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.jobs.builds import digests, set_sizes
from tests.laws.reference import write_corpus

import packline
from packline.errors import UnitsLeft
from packline.facade import Store
from packline.jobs.machines import Slice
from packline.recipe import Recipe, Source, load_recipe

TEXTS = [f"document {number} of many" for number in range(200)]
RECIPE = """
tokenizer = "tok/tokenizer.json"

[[sources]]
name = "a"
inputs = ["in/[01]*", "in/deep"]

[[sources]]
inputs = ["./in/2.txt", "../beside"]
documents = "line"
"""


def build(out: Path, recipe: Recipe | Path, tokenizer: Path | None = None, **settings: Any) -> Store:
    return packline.build(recipe, tokenizer, out=out, workers=0, engine="tokenizers", **settings)


@pytest.fixture
def folder(tmp_path: Path, tokenizer_json: Path) -> Path:
    """A folder with brackets in its name, a recipe and its inputs."""
    folder = tmp_path / "from [here]"
    write_corpus(folder / "in", [(kind, TEXTS, False) for kind in ("jsonl", "jsonl.gz", "txt")])
    write_corpus(folder / "in/deep", [("jsonl", TEXTS[:9], False)])
    write_corpus(tmp_path / "beside", [("txt", TEXTS[:9], False)])
    (folder / "tok").mkdir()
    shutil.copy(tokenizer_json, folder / "tok/tokenizer.json")
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def test_the_bytes_are_the_same_from_every_working_directory_and_after_a_move(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    store = build(tmp_path / "inside", Path("recipe.toml"))
    monkeypatch.chdir(tmp_path)
    build(tmp_path / "above", Path(folder.name, "recipe.toml"))
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(folder, tmp_path / "elsewhere/moved")
    shutil.copytree(tmp_path / "beside", tmp_path / "elsewhere/beside")
    build(tmp_path / "moved", tmp_path / "elsewhere/moved/recipe.toml")
    expected = digests(tmp_path / "inside")
    assert digests(tmp_path / "above") == expected == digests(tmp_path / "moved")
    manifest = store.manifest
    assert [one.inputs for one in manifest.recipe.sources] == [
        ("in/[01]*", "in/deep"),
        ("./in/2.txt", "../beside"),
    ]
    assert manifest.recipe.tokenizer == manifest.tokenizer.name == "tok/tokenizer.json"
    assert [one.name for one in manifest.inputs] == [
        "0.jsonl",
        "1.jsonl.gz",
        "deep/0.jsonl",
        "./in/2.txt",
        "../beside/0.txt",
    ]


def test_slices_of_one_recipe_meet_from_two_working_directories(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sizes(monkeypatch, 1500, 300)
    build(tmp_path / "whole", folder / "recipe.toml")
    for number, (place, recipe) in enumerate(
        ((folder, "recipe.toml"), (tmp_path, f"{folder.name}/recipe.toml"))
    ):
        monkeypatch.chdir(place)
        try:
            build(tmp_path / "store", Path(recipe), on=Slice(number, 2))
        except UnitsLeft:
            assert number == 0
    assert digests(tmp_path / "store") == digests(tmp_path / "whole")


def test_what_the_command_line_names_is_relative_to_the_working_directory(
    folder: Path, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "tok", tmp_path / "tok")
    text = tokenizer_json.read_text().replace("<|endoftext|>", "<|end|>")
    (tmp_path / "tok/tokenizer.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    store = build(tmp_path / "other", folder / "recipe.toml", Path("tok/tokenizer.json"), eod="<|end|>")
    assert store.manifest.tokenizer.eod == "<|end|>"
    source = Source(inputs=("in/0.jsonl",), name="a")
    monkeypatch.chdir(folder)
    made = Recipe(sources=(source,), tokenizer="tok/tokenizer.json")
    assert build(tmp_path / "made", made).manifest.recipe == made


def test_a_recipe_that_was_read_is_planned_and_exported_from_anywhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, _ = load_recipe(Path(folder.name, "recipe.toml"))
    assert packline.estimate(recipe).documents == build(tmp_path / "store", recipe).manifest.documents
    packline.export(recipe, to="megatron", out=tmp_path / "out", workers=0)
    assert any((tmp_path / "out").iterdir())
