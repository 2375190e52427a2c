"""Every command from the outside: help, exit codes, what goes to which stream, JSON as the last line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import result, run, run_alone

import packline
from packline.cli.main import COMMANDS

TEXTS = ["one document", "another one, a little longer", "naïve 漢字 👍🏽", "it says <|endoftext|> inside"]
WriteJsonl = Callable[..., Path]


@pytest.fixture
def corpus(tmp_path: Path, write_jsonl: WriteJsonl) -> Path:
    return write_jsonl(
        tmp_path / "corpus.jsonl", [{"text": text, "id": f"n{n}"} for n, text in enumerate(TEXTS)]
    )


@pytest.fixture
def store(tmp_path: Path, corpus: Path, tokenizer_json: Path) -> Path:
    packline.build(corpus, tokenizer_json, out=tmp_path / "store", workers=0)
    return tmp_path / "store"


SUMMARIES = {name: about for commands in COMMANDS.values() for name, about in commands.items()}
GROUPS = ("tokenizer",)
"""Commands with commands of their own."""


def help_of(*words: str) -> tuple[str, set[str]]:
    """The help page of a command, and the options that it explains."""
    done = run(*words, "--help")
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"--[a-z][\w-]*", done.stdout.partition("Examples:")[0]))
    assert {"--json", "--debug"} <= known and max(map(len, done.stdout.splitlines())) <= 100
    return done.stdout, known


@pytest.mark.parametrize("command", [name for name in SUMMARIES if name not in GROUPS])
def test_help_has_command_lines_that_are_true(command: str) -> None:
    whole, known = help_of(command)
    assert f"\n{SUMMARIES[command]}\n" in whole
    shown = whole.partition("Examples:")[2].replace("\\\n", " ")
    lines = re.findall(rf"^ +packline {command}\b(.*)$", shown, re.MULTILINE)
    assert lines, whole
    own = (line.partition(" -- ")[0] for line in lines)  # what follows is another command
    assert set(re.findall(r"--[a-z][\w-]*", " ".join(own))) <= known


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_commands_within_a_command_has_command_lines_that_are_true(group: str) -> None:
    whole = run(group, "--help").stdout
    assert f"\n{SUMMARIES[group]}\n" in whole
    listed, _, shown = whole.partition("Examples:")
    known = {name: help_of(group, name)[1] for name in re.findall(r"│ (\w+) ", listed)}
    lines = re.findall(rf"^ +packline {group} (\w+)\b(.*)$", shown.replace("\\\n", " "), re.MULTILINE)
    assert {name for name, _ in lines} == set(known)
    for name, line in lines:
        assert set(re.findall(r"--[a-z][\w-]*", line)) <= known[name]


def test_a_build_without_a_terminal_writes_plain_lines(
    tmp_path: Path, corpus: Path, tokenizer_json: Path
) -> None:
    done = run_alone("build", corpus, "--tokenizer", tokenizer_json, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr
    assert re.search(r"records in +4 ", done.stdout)
    assert re.search(r"documents +4 ", done.stdout)
    assert "engines" in done.stderr and "4,096 tokens" in done.stderr
    assert f"packline verify {tmp_path / 'out'}" in done.stdout


def test_json_is_one_object_and_the_only_line(tmp_path: Path, corpus: Path, tokenizer_json: Path) -> None:
    out = tmp_path / "out"
    done = run("build", corpus, "--tokenizer", tokenizer_json, "--out", out, "--workers", "0", "--json")
    facts = result(done)
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    store = packline.open(out)
    assert facts["documents"] == len(store.documents) == len(TEXTS)
    assert facts["tokens"] == sum(len(tokens) for tokens in store.documents)
    assert facts["text_bytes"] == facts["run_text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert sum(facts["engine_bytes"].values()) == facts["text_bytes"]
    assert facts["ledger"]["special_token_strings"] == 1
    assert list(facts["sources"].values()) == [facts["ledger"]]
    assert 0 < facts["first_unit_seconds"] < facts["seconds"]
    published = [path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert facts["store_bytes"] == sum(path.stat().st_size for path in published)
    assert {"exit_code", "tokenizer_seconds", "peak_rss_bytes", "bad_fraction"} <= set(facts)


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["build", "nowhere.jsonl", "--tokenizer", "t", "--out", "o"], 1, "InputError"),
        (["build", "a.toml", "--out", "o"], 2, "RecipeError"),
        (["build", "a.jsonl", "--out", "o"], 2, "RecipeError"),
        (["build", "a.jsonl", "--out", "o", "--tokenizer", "t", "--val-fraction", "7"], 2, "RecipeError"),
        (["build", "a.jsonl", "--tokenizer", "t"], 2, "RecipeError"),
        (["build", "a.jsonl", "--tokenizer", "t", "--out", "o", "--colour"], 2, "UsageError"),
        (["build", "--dry-run", "a.jsonl", "--tokenizer", "t", "--engine", "warp"], 2, "UsageError"),
        (["build", "--dry-run", "a.jsonl", "--tokenizer", "t", "--limit-documents", "many"], 2, "UsageError"),
        (["polish"], 2, "UsageError"),
        (["info", "nowhere"], 1, "StoreNotFound"),
        (["status", "nowhere"], 1, "StoreNotFound"),
        (["verify", "nowhere"], 1, "StoreNotFound"),
    ],
)
def test_an_error_is_two_lines_an_exit_code_and_an_object(
    tmp_path: Path, words: list[str], code: int, kind: str
) -> None:
    plain, machine = run(*words, cwd=tmp_path), run(*words, "--json", cwd=tmp_path)
    assert (plain.returncode, machine.returncode) == (code, code)
    assert plain.stdout == ""
    first, *rest = plain.stderr.splitlines()
    assert first.startswith("error: ") and [line[:6] for line in rest] in (["hint: "], [])
    error = result(machine)["error"]
    assert error["kind"] == kind
    assert first == f"error: {error['message']}"
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    done = run("info", tmp_path / "nowhere", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "StoreNotFound" in done.stderr


def test_too_many_bad_records_end_with_3_and_a_complete_store(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{"text": 7}\n{"text"\n', "utf-8")
    words = ["build", "bad.jsonl", "--tokenizer", str(tokenizer_json), "--out", "out"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 3
    warning = next(line for line in done.stderr.splitlines() if line.startswith("warning: "))
    assert "2 of 3 records" in warning and "1 malformed_json" in warning and "1 not_a_string" in warning
    assert "out/rejects/" in done.stderr
    assert run("verify", "out", cwd=tmp_path).returncode == 0
    allowed = run(*words[:-1], "again", "--max-bad-fraction", "0.7", "--json", cwd=tmp_path)
    assert allowed.returncode == 0
    assert result(allowed)["bad_fraction"] == pytest.approx(2 / 3)
    strict = run(*words[:-1], "strict", "--strict", "--json", cwd=tmp_path)
    assert (strict.returncode, result(strict)["error"]["kind"]) == (1, "BadRecord")


def test_a_source_that_gave_no_documents_is_said_with_the_reason(
    tmp_path: Path, tokenizer_json: Path
) -> None:
    for name in ("kept", "lost"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a b", "lang": "en"}\n' * 3)
    where = "where = \"lang == '%s'\""
    sources = [
        f'[[sources]]\nname = "{name}"\ninputs = ["{name}.jsonl"]\n{where % language}\n'
        for name, language in (("kept", "en"), ("lost", "de"))
    ]
    (tmp_path / "recipe.toml").write_text(f"tokenizer = '{tokenizer_json}'\n" + "".join(sources))
    done = run("build", "recipe.toml", "--out", "store", cwd=tmp_path)
    assert done.returncode == 0
    assert "source lost gave no documents: 3 left out by filters" in done.stdout
    assert "source kept gave" not in done.stdout


def test_status_and_verify_of_a_finished_store(store: Path) -> None:
    found = result(run("status", store, "--json"))
    assert (found["state"], found["units_done"], found["documents"]) == ("finished", 1, len(TEXTS))
    assert "finished" in run("status", store).stdout
    report = result(run("verify", store, "--deep", "--json"))
    assert report["ok"] and report["deep"]["documents"] == len(TEXTS)
    assert "all is well" in run("verify", store).stdout


def test_verify_ends_with_1_and_names_the_file_that_is_damaged(store: Path) -> None:
    tokens = store / "train-corpus-000000.bin"
    data = bytearray(tokens.read_bytes())
    data[0] ^= 1
    tokens.write_bytes(data)
    done = run("verify", store)
    assert done.returncode == 1
    assert "problem: train-corpus-000000.bin" in done.stdout
    assert result(run("verify", store, "--json"))["problems"][0]["file"] == "train-corpus-000000.bin"


def test_settings_reach_the_recipe(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n--\ntwo\n--\nthree", "utf-8")
    words = ["build", "a.txt", "--tokenizer", str(tokenizer_json), "--out", "out", "--separator", r"\n--\n"]
    words += ["--eod", "0", "--bos", "<|endoftext|>", "--val-fraction", "0.5", "--limit-documents", "2"]
    done = run(*words, "--workers", "0", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recipe = packline.open(tmp_path / "out").manifest.recipe
    (source,) = recipe.sources
    assert (source.documents, source.separator) == ("separator", "\n--\n")
    assert (recipe.eod, recipe.bos, recipe.val_fraction) == (0, "<|endoftext|>", 0.5)
    assert (recipe.limit_documents, result(done)["ledger"]["bos_tokens"]) == (2, 2)


def test_info_prints_what_python_gets(store: Path) -> None:
    printed = result(run("info", store, "--json", "--documents", "2"))
    values = msgspec.to_builtins(packline.info(store, documents=2))
    values["groups"] = [{k: v for k, v in group.items() if k != "text_bytes"} for group in values["groups"]]
    assert printed == json.loads(json.dumps({"command": "info", "exit_code": 0, **values}))
    assert [one["text"] for one in printed["first_documents"]] == TEXTS[:2]
    assert printed["lengths"]["longest"] == max(map(len, packline.open(store).documents))
    assert str(packline.view(store, document=1, tokens=2)).startswith("  Document 1 of ")
