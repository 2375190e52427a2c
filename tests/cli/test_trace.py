"""`packline trace` from the outside: there and back agree, and a wrong question gets an answer that helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.command import result, run
from tests.cli.runs import ESCAPE, mixture, write_runs

from packline.cli.main import main
from packline.facade import Store
from packline.loading.loader import Loader

PLAN = mixture("batch_size = 4\nseed = 7", 2048, one="weight = 2", two="weight = 1\nmax_epochs = 5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: Path, documents: list[str]) -> Path:
    """Two stores and a run file; texts that would repaint a terminal among them."""
    texts = [ESCAPE + text[:300] for text in documents[:90]]
    parts = {"one": texts[:60], "two": texts[60:]}
    return write_runs(tmp_path_factory.mktemp("trace"), tokenizer_json, parts, PLAN)


def test_a_step_says_what_its_batch_holds(folder: Path) -> None:
    facts = result(run("trace", "run.toml", "--step", "3", "--world-size", "2", "--json", cwd=folder))
    loader = Loader.from_file(folder / "run.toml", rank=1, world_size=2, prefetch=0)
    batch = loader.batch(3)["tokens"]
    assert facts["fingerprint"] == loader.fingerprint
    assert (facts["step"], facts["steps"], facts["world_size"]) == (3, len(loader), 2)
    assert [row["rank"] for row in facts["rows"]] == [0, 0, 1, 1]
    for row in facts["rows"][2:]:
        store = Store(folder / row["store"])
        for span in row["spans"]:
            tokens = batch[row["place"], span["column"] : span["column"] + span["tokens"]]
            assert store.tokenizer.decode(tokens.tolist(), skip_special_tokens=False).startswith(span["text"])
            provenance = store.provenance(span["document"])
            assert (span["provenance"]["id"], span["provenance"]["position"]) == (
                provenance.id,
                provenance.position,
            )
            assert span["text"]


def test_the_page_has_a_block_a_row_and_obeys_no_text(folder: Path) -> None:
    done = run("trace", "run.toml", "--step", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "step         0 of 16, counted from 0" in done.stdout
    assert re.findall(r"^  row (\d)  rank 0, slot \d: row ", done.stdout, re.MULTILINE) == list("0123")
    said = re.search(r"document ([\d,]+).*\n +(one/one\.jsonl) at ([\d,]+), id one", done.stdout)
    assert said is not None  # a document is found again by what the page says of it
    document, file, position = said.groups()
    pasted = ["trace", "run.toml", "--file", file, "--position", position]
    (found,) = result(run(*pasted, "--json", cwd=folder))["documents"]
    assert found["document"] == int(document.replace(",", ""))


def test_a_row_shows_all_of_its_spans_and_a_batch_some(folder: Path) -> None:
    words = ["trace", "one", "--seq-len", "512", "--batch-size", "2", "--step", "0"]
    facts = result(run(*words, "--json", cwd=folder))
    most = max(facts["rows"], key=lambda row: len(row["spans"]))
    assert len(most["spans"]) > 5
    batch, row = run(*words, cwd=folder).stdout, run(*words, "--row", str(most["index"]), cwd=folder).stdout
    assert f"and {len(most['spans']) - 5} more span" in batch
    assert len(re.findall(r": document ", row)) == len(most["spans"])
    assert len(re.findall(r": document ", batch)) == sum(min(len(row["spans"]), 5) for row in facts["rows"])


def test_back_and_there_by_number_id_and_place(folder: Path) -> None:
    facts = result(run("trace", "run.toml", "--step", "5", "--json", cwd=folder))
    row = facts["rows"][-1]
    span = row["spans"][0]
    origin = span["provenance"]
    ways = (
        ("--document", str(span["document"]), "--store", row["store"]),
        ("--id", origin["id"]),
        ("--file", origin["file"], "--position", str(origin["position"])),
    )
    answers = [result(run("trace", "run.toml", *way, "--json", cwd=folder))["documents"] for way in ways]
    assert answers[0] == answers[1] == answers[2]
    wanted = {"step": 5, "index": row["index"], "column": span["column"], "start": span["start"]}
    assert any(wanted.items() <= use.items() for use in answers[0][0]["uses"])
    page = run("trace", "run.toml", *ways[1], cwd=folder).stdout
    assert page.count("\n") == len(answers[0][0]["uses"]) + 3


def test_a_store_is_traced_with_the_settings_of_its_run(folder: Path) -> None:
    settings = ["--seq-len", "32", "--batch-size", "2", "--packing", "best_fit"]
    settings += ["--seed", "9", "--epochs", "2"]
    facts = result(run("trace", "one", *settings, "--step", "7", "--json", cwd=folder))
    rows = Store(folder / "one").rows(32, packing="best_fit")
    loader = Loader(rows, batch_size=2, seed=9, epochs=2, prefetch=0)
    drawn = loader.rows_of_step(7)
    assert [row["row"] for row in facts["rows"]] == drawn.rows.tolist()
    assert (facts["fingerprint"], facts["steps"]) == (loader.fingerprint, len(loader))
    in_order = result(run("trace", "one", *settings, "--in-order", "--step", "7", "--json", cwd=folder))
    assert [row["row"] for row in in_order["rows"]] == [14, 15]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run.toml"], 2, "expected one of --step"),
        (["run.toml", "--step", "1", "--id", "x"], 2, "--step and --id"),
        (["run.toml", "--step", "16"], 2, "step 16: expected 0 to 15"),
        (["run.toml", "--step", "1", "--seed", "3"], 2, "--seed is for a store"),
        (["run.toml", "--file", "one.jsonl"], 2, "--file and --position go together"),
        (["run.toml", "--id", "x", "--row", "1"], 2, "--row and --rank belong to --step"),
        (["run.toml", "--document", "0"], 2, "of which store"),
        (["run.toml", "--document", "0", "--store", "three"], 2, "does not read three"),
        (["one", "--step", "1"], 2, "--seq-len is required"),
        (["one", "--seq-len", "8", "--step", "1"], 2, "--batch-size is required"),
    ],
)
def test_a_wrong_question_says_what_is_wrong(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["trace", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err.splitlines()[0]


def test_a_place_in_no_store_names_the_neighbours_in_the_store_that_has_the_file(folder: Path) -> None:
    done = run("trace", "run.toml", "--file", "two.jsonl", "--position", "1", cwd=folder)
    assert done.returncode == 1
    assert "no document of 'two.jsonl' begins at 1" in done.stderr
    assert "a position is a byte offset" in done.stderr
