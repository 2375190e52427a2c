"""Mistakes in recipes and run files, and what is printed for each.

The messages were read, one by one, as by a person who does not know the code: they name the place, what was
found and what is expected; the hint says what to write. Wrong command lines are in `cli/test_usage`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from packline.errors import RecipeError
from packline.loading.run_file import read_run
from packline.recipe import load_recipe

SOURCE = '[[sources]]\ninputs = ["laws/"]\n'
TOKENIZER = 'tokenizer = "t"\n'
RECIPES = [
    (f"{TOKENIZER}[sources]", "sources is a table: expected a list of tables", "[[sources]]"),
    (f"{TOKENIZER}[[source]]", "r.toml has no setting 'source'", "did you mean 'sources'?"),
    (f'{TOKENIZER}[[sources]]\ninputs = "a/"', "sources[0].inputs is 'a/': expected a list", '["a/"]'),
    (SOURCE, "r.toml: tokenizer is missing", "write tokenizer = ..."),
    (TOKENIZER, "r.toml: sources is missing", "write [[sources]]"),
    (f'{TOKENIZER}{SOURCE}name = "a"\n{SOURCE}name = "a"', "two sources are called 'a': expected", ""),
    (f"{TOKENIZER}sources = []", "the recipe has no sources", "name at least one input"),
    (f"{TOKENIZER}[[sources]]\ninputs = []", "sources[0] has no inputs", "at least one file, folder or glob"),
    (f"tokenizer = gpt2\n{SOURCE}", "not TOML: Invalid value (at line 1", 'tokenizer = "gpt2"'),
    (f"{TOKENIZER}[[sources]\n", "not TOML: Expected ']]'", "the line is: [[sources]"),
]
SETTINGS = [
    ("val_fracton = 0.1", "r.toml has no setting 'val_fracton'", "did you mean 'val_fraction'?"),
    ('label = "web"', "r.toml: 'label' belongs to [[sources]]", ""),
    ("workers = 4", "r.toml: 'workers' belongs to [run]", ""),
    ("seq_len = 4096", "r.toml: 'seq_len' is chosen when the store is read", ""),
    ('special_tokens = "rejct"', "special_tokens is 'rejct': expected", "did you mean 'reject'?"),
    ('val_fraction = "1%"', "val_fraction is '1%': expected a number, at least 0 and below 1", ""),
    ("val_fraction = 2", "val_fraction is 2: expected at least 0 and below 1", ""),
    ("val_fraction = 0.5\ntest_fraction = 0.6", "and test_fraction 0.6: expected at most 1 together", ""),
    ("val_fraction = 0.5\nval_documents = 9", "two sizes of one split: expected one of them", ""),
    (
        "limit_documents = 9\nval_documents = 9",
        "a limit leaves some out: expected one of them",
        "use val_fraction",
    ),
    ('limit_tokens = "2Q"', "limit_tokens: '2Q' is not a number", "2B"),
    ('seed = "x"', "seed: 'x' is not a number", "for example 20000"),
    ('run.strict = "yes"', "run: strict is 'yes': expected true or false", ""),
    ("run.worker = 2", "run has no setting 'worker'", "did you mean 'workers'?"),
    ("run.val_fraction = 0.1", "run: 'val_fraction' belongs to the top of a recipe", ""),
    ("run.memory = '12 bananas'", "memory_bytes: '12 bananas' is not a size", "4GiB"),
    ("run.memory = 4", "memory is 4 bytes: expected at least 256 MiB", "write 4GiB"),
]
OF_SOURCE = [
    ('format = "json"', "sources[0].format is 'json': expected auto, jsonl, parquet or text", "'jsonl'?"),
    ('name = "web"\nformat = "json"', "web: format is 'json'", "did you mean 'jsonl'?"),
    ("min_chars = 9\nmax_chars = 3", "sources[0]: max_chars 3 is below min_chars 9", ""),
    ('text = "a"\ntemplate = "{{ a }}"', "sources[0] has both a text field and a template", "{{ title }}"),
    ('documents = "separator"', 'documents = "separator" and separator go together', r'separator = "\n\n"'),
    ('charset = "latin-one"', "charset is 'latin-one': expected an encoding that Python knows", "latin-1"),
    ("weight = 1\nmax_epochs = 0", "sources[0]: max_epochs is 0: expected at least 1 or unlimited", ""),
    ("weight = 1\nmax_epochs = unlimited", "not TOML: Invalid value", 'max_epochs = "unlimited"'),
    ("weight = 1\ntokens = 5", "a weight and a budget of tokens: expected one of them", ""),
    ('where = "score => 3"', "where, column 7 of 'score => 3': expected >=", "field in [values]"),
]
LOADER = "[loader]\nbatch_size = 8\n"
STAGE = "[[stages]]\nseq_len = 8\n"
STORE = '[[stages.sources]]\nstore = "a"\n'
OF_LOADER = [
    ('order = "random"', "order is 'random': expected blocks", ""),
    ('shuffle = "yes"', "shuffle is 'yes': expected", ""),
    ("fields = ['tokns']", "loader: fields[0] is 'tokns': expected", "did you mean 'tokens'?"),
]
OF_STAGE = [
    ('packing = "bestfit"', "packing is 'bestfit'", "'best_fit'?"),
    ('tokens = "many"', "tokens: 'many' is not a number", "2B"),
    ("from_step = -1", "stages[0].from_step is -1: expected at least 0", ""),
    ("min_tail_fraction = 2", "min_tail_fraction is 2: expected at least 0 and at most 1", ""),
]
OF_STORE = [
    ('overflow = "cut"', "overflow is 'cut': expected drop, split", ""),
]
RUNS = [
    (STAGE + STORE, "loader is not given: expected a table", "write [loader]"),
    (LOADER, "run.toml: stages is missing", "write [[stages]]"),
    (f"{LOADER}[stages]\nseq_len = 8", "stages is a table: expected a list of tables", "[[stages]]"),
    (f"{LOADER}[[stages]]\n{STORE}", "stages[0]: seq_len is missing", "write seq_len = ..."),
    (f"{LOADER}[[stages]]\nseqlen = 8\n{STORE}", "stages[0] has no setting 'seqlen'", "mean 'seq_len'?"),
    (f"{LOADER}[[stages]]\nseq_len = 0\n{STORE}", "stages[0].seq_len is 0: expected at least 2", ""),
    *((f"{LOADER}{written}\n{STAGE}{STORE}", *said) for written, *said in OF_LOADER),
    *((f"{LOADER}{STAGE}{written}\n{STORE}", *said) for written, *said in OF_STAGE),
    *((f"{LOADER}{STAGE}{STORE}{written}\n", *said) for written, *said in OF_STORE),
]


def check(error: RecipeError, message: str, hint: str) -> None:
    assert message in error.message
    assert hint in error.hint if hint else not error.hint


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        *RECIPES,
        *((f"{TOKENIZER}{written}\n{SOURCE}", *said) for written, *said in SETTINGS),
        *((f"{TOKENIZER}{SOURCE}{written}\n", *said) for written, *said in OF_SOURCE),
    ],
)
def test_a_mistake_in_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(written)
    with pytest.raises(RecipeError) as caught:
        load_recipe("r.toml")
    check(caught.value, message, hint)


@pytest.mark.parametrize(("written", "message", "hint"), RUNS)
def test_a_mistake_in_a_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(written)
    with pytest.raises(RecipeError) as caught:
        read_run("run.toml")
    check(caught.value, message, hint)
