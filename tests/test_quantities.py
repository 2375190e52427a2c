"""Numbers as people write them, in options and in TOML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packline.errors import RecipeError
from packline.loading.run_file import SourceSettings, StageSettings, parse_run
from packline.packing.options import LoaderOptions
from packline.quantities import LENGTHS, parse_bytes, parse_count, parse_length, read_quantities
from packline.recipe import Recipe, RunOptions, Share, Source, load_recipe, load_shares

COUNTS = {"": 1, "k": 10**3, "m": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "Ki": 2**10}
TOKENS = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20, "Ki": 2**10, "Mi": 2**20}


@given(st.integers(0, 10**6), st.sampled_from(sorted(COUNTS)), st.sampled_from(sorted(TOKENS)))
def test_a_number_is_its_digits_times_its_unit(number: int, count: str, length: str) -> None:
    assert parse_count(f" {number}{count}") == number * COUNTS[count]
    assert parse_length(f"{number} {length} ") == number * TOKENS[length]
    assert parse_count(f"{number:,}") == parse_count(f"{number:_}") == number
    for ending in ("", "B", "b") if count != "B" else ():
        assert parse_bytes(f"{number} {count}{ending}") == number * COUNTS[count]
        assert parse_bytes(f"{number}.5{count}{ending}") == (2 * number + 1) * COUNTS[count] // 2


@pytest.mark.parametrize("wrong", ["", "k", "4q", "4 4", "1,00", "0x10", "1e3", "1.2345k", "0.5", "٣", "4kB"])
def test_what_is_no_whole_number_is_refused_with_an_example(wrong: str) -> None:
    for parse in (parse_count, parse_length):
        with pytest.raises(RecipeError, match="is not a") as caught:
            parse(wrong)
        assert "for example" in caught.value.hint
    for size in ("", "Ki", "4x", "4EB", "4 4"):
        with pytest.raises(RecipeError, match="is not a size"):
            parse_bytes(size)


def test_every_length_is_a_setting_and_every_integer_of_a_file_may_have_a_unit() -> None:
    structs = (Recipe, Source, RunOptions, Share, LoaderOptions, StageSettings, SourceSettings)
    names = {name for one in structs for name in one.__struct_fields__}
    assert set(LENGTHS) - {"vocab_size", "max_seq_len"} <= names
    for struct in structs:
        read = read_quantities(dict.fromkeys(struct.__struct_fields__, "3k"), struct, "here")
        left = {name for name, value in read.items() if isinstance(value, str)}
        fixed = [field for field in struct.__struct_fields__ if field not in left]
        assert all(read[name] in (3000, 3072) for name in fixed)
    assert read_quantities({"tokenizer": "4k", "eod": "4k"}, Recipe, "") == {"tokenizer": "4k", "eod": "4k"}


def test_files_of_users_have_numbers_with_units(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'tokenizer = "t"\nlimit_tokens = "2B"\nmax_document_bytes = "1MiB"\n[run]\nmemory = "2GiB"\n'
        '[[sources]]\ninputs = ["a"]\nmin_chars = "1k"\ntokens = "1.5M"\n'
    )
    recipe, options = load_recipe(path)
    assert (recipe.limit_tokens, recipe.max_document_bytes) == (2 * 10**9, 1 << 20)
    assert (recipe.sources[0].min_chars, options.memory_bytes) == (1000, 2 << 30)
    assert load_shares(path)[0].tokens == 1_500_000
    table = {
        "loader": {"batch_size": "1k"},
        "stages": [{"tokens": "4B", "seq_len": "4k", "pack_window": "8"}],
    }
    table["stages"][0]["sources"] = [{"store": "s", "max_tokens": "32K", "weight": "1/3"}]  # type: ignore[index]
    run = parse_run(table)
    stage, (source,) = run.stages[0], run.stages[0].sources
    assert (run.loader.batch_size, stage.tokens, stage.seq_len) == (1000, 4 * 10**9, 4096)
    assert (source.pack_window, source.max_tokens, source.weight) == (8, 32768, "1/3")
