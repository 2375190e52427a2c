"""Options of the command line: what is given arrives under the name of its setting, the rest stays away."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.cli.arguments import DocumentArguments, RowArguments, Settings, recipe_of
from packline.errors import RecipeError
from packline.formats.choice import ExportChoice
from packline.settings import OPTION_FIELDS, RECIPE_FIELDS, SOURCE_FIELDS

NAMES = [field.name for field in fields(Settings)]


@given(st.lists(st.sampled_from(["\\n", "\\t", "\\r", "\\\\", "a", "n", "日"]), min_size=1))
def test_escapes_of_a_separator_are_read_from_the_left(parts: list[str]) -> None:
    real = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
    found = Settings(separator="".join(parts)).as_settings()
    assert found == {"separator": "".join(real.get(one, one) for one in parts), "documents": "separator"}
    assert Settings(separator="a", documents="line").as_settings()["documents"] == "line"


@given(st.integers(0, 2**40), st.sampled_from(["<eod>", "-1", "1.0", "", "٣", "²"]))
def test_a_token_of_ascii_digits_is_an_id_and_any_other_a_string(number: int, word: str) -> None:
    assert Settings(eod=str(number), bos=word).as_settings() == {"eod": number, "bos": word}


def test_every_option_reaches_a_setting_that_exists() -> None:
    values: dict[str, Any] = dict.fromkeys(NAMES, "7KiB")
    found = Settings(**values).as_settings()
    known = SOURCE_FIELDS | RECIPE_FIELDS | OPTION_FIELDS | {"memory", "label", "one_source"}
    assert set(found) <= known and len(found) == len(NAMES) - 1  # the tokenizer is an argument of its own
    assert found["max_document_bytes"] == 7 << 10
    assert Settings().as_settings() == {}
    of_choice = {*RowArguments().settings(), *DocumentArguments().settings()}
    assert of_choice <= set(ExportChoice.__struct_fields__)
    assert set(RowArguments().settings().values()) == {None} and RowArguments(seed=0).settings()["seed"] == 0


def test_a_label_belongs_to_the_source_of_the_command_line_and_to_no_recipe_file(tmp_path: Path) -> None:
    settings = Settings(tokenizer="t.json", label="web", text="body", seed=3)
    recipe, _ = recipe_of(("a.jsonl", "b.jsonl"), settings)
    assert [(one.inputs, one.label, one.text) for one in recipe.sources] == [
        (("a.jsonl",), "web", "body"),
        (("b.jsonl",), "web", "body"),
    ]
    (source,) = recipe_of(("a.jsonl", "b.jsonl"), Settings(tokenizer="t.json", one_source=True))[0].sources
    assert source.inputs == ("a.jsonl", "b.jsonl")
    (source,) = recipe_of(tuple(f"{name}.txt" for name in NAMES[:20]), Settings(tokenizer="t"))[0].sources
    assert len(source.inputs) == 20
    assert recipe.seed == 3 and str(recipe.tokenizer) == "t.json"
    path = tmp_path / "recipe.toml"
    path.write_text('tokenizer = "t.json"\n[[sources]]\nname = "x"\ninputs = ["a.jsonl"]\n')
    assert recipe_of((str(path),), Settings(seed=3))[0].seed == 3
    with pytest.raises(RecipeError, match="--label is for files of text"):
        recipe_of((str(path),), Settings(label="web"))
