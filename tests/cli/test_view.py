"""`packline view` from the outside: the tokens that training gets, drawn, and wrong questions answered."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.command import environment, result, run
from tests.cli.runs import ESCAPE, mixture, write_runs

from packline.facade import Store
from packline.loading.loader import Loader

HOSTILE = f"<script>alert(1)</script> {ESCAPE} \u202egnp.exe"
ROWS = ("--seq-len", "32", "--packing", "best_fit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, documents: list[str]) -> Path:
    """A store whose first document would repaint a terminal, a run file, and batch files."""
    texts = {"store": [HOSTILE, *[text[:300] for text in documents[:60]]]}
    plan = mixture("batch_size = 4\nseed = 7", 1024, store="")
    folder = write_runs(tmp_path_factory.mktemp("view"), tokenizer_json, texts, plan)
    tokens = np.arange(10, 30, dtype=np.int32).reshape(2, 10)
    targets = np.full((2, 10), -100, np.int32)
    targets[:, :6] = tokens[:, 1:7]
    np.savez(folder / "a_batch_0001.npz", input_tensor=tokens, target_tensor=targets, lengths=[7, 7])
    np.savez(folder / "only_batch_0001.npz", input_tensor=tokens)
    return folder


def tokens_of(strip: dict[str, Any]) -> list[int]:
    return [one for cell in strip["cells"] for one in cell["ids"]]


def test_a_document_is_all_of_its_tokens_and_obeyed_by_nothing(folder: Path) -> None:
    store = Store(folder / "store")
    facts = result(run("view", "store", "--document", "0", "--json", cwd=folder))
    (strip,) = facts["strips"]
    assert tokens_of(strip) == store.documents[0].tolist()
    assert bytes.fromhex("".join(cell["data"] for cell in strip["cells"])).decode() == HOSTILE
    assert strip["cells"][-1]["special"] and strip["cells"][-1]["text"] == "<|endoftext|>"
    done = run("view", "store", cwd=folder)
    assert done.returncode == 0 and not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", done.stdout)
    assert re.search(r"file +store.jsonl", done.stdout) and "⟦<|endoftext|>⟧" in done.stdout
    plain = "".join(line[11:] for line in done.stdout.splitlines() if re.match(r" +[\d,]+  ", line))
    assert plain.replace("│", "").startswith(
        "<script>alert(1)</script>·\\x1b[2J\\x1b]0;title\\x07·\\u202egnp.exe"
    )


def test_a_long_document_is_shown_from_a_token_on(folder: Path) -> None:
    store = Store(folder / "store")
    longest = max(range(len(store.documents)), key=lambda number: len(store.documents[number]))
    words = ("view", "store", "--document", str(longest), "--first", "5", "--tokens", "7")
    (strip,) = result(run(*words, "--json", cwd=folder))["strips"]
    assert tokens_of(strip) == store.documents[longest][5:12].tolist()
    assert strip["cells"][0]["position"] == 5
    assert strip["more"] == len(store.documents[longest]) - 12
    assert f"and {strip['more']:,} more token" in run(*words, cwd=folder).stdout


@pytest.mark.parametrize(
    "words", [("run.toml",), ("store", "--seq-len", "32", "--batch-size", "4", "--seed", "7")]
)
def test_a_batch_is_what_the_loader_hands_out(folder: Path, words: tuple[str, ...]) -> None:
    if words[0] == "store":
        rows = Store(folder / "store").rows(32)
        loader = Loader(rows, batch_size=4, seed=7, rank=1, world_size=2, prefetch=0)
    else:
        loader = Loader.from_file(folder / "run.toml", rank=1, world_size=2, prefetch=0)
    facts = result(
        run("view", *words, "--step", "3", "--world-size", "2", "--rank", "1", "--json", cwd=folder)
    )
    assert [tokens_of(strip) for strip in facts["strips"]] == loader.batch(3)["tokens"].tolist()
    assert [strip["caption"][:7] for strip in facts["strips"]] == ["row 2: ", "row 3: "]


def test_a_page_is_one_file_without_script(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run("view", "store", "--out", out, cwd=folder)
    assert done.stdout == f"  wrote  {out}\n"
    text = out.read_text()
    assert text.startswith("<!doctype html>") and "<script" not in text and "&lt;script&gt;" not in text
    # Tokens stand in spans of their own, so the tag is there in pieces, each escaped.
    assert re.sub("<[^>]*>", "", text).count("&lt;script&gt;alert(1)&lt;/script&gt;") == 1


def test_a_batch_file_shows_padding_and_what_is_learned(folder: Path, tokenizer_json: Path) -> None:
    words = ("view", "a_batch_0001.npz", "--tokenizer", str(tokenizer_json))
    strips = result(run(*words, "--json", cwd=folder))["strips"]
    assert [tokens_of(strip)[:7] for strip in strips] == [list(range(10, 17)), list(range(20, 27))]
    for strip in strips:
        places = [cell["padding"] for cell in strip["cells"] for _ in cell["ids"]]
        assert places == [False] * 7 + [True] * 3
    text = run(*words, "--row", "1", cwd=folder).stdout
    assert "row 1\n" in text and "row 0\n" not in text and "·×3  padding" in text
    numbers = run("view", "a_batch_0001.npz", "--rows", "1", cwd=folder).stdout
    assert "10│11│12│13│14│15│16\n" in numbers and "none: ids are shown" in numbers
    both = run("view", "a_batch_0001.npz", "--tensor-type", "both", cwd=folder).stdout
    assert "row 1, targets" in both and "11│12│13│14│15│16\n" in both


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["store", "--row", "1"], 2, "--seq-len is missing"),
        (["store", "--row", "99999", *ROWS], 2, "row 99,999: expected 0 to "),
        (["store", *ROWS], 2, "belongs to --row"),
        (["store", "--document", "999"], 1, "has no document 999: expected 0 to "),
        (["store", "--document", "1", "--row", "1", *ROWS], 2, "expected one of --document"),
        (["store", "--row", "1", *ROWS, "--seed", "4"], 2, "--seed belongs to --step"),
        (["store", "--rank", "1"], 2, "--rank belongs to --step"),
        (["store", "--rows", "1"], 2, "--rows is for a batch file"),
        (["store", "--tokens", "0"], 2, "--tokens of 1 or more"),
        (["run.toml"], 2, "--step is missing"),
        (["run.toml", "--step", "9999"], 2, "step 9,999: expected 0 to"),
        (["run.toml", "--step", "1", "--seq-len", "8"], 2, "has its own settings"),
        (["nothing"], 1, "nothing"),
        (["a_batch_0001.npz", "--step", "1"], 2, "--step is for a store"),
        (["a_batch_0001.npz", "--row", "2"], 2, "row 2: expected 0 to 1"),
        (["a_batch_0001.npz", "--rows", "0"], 2, "--rows is 0"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    folder: Path, words: list[str], code: int, message: str
) -> None:
    done = run("view", *words, cwd=folder)
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def in_terminal(folder: Path, *words: str, **more: str) -> str:
    """What a terminal of 24 lines is sent, standard input a terminal too."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "packline", *words]
    environ = environment(LINES="24", **more)
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        sent = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # what Linux says at the end
                break
            if not part:
                break
            sent += part
        child.wait(60)
    os.close(ours)
    return sent.decode()


def test_a_terminal_gets_a_pager_with_colors_that_data_cannot_forge(folder: Path, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED; cat\n")
    pager.chmod(0o700)
    long = in_terminal(folder, "view", "run.toml", "--step", "0", PAGER=str(pager))
    assert long.startswith("PAGED")
    assert "\x1b[" in long
    short = in_terminal(folder, "view", "store", "--document", "0", PAGER=str(pager))
    assert "PAGED" not in short and "\x1b[2J" not in short and "\x07" not in short
    assert "\\x1b[2J" in re.sub(r"\x1b\[[0-9;]*m", "", short)
    uncolored = in_terminal(folder, "view", "run.toml", "--step", "0", PAGER="/no/such/pager", NO_COLOR="1")
    assert "⟦<|endoftext|>⟧" in re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]", "", uncolored)
