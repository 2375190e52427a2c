"""The report of reuse, for people and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from packline.cli.main import main
from packline.cli.progress import SHOWN, reuse_lines
from packline.jobs.events import ReusePlanned, SourceReuse
from packline.viewing.text import plain


def shown(planned: ReusePlanned) -> list[str]:
    return [plain(line).rstrip() for line in reuse_lines(planned)]


def test_one_line_for_each_source_and_reason() -> None:
    web = SourceReuse("web", 149, 1_900_000_000, {"content changed": 12, "new file": 1})
    lines = shown(ReusePlanned("old", [web, SourceReuse("books", 3)], 5_000_000, ["old/x is damaged"]))
    assert lines[0].split(maxsplit=1) == ["reuse", "152 of 165 units, about 1.9 GB of text, from old"]
    assert [line.strip() for line in lines[1:]] == [
        "web: 12 units to run: content changed",
        "web: 1 unit to run: new file",
        "5.0 MB of inputs were read to compare their content",
        "damaged: old/x is damaged",
    ]
    many = [SourceReuse(f"s{number}", 0, 0, {"new source": 1}) for number in range(SHOWN + 2)]
    lines = shown(ReusePlanned("old", many, 0))
    assert len(lines) == SHOWN + 2 and lines[-1].strip() == "and 2 more reasons; --json lists all"


def test_the_command_reports_what_it_reuses(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        write_jsonl(tmp_path / f"in/{number}.jsonl", [f"text {number} {place}" for place in range(9)])
    common = [str(tmp_path / "in"), "--tokenizer", str(tokenizer_json), "--workers", "0"]
    assert main(["build", *common, "--out", str(tmp_path / "old")]) == 0
    capsys.readouterr()
    command = ["build", *common, "--out", str(tmp_path / "new"), "--reuse", str(tmp_path / "old"), "--json"]
    os.utime(tmp_path / "in/0.jsonl")
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["units_reused"] == 1 and result["run_text_bytes"] == 0
    (source,) = result["reuse"]["sources"]
    assert source == {"source": "in", "units": 1, "text_bytes": source["text_bytes"], "run": {}}
    absent = ["build", *common, "--out", str(tmp_path / "x"), "--reuse", str(tmp_path / "nowhere"), "--json"]
    assert main(absent) == 1
    assert "StoreNotFound" in capsys.readouterr().out and not (tmp_path / "x").exists()
