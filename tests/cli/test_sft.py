"""`packline sft`: what it says, what it counts, and its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.chat import talks
from tests.chat.model_formats import QWEN3_PUBLISHED
from tests.chat.talks import CHATML, CHATML_TOKENS, unmarked

from packline.cli.main import main

SFT_PAGE = Path(__file__).resolve().parents[2] / "docs" / "sft.md"

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me, of course."}]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["sft", *words, "--json", "--workers", "0"])
    said = capsys.readouterr()
    lines = said.out.strip().splitlines()
    return code, json.loads(lines[-1]) if lines else {}, said.err


@pytest.fixture
def chat(tokenizer_json: Path, tmp_path: Path) -> list[str]:
    """A tokenizer and a file of conversations; beside it lies a template."""
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", CHATML_TOKENS, None)
    (tmp_path / "chat.jinja").write_text(unmarked(CHATML), "utf-8")
    return [str(tmp_path / "chat.jsonl"), "--tokenizer", str(tokenizer)]


def test_conversations_become_a_store(
    chat: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talks.write(tmp_path / "chat.jsonl", [TALK] * 9 + [TALK[:1]])
    words = [*chat, "--out", str(tmp_path / "store")]
    code, facts, said = run(capsys, *words)
    assert code == 2
    assert "has no chat template" in said + json.dumps(facts)
    words += ["--chat-template", str(tmp_path / "chat.jinja")]
    code, facts, said = run(capsys, *words)
    assert code == facts["exit_code"] == 3
    assert (facts["documents"], facts["bad_records"]) == (9, 1)
    assert facts["ledger"]["rejected"] == {"nothing_to_train": 1}
    assert facts["ledger"]["mask"]["trained_tokens"] > 9
    code, facts, _ = run(capsys, *words, "--max-bad-fraction", "0.5")
    assert code == 0
    assert facts["nothing_to_do"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--preset", "nanochat-sft"], "goes with --data"),
        ([], "either inputs or a preset"),
        (["a.jsonl", "--preset", "nanochat-sft", "--data", "."], "either inputs or a preset"),
        (["a.jsonl", "--chat-template", "nowhere.jinja"], "cannot read the chat template"),
        (["a.jsonl", "--chat-template", "gemma"], "the tokenizer has no <bos>"),
    ],
)
def test_commands_that_make_no_sense_are_refused(
    words: list[str], message: str, tokenizer_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "store")
    code, facts, said = run(capsys, *words, "--tokenizer", str(tokenizer_json), "--out", out)
    assert code == 2
    assert message in said + json.dumps(facts)


def test_the_first_command_of_the_page_works_with_the_template_of_its_model(
    tokenizer_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = SFT_PAGE.read_text("utf-8").replace("\\\n", " ")
    (line, *_) = re.findall(r"^\$ (packline sft .*)$", page, re.MULTILINE)
    _, _, *words = shlex.split(line)
    model = words[words.index("--tokenizer") + 1]
    assert model == "Qwen/Qwen3-8B"
    # A folder of that name in place of the hub, with a template as the model's is published.
    talks.with_tokens(tokenizer_json, tmp_path / model, CHATML_TOKENS, QWEN3_PUBLISHED)
    weather: list[Any] = [*TALK, *talks.WEATHER[1:]]
    thought = [TALK[0], {**TALK[1], "reasoning_content": "Hm."}, *TALK]
    talks.write(tmp_path / "chat.jsonl", [TALK, TALK + TALK, {"messages": weather}, thought])
    monkeypatch.chdir(tmp_path)
    code, facts, _ = run(capsys, *words)
    assert (code, facts["documents"], facts["bad_records"]) == (0, 4, 0)
    assert facts["notes"] == []


def test_conversations_longer_than_a_row_are_named_with_the_way_to_go(
    chat: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = [{"role": "user", "content": "What " * 6000}, TALK[1]]
    talks.write(tmp_path / "chat.jsonl", [TALK] * 9 + [long])
    words = [*chat, "--chat-template", str(tmp_path / "chat.jinja")]
    code, facts, said = run(capsys, *words, "--out", str(tmp_path / "store"))
    assert code == 0 and facts["documents"] == 10
    (warning,) = facts["warnings"]
    assert warning.startswith("1 conversation of more than 4,096 tokens, the longest of ")
    assert warning in said and "hint: --max-tokens N" in said
    _, facts, _ = run(capsys, *words, "--out", str(tmp_path / "cut"), "--max-tokens", "9k")
    assert facts["warnings"] == []
