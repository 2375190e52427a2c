"""Keywords of the public functions: each reaches the field of its name, and a file's value yields to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recipes import recipes

from packline.errors import RecipeError
from packline.recipe import Recipe, RunOptions, Source
from packline.settings import BuildKeywords, is_recipe, make_recipe

VALUES: dict[str, Any] = {
    "format": "text",
    "text": "body",
    "id": "key",
    "documents": "line",
    "min_chars": 3,
    "max_chars": 90,
    "where": "a is not None",
    "rare_fields": ("a",),
    "columns": ("a",),
    "encoding": "cl100k_base",
    "eod": "</s>",
    "bos": 7,
    "special_tokens": "reject",
    "val_fraction": 0.25,
    "test_fraction": 0.5,
    "limit_documents": 5,
    "limit_tokens": 6,
    "max_document_bytes": 1000,
    "memory": "1GiB",
    "engine": "tokenizers",
    "charset": "latin-1",
    "newlines": "unix",
    "strict": True,
    "max_bad_fraction": 0.5,
    "split": "test",
    "seed": 4,
    "workers": 2,
}
"""A value of each keyword that is not its default, and that goes with all others."""
ALONE: dict[str, dict[str, Any]] = {
    "separator": {"separator": "--", "documents": "separator"},
    "template": {"template": "{{ a }}"},
    "val_documents": {"val_documents": 9},
}
SETTINGS = st.dictionaries(st.sampled_from(sorted(VALUES)), st.none(), max_size=8).map(
    lambda chosen: {name: VALUES[name] for name in chosen}
)


def fields_of(recipe: Recipe, options: RunOptions) -> dict[str, Any]:
    """All fields that differ from their default, of whichever struct."""
    (source,) = recipe.sources
    found: dict[str, Any] = {}
    for value, plain in (
        (source, Source(inputs=source.inputs)),
        (recipe, Recipe(sources=recipe.sources, tokenizer=recipe.tokenizer)),
        (options, RunOptions()),
    ):
        for name in value.__struct_fields__:
            if getattr(value, name) != getattr(plain, name):
                assert name not in found
                found[name] = getattr(value, name)
    return found


@given(SETTINGS, st.sets(st.sampled_from(sorted(VALUES))))
def test_each_keyword_is_the_field_of_its_name_and_none_is_the_default(
    settings: dict[str, Any], absent: set[str]
) -> None:
    given_none = dict.fromkeys(absent - set(settings))
    recipe, options = make_recipe(["a", Path("b")], Path("t"), settings | given_none)
    expected = {"memory_bytes" if name == "memory" else name: value for name, value in settings.items()}
    if "memory" in settings:
        expected["memory_bytes"] = 1 << 30
    assert fields_of(recipe, options) == expected
    assert (recipe.sources[0].inputs, recipe.tokenizer) == (("a", "b"), "t")


def test_every_keyword_has_been_tried() -> None:
    assert set(VALUES) | set(ALONE) == set(get_type_hints(BuildKeywords))
    for name, settings in ALONE.items():
        assert fields_of(*make_recipe("a", "t", settings))[name] == settings[name]


@given(recipes(), st.integers(0, 99), st.none() | st.just("other"))
def test_a_setting_is_put_on_top_of_a_recipe_and_the_rest_is_kept(
    recipe: Recipe, seed: int, tokenizer: str | None
) -> None:
    found, options = make_recipe(recipe, tokenizer, {"seed": seed, "workers": 3, "eod": None})
    for name in Recipe.__struct_fields__:
        expected = {"seed": seed, "tokenizer": tokenizer or recipe.tokenizer}.get(name, getattr(recipe, name))
        assert getattr(found, name) == expected, name
    assert options == RunOptions(workers=3)
    with pytest.raises(RecipeError, match="'min_chars' belongs to a source"):
        make_recipe(recipe, None, {"min_chars": 1})


@pytest.mark.parametrize(
    ("tokenizer", "settings", "message"),
    [
        ("t", {"unheard": 1}, "no setting 'unheard'"),
        (None, {}, "no tokenizer"),
        ("t", {"seed": "x"}, "seed is 'x': expected a whole number"),
        ("t", {"min_chars": "x"}, "min_chars is 'x': expected a whole number, at least 0"),
        ("t", {"workers": "x"}, "workers is 'x': expected a whole number, at least 0"),
        ("t", {"workers": -1}, "workers is -1"),
        ("t", {"val_fraction": 1.0}, "val_fraction is 1.0"),
    ],
)
def test_a_setting_that_no_build_can_use_is_refused(
    tokenizer: str | None, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        make_recipe("a", tokenizer, settings)


def test_a_recipe_has_sources_and_a_run_file_has_stages(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for text, expected in (('tokenizer = "t"', True), ("[[stages]]", False), ("[loader]", False), ("", True)):
        path.write_text(text)
        assert is_recipe(path) == expected
    assert not is_recipe(tmp_path / "a.jsonl")
