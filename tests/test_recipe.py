"""The recipe: a file has the values of the recipe it was written from, and differences are named."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recipes import recipes

from packline.errors import RecipeError
from packline.recipe import (
    Recipe,
    RunOptions,
    Source,
    check_recipe,
    load_recipe,
    recipe_difference,
)
from packline.settings import as_written, folder_of, tokenizer_of


def toml_lines(fields: dict[str, Any]) -> Iterator[str]:
    """Lines of a table; a JSON string is a TOML string, and so are numbers and lists."""
    yield from (f"{name} = {json.dumps(value)}" for name, value in fields.items() if value is not None)


def plain_fields(value: msgspec.Struct) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return fields


@settings(max_examples=25)
@given(recipes(), st.booleans())
def test_a_file_with_the_fields_of_a_recipe_is_that_recipe(recipe: Recipe, strict: bool) -> None:
    fields = plain_fields(recipe)
    tables = fields.pop("sources")
    lines = [*toml_lines(fields), "[run]", f"strict = {json.dumps(strict)}", 'memory = "1GiB"']
    for table in tables:
        lines += ["[[sources]]", *toml_lines(table)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.toml"
        path.write_text("\n".join(lines), "utf-8")
        found, options = load_recipe(path)
        assert as_written(found) == recipe and folder_of(found) == folder
        assert options == RunOptions(strict=strict, memory_bytes=1 << 30)
        for wrong in ("unheard = 1", "seed = 'x'", "= 1"):
            path.write_text("\n".join([wrong, *lines]), "utf-8")
            with pytest.raises(RecipeError, match=re.escape(str(path))):
                load_recipe(path)


@pytest.mark.parametrize("name", ["/data/a.jsonl", "s3://bucket/a.jsonl"])
def test_only_a_relative_input_is_looked_for_beside_the_recipe(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recipe.toml"
    for tokenizer in ("t.json", "org/name"):
        path.write_text(f'tokenizer = "{tokenizer}"\n[[sources]]\ninputs = ["{name}", "b"]\n')
        (tmp_path / "t.json").touch()
        recipe, _ = load_recipe(path)
        assert recipe.sources[0].inputs == (name, "b") and folder_of(recipe) == str(tmp_path)
        assert recipe.tokenizer == tokenizer
        assert tokenizer_of(recipe) == (str(tmp_path / "t.json") if tokenizer == "t.json" else tokenizer)


@settings(max_examples=40)
@given(recipes(), recipes())
def test_equal_recipes_have_no_difference_and_others_each_changed_field(one: Recipe, other: Recipe) -> None:
    old, new = plain_fields(one), plain_fields(other)
    lines = recipe_difference(old, new)
    assert bool(lines) == (one != other) and recipe_difference(old, old) == []
    changed = {name for name in old if old[name] != new[name]}
    assert {re.split(r"[\[:]", line)[0] for line in lines} == changed
    seedless = {name: value for name, value in old.items() if name != "seed"}
    assert recipe_difference(seedless, old) == [f"seed: not given -> {one.seed}"]
    back = recipe_difference(new, old)
    assert [line.partition(": ")[0] for line in back] == [line.partition(": ")[0] for line in lines]


def test_a_recipe_made_in_python_is_checked_like_a_file() -> None:
    source: Any = Source
    recipe: Any = Recipe
    loose = source(inputs=["a", Path("b")], rare_fields=["x"])
    found = check_recipe(recipe(sources=[loose], tokenizer=Path("t")))
    strict = Recipe(sources=(Source(inputs=("a", "b"), rare_fields=("x",)),), tokenizer="t")
    assert found == strict and hash(found) == hash(strict)
    for wrong, message in (
        (recipe(sources=(source(inputs="a.jsonl"),), tokenizer="t"), "inputs is 'a.jsonl': expected a list"),
        (recipe(sources=loose, tokenizer="t"), "sources is a table: expected a list of tables"),
        (recipe(sources=(loose,), tokenizer="t", val_fraction="1"), "val_fraction"),
        (recipe(sources=(loose,), tokenizer=object()), "the recipe: "),
    ):
        with pytest.raises(RecipeError, match=re.escape(message)):
            check_recipe(wrong)


def test_a_source_that_is_gone_and_one_that_changed_are_named() -> None:
    old = {"sources": [{"name": "qa", "template": "a" * 300}, {"name": "novels", "template": None}]}
    new = {"sources": [{"name": "qa", "template": "b" * 300}]}
    assert recipe_difference(old, new) == ["sources: novels is gone", "sources[qa].template: changed"]
