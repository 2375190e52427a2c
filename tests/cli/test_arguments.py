"""Options of the command line: what is given arrives under the name of its setting, the rest stays away."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.cli.arguments import DocumentArguments, RowArguments, Settings, read_token, recipe_of, unescape
from packline.errors import RecipeError
from packline.packing.options import ExportChoice
from packline.settings import OPTION_FIELDS, RECIPE_FIELDS, SOURCE_FIELDS, RowKeywords

NAMES = [field.name for field in fields(Settings)]


@given(st.lists(st.sampled_from(["\\n", "\\t", "\\r", "\\\\", "a", "n", "日"]), min_size=1))
def test_escapes_of_a_separator_are_read_from_the_left(parts: list[str]) -> None:
    real = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\"}
    assert unescape("".join(parts)) == "".join(real.get(one, one) for one in parts)


@given(st.integers(0, 2**40), st.sampled_from(["<eod>", "-1", "1.0", "", "٣", "²"]))
def test_a_token_of_ascii_digits_is_an_id_and_any_other_a_string(number: int, word: str) -> None:
    assert (read_token(str(number)), read_token(word)) == (number, word)


def test_every_option_of_a_build_is_a_setting_that_exists() -> None:
    known = SOURCE_FIELDS | RECIPE_FIELDS | OPTION_FIELDS | {"memory", "tokenizer"}
    assert set(NAMES) <= known and Settings().given() == {}


def test_options_of_rows_and_documents_have_the_names_of_a_choice() -> None:
    named = [field.name for kind in (RowArguments, DocumentArguments) for field in fields(kind)]
    assert set(named) - {"run"} < set(ExportChoice.__struct_fields__)
    assert set(named) - {"run"} <= set(get_type_hints(RowKeywords))
    assert RowArguments().given() == {} and RowArguments(seed=0).given() == {"seed": 0}


def test_inputs_of_a_command_line_are_a_source_each_and_a_recipe_is_taken_as_it_is(tmp_path: Path) -> None:
    settings = Settings(tokenizer="t.json", text="body", val_fraction=0.5)
    recipe, _ = recipe_of(("a.jsonl", "b.jsonl"), settings)
    assert [(one.inputs, one.text) for one in recipe.sources] == [
        (("a.jsonl",), "body"),
        (("b.jsonl",), "body"),
    ]
    (source,) = recipe_of(tuple(f"{name}.txt" for name in NAMES[:20]), Settings(tokenizer="t"))[0].sources
    assert len(source.inputs) == 20
    assert recipe.val_fraction == 0.5 and str(recipe.tokenizer) == "t.json"
    path = tmp_path / "recipe.toml"
    path.write_text('tokenizer = "t.json"\n[[sources]]\nname = "x"\ninputs = ["a.jsonl"]\n')
    assert recipe_of((str(path),), Settings(val_fraction=0.25))[0].val_fraction == 0.25


def test_a_run_file_gives_the_choice_of_a_store_and_options_override_it(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[loader]\nbatch_size = 4\n[[stages]]\nseq_len = 64\npacking = "best_fit"\npack_window = 2\n'
        '[[stages.sources]]\nstore = "one"\nweight = 1\nlabels = "web"\nmin_tokens = 9\n'
        '[[stages.sources]]\nstore = "two"\nweight = 1\nsplit = "val"\n'
        '[[stages]]\nseq_len = 32\nsplit_to = 16\n[[stages.sources]]\nstore = "three"\n'
        '[[stages]]\nseq_len = 64\n[[stages.sources]]\nstore = "two"\n'
    )
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    documents = {"split": "train", "labels": "web", "min_tokens": 9}
    given = DocumentArguments(run=str(path))
    assert given.settings(one, rows=False) == documents
    assert given.settings(one + "/", rows=True) == documents | {
        "seq_len": 64,
        "packing": "best_fit",
        "pack_window": 2,
    }
    assert DocumentArguments(run=str(path), min_tokens=1).settings(one, rows=False)["min_tokens"] == 1
    assert given.settings(three, rows=False) == {"split": "train"}
    with pytest.raises(RecipeError, match=r"reads .*two in several ways"):
        given.settings(two, rows=False)
    with pytest.raises(RecipeError, match=r"stages\[1\] cuts its rows by split_to"):
        given.settings(three, rows=True)
    with pytest.raises(RecipeError, match=r"--run is for a store: run\.toml has its own"):
        given.settings("run.toml", rows=False)
    with pytest.raises(RecipeError, match=r"does not read .*four"):
        given.settings(str(tmp_path / "four"), rows=False)
