"""docs/trainers against the code: packline commands run, and so does Python whose library is installed.

Commands run in one folder per page, with small files under the page's names. Python blocks run in the
environment of other projects (`make peers`), a page as one program, with tiny models in place of named ones.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.formats.peers import missing_peers, peers_python, run_peer
from tests.project.trainer_checks import CHANGE, CHECK, OWN, PRELUDE
from tests.seeds.workspace import make_workspace, write_lines

from packline.cli.main import main

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "trainers").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STORE = "$ packline build texts.jsonl --tokenizer gpt2 --val-fraction 0.2 --out store"
LONG = {"transformers.md"}
"""Pages whose documents fill many rows each."""
EOD = "--chat-template qwen3 --eod '<|endoftext|>'"
"""The small tokenizer has two candidates for the end of document; the real one declares it."""


@pytest.fixture
def folder(
    tmp_path: Path, tokenizer_json: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Folder in which a page's commands run."""
    texts = [text for text in documents if text.strip()][:200]
    make_workspace(tmp_path, tokenizer_json, texts)
    pieces = [text[at : at + 700] for text in texts for at in range(0, len(text), 700)][:2500]
    write_lines(tmp_path / "texts.jsonl", [{"text": piece} for piece in pieces])
    talk = [{"role": "user", "content": "What is one and one?"}, {"role": "assistant", "content": "Two."}]
    write_lines(tmp_path / "chats.jsonl", [{"messages": talk} for _ in range(120)])
    (tmp_path / "Qwen/Qwen3-1.7B").rename(tmp_path / "Qwen/Qwen3-8B")
    (tmp_path / "data").rename(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a packline command of a page; commands of trainers are passed over."""
    dollar, *words = shlex.split(line.replace("\\\n", " "))
    assert dollar == "$"
    if words[0] == "packline":
        code = main(words[1:])
        printed = capsys.readouterr()
        assert code == 0, f"{line}\n{printed.out}\n{printed.err}"


def needs(block: str) -> tuple[str, ...]:
    """Module without which a program does not run: the first skips its page, another is left out."""
    found = re.search(r"^# needs (\w+)", block, re.MULTILINE)
    return (found[1],) if found else ()


INDEX = PAGES[0].with_name("index.md").read_text("utf-8")
SHOWN = re.findall(r"^\| (\[[^|]+) \|.*\| ([^|]+) \|$", INDEX, re.MULTILINE)
"""Links to pages, and what reads the result in the tests."""


def test_code_that_the_table_names_is_used_by_a_test() -> None:
    used = " ".join(path.read_text("utf-8") for path in PAGES[0].parents[2].glob("tests/**/test_*.py"))
    used += " ".join(str(CHECK.get(page.name)) + page.read_text("utf-8") for page in PAGES)
    for client, read_by in SHOWN:
        for module in re.findall(r"`(\w+)`", read_by):
            assert re.search(rf"(import|from|needs|\") ?{module}\b", used), f"{client}: {module}"


def test_every_page_is_in_the_table() -> None:
    pages = {page.stem for page in PAGES} - {"index"}
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", INDEX)) == pages
    assert set(INDEX.split("{toctree}")[1].split("```")[0].split()[1:]) == pages
    assert len(SHOWN) == len(pages) and all(re.search("`|rules", read_by) for _, read_by in SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_and_program_of_a_page_runs(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page.read_text("utf-8")
    blocks = FENCE.findall(text)
    typed = [
        f"${line}"
        for language, block in blocks
        if language == "console"
        for line in ("\n" + block).split("\n$")[1:]
    ]
    if page.name in LONG:
        pieces = [
            json.loads(line)["text"] for line in (folder / "texts.jsonl").read_text().splitlines()[:250]
        ]
        write_lines(folder / "texts.jsonl", [{"text": "\n".join(pieces[at::12])} for at in range(12)])
    if page.name != "index.md" and "packline build" not in text:
        run(STORE, capsys)
    for line in typed:
        run(line.replace("--chat-template qwen3", EOD), capsys)
    code = [block for language, block in blocks if language == "python"]
    assert typed or code
    if code or page.name in CHECK:
        for block in code:
            if named := re.match(r"# (\w+\.py)\n", block):
                (folder / named[1]).write_text(block)
        python, modules = peers_python(), OWN.get(page.name, needs(code[0]) if code else ())
        there = [block for block in code if block == code[0] or not missing_peers(python, needs(block))]
        prelude = PRELUDE.get(page.name, CHANGE)
        program = "\n".join([prelude, *there, CHECK.get(page.name, ""), "answer = True"])
        program = program.replace(
            "SFTConfig(",
            "SFTConfig(use_cpu=True, bf16=False, max_steps=1, per_device_train_batch_size=1, report_to=[],",
        ).replace('TrainingArguments("out",', 'TrainingArguments("out", use_cpu=True, report_to=[],')
        assert run_peer(program, folder, modules=modules, with_packline=True)
