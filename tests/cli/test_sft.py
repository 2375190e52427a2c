"""`packline sft`: what it says, what it counts, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tasks import talks
from tests.transforms.templates import CHATML, CHATML_TOKENS, unmarked

from packline.cli.main import main

TALK = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me, of course."}]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = main(["sft", *words, "--json", "--workers", "0"])
    said = capsys.readouterr()
    lines = said.out.strip().splitlines()
    return code, json.loads(lines[-1]) if lines else {}, said.err


def test_conversations_become_a_store(
    tokenizer_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = talks.with_tokens(tokenizer_json, tmp_path / "tokenizer", CHATML_TOKENS, None)
    (tmp_path / "chat.jinja").write_text(unmarked(CHATML), "utf-8")
    path = talks.write(tmp_path / "chat.jsonl", [TALK] * 9 + [TALK[:1]])
    words = [str(path), "--tokenizer", str(tokenizer), "--out", str(tmp_path / "store")]
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
    ],
)
def test_commands_that_make_no_sense_are_refused(
    words: list[str], message: str, tokenizer_json: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "store")
    code, facts, said = run(capsys, *words, "--tokenizer", str(tokenizer_json), "--out", out)
    assert code == 2
    assert message in said + json.dumps(facts)
