"""Wrong command lines: the nearest name, an example that works; -V, -q, topics, completion."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import environment, run

import packline
from packline.cli.main import COMMANDS, WRITING, main, make_app

PAGES = [name for commands in COMMANDS.values() for name in commands]

WRONG = [
    (
        "build a.txt --tokenizer t",
        "packline build needs --out FOLDER",
        "for example: packline build corpus/ ",
    ),
    ("build --tokenizer t --out o", "no inputs", "name files"),
    ("build a.jsonl --out o", "no tokenizer", "name one with --tokenizer: gpt2"),
    ("verify", 'Command "verify" parameter STORE requires', "for example: packline verify store"),
    ("tokenizer train x --out o", 'Command "tokenizer train" parameter --vocab-size', "for example: "),
    ("biuld a", 'Unknown command "biuld". Did you mean "build"?', "packline --help"),
    ("tokenize a", "packline has no command 'tokenize'", "packline build does it"),
    ("build a --toknizer t", "Unknown option: --toknizer. Did you mean --tokenizer?", "build --help"),
    ("verify a b", "Unused Tokens: ['b']", "for example: "),
    ("info s --seq-len 4q", "--seq-len: '4q' is not a number", "4k, which is 4,096"),
    ("serve a --port x", "Invalid value for --port: ", "packline serve --help"),
    ("build a --min-chars 9", "Unknown option: --min-chars", "write min_chars = ... in a recipe: "),
    ("trace s --boundary-loss", "Unknown option: --boundary-loss", "in a run file: packline init"),
]


@pytest.mark.parametrize(("words", "message", "hint"), WRONG)
def test_a_wrong_command_line_is_answered_with_what_to_do(
    words: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*shlex.split(words), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].startswith(message) and hint in error["hint"]
    assert "\n" not in error["message"] + error["hint"]


def test_every_command_is_in_one_topic_and_the_list_has_the_topics_in_order() -> None:
    assert len(PAGES) == len(set(PAGES)) and set(WRITING) <= set(PAGES)
    shown = run("--help").stdout
    assert re.findall(r"^╭─ (.+?) ─", shown, re.MULTILINE) == [*COMMANDS, "Options"]


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_has_two_flags(flag: str) -> None:
    assert run(flag).stdout.strip() == packline.__version__


def test_quiet_leaves_results_of_looking_errors_and_json(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "latin.txt").write_bytes(b"gr\xfc\xdfe")
    words = ["build", "a.txt", "--tokenizer", str(tokenizer_json), "--workers", "0", "--out"]
    done = run(*words, "out", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "documents" in run("info", "out", "--quiet", cwd=tmp_path).stdout
    again = run(*words, "out", "-q", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["nothing_to_do"]
    failed = run("info", "nowhere", "-q", cwd=tmp_path)
    assert failed.returncode == 1 and failed.stderr.startswith("error: ")
    words[1] = "*.txt"
    bad = run(*words, "bad", "-q", cwd=tmp_path)
    assert bad.returncode == 3 and bad.stderr.startswith("warning: ") and bad.stdout == ""


def test_completion_is_installed_for_the_shell(tmp_path: Path) -> None:
    done = run("--install-completion", "--shell", "bash", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (script,) = tmp_path.rglob("completions/packline")
    subprocess.run(["bash", "-n", script], check=True, env=environment())
    asked = 'source "$1"; COMP_WORDS=(packline ver); COMP_CWORD=1; _packline; echo "${COMPREPLY[@]}"'
    assert re.search(r"^_packline\(\)", script.read_text(), re.MULTILINE)
    found = subprocess.run(
        ["bash", "-c", asked, "-", script], check=True, env=environment(), capture_output=True, text=True
    )
    assert found.stdout.split() == ["verify"]
    written = (tmp_path / ".bashrc").read_text()
    again = run("--install-completion", "--shell", "bash", HOME=str(tmp_path))
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert (tmp_path / ".bashrc").read_text() == written


def test_completion_that_cannot_be_written_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("no folder, as one that nobody can write to")
    done = run("--install-completion", "--shell", "bash", HOME=str(tmp_path / "home"))
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "home" in done.stderr
    assert "OSError" not in done.stderr and "should not happen" not in done.stderr


def test_completion_knows_all_commands_and_options() -> None:
    script = make_app().generate_completion(shell="bash")
    assert all(name in script for name in PAGES)
    assert "val-fraction" in script and "seq-len" in script
    assert "--empty-" not in script and "--no-" not in script
