"""`packline plan --cluster`: the time of each resource, the slowest named, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packline.cli.main import main

CLUSTER = ["--cluster", "4 nodes x 8 cores, 10 Gbit/s, 64 GiB"]


@pytest.fixture
def plan(tmp_path: Path, tokenizer_json: Path) -> list[str]:
    (tmp_path / "a.txt").write_text("some text of a file " * 2000)
    (tmp_path / "prices.toml").write_text('currency = "EUR"\ndate = "2026-11-22"\nput_1000 = 1000\n')
    return ["plan", str(tmp_path / "a.txt"), "--tokenizer", str(tokenizer_json)]


def test_the_slowest_is_named_and_costs_are_shown(
    plan: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*plan, *CLUSTER, "--prices", str(tmp_path / "prices.toml")]) == 0
    shown = capsys.readouterr().out
    assert "on the cluster" in shown and "limited by" in shown and shown.count("slowest") == 1
    assert "5.00" in shown and "EUR" in shown and "2026-11-22" in shown
    assert "31 of 32 workers have nothing to do" in shown


def test_json_has_all_figures(plan: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*plan, *CLUSTER, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cluster"]
    assert found["total_seconds"] == max(found["seconds"].values()) and not found["costs"]
    assert found["demand"]["writes"] == 5


@pytest.mark.parametrize(
    ("more", "message"),
    [(["--prices", "prices.toml"], "needs --cluster"), (["--cluster", "many"], "unknown part")],
)
def test_what_cannot_be_read_is_refused_before_any_work(
    plan: list[str], capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main([*plan, *more]) == 2
    assert message in capsys.readouterr().err
