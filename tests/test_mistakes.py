"""Mistakes in recipes, run files and command lines, and what is printed for each.

The messages were read, one by one, as by a person who does not know the code: they name the place, what was
found and what is expected; the hint says what to write. Words that no command has are in `cli/test_usage`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from packline.cli.main import main
from packline.errors import RecipeError
from packline.loading.run_file import read_run
from packline.recipe import load_recipe

SOURCE = '[[sources]]\ninputs = ["laws/"]\n'
RECIPES = [
    (
        'tokenizer = "t"\n[sources]\ninputs = ["a"]',
        "sources is a table: expected a list of tables",
        "[[sources]]",
    ),
    (
        'tokenizer = "t"\n[[source]]\ninputs = ["a"]',
        "r.toml has no setting 'source'",
        "did you mean 'sources'?",
    ),
    (
        'tokenizer = "t"\n[[sources]]\ninputs = "laws/"',
        "sources[0].inputs is 'laws/': expected a list",
        '["laws/"]',
    ),
    ('[[sources]]\ninputs = ["a"]', "r.toml: tokenizer is missing", "write tokenizer = ..."),
    ('tokenizer = "t"', "r.toml: sources is missing", "write [[sources]]"),
    (
        'tokenizer = "t"\n[[sources]]\nname = "a"\ninputs = ["x"]\n[[sources]]\nname = "a"\ninputs = ["y"]',
        "two sources are called 'a': expected a different name for each",
        "",
    ),
    ('tokenizer = "t"\nsources = []', "the recipe has no sources", "name at least one input"),
    (
        'tokenizer = "t"\n[[sources]]\ninputs = []',
        "sources[0] has no inputs",
        "at least one file, folder or glob",
    ),
    (
        'tokenizer = gpt2\n[[sources]]\ninputs = ["a"]',
        "not TOML: Invalid value (at line 1",
        'tokenizer = "gpt2"',
    ),
    ('tokenizer = "t"\n[[sources]\n', "not TOML: Expected ']]'", "the line is: [[sources]"),
]
SETTINGS = [
    ("val_fracton = 0.1", "r.toml has no setting 'val_fracton'", "did you mean 'val_fraction'?"),
    ('label = "web"', "r.toml: 'label' belongs to [[sources]]", ""),
    ("workers = 4", "r.toml: 'workers' belongs to [run]", ""),
    ("seq_len = 4096", "r.toml: 'seq_len' is chosen when the store is read", ""),
    ('special_tokens = "keep"', "special_tokens is 'keep': expected parse, reject or text", ""),
    ('special_tokens = "rejct"', "special_tokens is 'rejct': expected", "did you mean 'reject'?"),
    (
        'val_fraction = "1%"',
        "val_fraction is '1%': expected a number, at least 0 and below 1",
        "val_fraction = 0.01",
    ),
    (
        'val_fraction = "0.1"',
        "val_fraction is '0.1': expected a number",
        "val_fraction = 0.1, without quotes",
    ),
    ("val_fraction = 2", "val_fraction is 2: expected at least 0 and below 1", "0.02 is 2%"),
    ("val_fraction = -0.1", "val_fraction is -0.1: expected at least 0 and below 1", ""),
    ("val_fraction = 0.5\ntest_fraction = 0.6", "and test_fraction 0.6: expected at most 1 together", ""),
    ("val_fraction = 0.5\nval_documents = 9", "two sizes of one split: expected one of them", ""),
    (
        "limit_documents = 9\nval_documents = 9",
        "a limit leaves some out: expected one of them",
        "use val_fraction",
    ),
    ("limit_documents = 0", "limit_documents is 0: expected at least 1", ""),
    ('limit_tokens = "2Q"', "limit_tokens: '2Q' is not a number", "2B"),
    ("seed = -1", "seed is -1: expected at least 0", ""),
    ('seed = "x"', "seed: 'x' is not a number", "for example 20000"),
    ('run.strict = "true"', "run: strict is 'true': expected true or false", "strict = true, without quotes"),
    ('run.strict = "yes"', "run: strict is 'yes': expected true or false", "strict = true, without quotes"),
    ("run.workers = -1", "run: workers is -1: expected at least 0", ""),
    ("run.memory = 4", "memory is 4 bytes: expected at least 256 MiB", "write 4GiB"),
]
OF_SOURCE = [
    ('format = "json"', "sources[0].format is 'json': expected auto, jsonl, parquet or text", "'jsonl'?"),
    ('name = "web"\nformat = "json"', "web: format is 'json'", "did you mean 'jsonl'?"),
    ('split = "dev"', "sources[0].split is 'dev': expected test, train or val", ""),
    ("min_chars = -1", "sources[0].min_chars is -1: expected at least 0", ""),
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
STORE = '[[stages.sources]]\nstore = "a"\n'
RUNS = [
    (f"[[stages]]\nseq_len = 8\n{STORE}", "loader is not given: expected a table", "write [loader]"),
    (LOADER, "run.toml: stages is missing", "write [[stages]]"),
    (f"{LOADER}[stages]\nseq_len = 8", "stages is a table: expected a list of tables", "[[stages]]"),
    (f"{LOADER}[[stages]]\n{STORE}", "stages[0]: seq_len is missing", "write seq_len = ..."),
    (
        f"{LOADER}[[stages]]\nseqlen = 8\n{STORE}",
        "stages[0] has no setting 'seqlen'",
        "did you mean 'seq_len'?",
    ),
    (f'{LOADER}[[stages]]\nseq_len = 8\npacking = "bestfit"\n{STORE}', "packing is 'bestfit'", "'best_fit'?"),
    (
        f'{LOADER}[[stages]]\nseq_len = 8\n{STORE}overflow = "cut"',
        "overflow is 'cut': expected drop, split",
        "",
    ),
    (f"{LOADER}[[stages]]\nseq_len = 8\n{STORE}min_tokens = -1", "min_tokens is -1: expected at least 0", ""),
    (f'{LOADER}order = "random"\n[[stages]]\nseq_len = 8\n{STORE}', "order is 'random': expected blocks", ""),
    (
        f'{LOADER}shuffle = "yes"\n[[stages]]\nseq_len = 8\n{STORE}',
        "shuffle is 'yes': expected",
        "shuffle = true",
    ),
    (f'{LOADER}[[stages]]\nseq_len = 8\ntokens = "many"\n{STORE}', "tokens: 'many' is not a number", "2B"),
    (f"{LOADER}[[stages]]\nseq_len = 8\n{STORE}{STORE}", "has no weight: expected one", "weight = 0.5"),
    (
        f"[loader]\n[[stages]]\nseq_len = 8\n{STORE}",
        "loader has no batch_size: expected rows",
        "batch_size = 32",
    ),
    *(
        (f"{LOADER}{setting}\n[[stages]]\nseq_len = 8\n{STORE}", message, "")
        for setting, message in {
            "seed = -1": "loader: seed is -1: expected at least 0",
            "prefetch = -1": "loader: prefetch is -1: expected at least 0",
            "block_rows = 0": "loader: block_rows is 0: expected at least 1",
            'keys = "hf"': "loader: keys is 'hf': expected huggingface or packline",
        }.items()
    ),
    *(
        (f"{LOADER}[[stages]]\nseq_len = 8\n{setting}\n{STORE}", message, "")
        for setting, message in {
            "tokens = 0": "stages[0].tokens is 0: expected at least 1",
            "from_step = -1": "stages[0].from_step is -1: expected at least 0",
            "split_to = 0": "stages[0].split_to is 0: expected at least 1",
            "min_tail_fraction = 2": "min_tail_fraction is 2: expected at least 0 and at most 1",
        }.items()
    ),
    (f"{LOADER}[[stages]]\nseq_len = 0\n{STORE}", "stages[0].seq_len is 0: expected at least 2", ""),
    (
        f"{LOADER}[[stages]]\nseq_len = 8\n{STORE}weight = -1",
        "weight is -1: expected a number above 0",
        "leave",
    ),
    (f"{LOADER}[[stages]]\nseq_len = 8\n{STORE}max_epochs = 0", "max_epochs is 0: expected at least 1", ""),
    (
        f"{LOADER}fields = ['tokns']\n[[stages]]\nseq_len = 8\n{STORE}",
        "loader: fields[0] is 'tokns': expected",
        "did you mean 'tokens'?",
    ),
]
COMMANDS = [
    ("build a.jsonl --out o", "no tokenizer", "name one with --tokenizer: gpt2"),
    ("build a.jsonl --val-fraction 1%", "--val-fraction is '1%': expected NUMBER", "packline build --help"),
    ("export s --to nanogtp --out o", "no format 'nanogtp'", "did you mean 'nanogpt'?"),
    ("info r.toml", "r.toml is a recipe, not the folder of a store", "packline build r.toml --out store"),
    ("trace s --steps 0:4", "--steps and --write go together", "--write seen.parquet"),
    ("view s --row 1", "--seq-len is missing", "--seq-len 4096"),
    ("build nowhere.jsonl --tokenizer t --out o", "cannot find nowhere.jsonl", "check the path"),
]


def check(error: RecipeError, message: str, hint: str) -> None:
    assert message in error.message
    assert hint in error.hint if hint else not error.hint


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        *RECIPES,
        *((f'tokenizer = "t"\n{written}\n{SOURCE}', *said) for written, *said in SETTINGS),
        *((f'tokenizer = "t"\n{SOURCE}{written}\n', *said) for written, *said in OF_SOURCE),
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


@pytest.mark.parametrize(("words", "message", "hint"), COMMANDS)
def test_a_mistake_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(f'tokenizer = "t"\n{SOURCE}')
    assert main([*shlex.split(words), "--json"]) in (1, 2)
    error = json.loads(capsys.readouterr().out)["error"]
    assert message in error["message"] and hint in error["hint"]
