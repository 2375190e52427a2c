"""`packline export`: what they write, say, refuse, and how they go on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import environment, result, run
from tests.formats.stores import make_store, random_documents

import packline
from packline.cli.export import export_lines
from packline.cli.output import plain
from packline.cli.progress import Tally
from packline.facade import Store
from packline.formats.baked import BakedRows
from packline.formats.export import ExportPlanned
from packline.formats.types import NotPreserved
from packline.jobs.events import Progress, UnitDone

BAKE = ("export", "--to", "baked")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("export") / "store"
    documents = random_documents(80, 1000, longest=30, seed=3)
    return make_store(folder, documents, vocab_size=1000, eod_id=0, val=(2, 70), shards=2)


def test_the_plan_comes_before_the_result(store: Store, tmp_path: Path) -> None:
    done = run("export", store.path, "--to", "megatron", "--out", "out", "--link", "copy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  writes +megatron: 80 documents, [\d,]+ tokens, 4 parts$", done.stderr, re.M)
    assert re.search(r"^  the store's own +[\d.]+ kB as copies$", done.stderr, re.M)
    assert re.search(r"^  not preserved +provenance: 80 documents: ", done.stderr, re.M)
    assert re.search(r"^  exported +80 documents", done.stdout, re.M)
    assert "check it  packline verify" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    shard = store.shards[0].entry.name
    written = (tmp_path / "out" / "train-000000.bin").read_bytes()
    assert written == (store.path / f"{shard}.bin").read_bytes()


def test_json_is_one_object(store: Store, tmp_path: Path) -> None:
    words: list[str | Path] = ["export", store.path, "--to", "nanogpt", "--out", "out"]
    words += ["--split", "train", "--json"]
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1 and done.stderr == ""
    found = result(done)
    assert (found["command"], found["exit_code"], found["documents"]) == ("export", 0, 78)
    assert found["lost"][0]["what"] and not found["nothing_to_do"]
    again = result(run(*words, cwd=tmp_path))
    assert again["nothing_to_do"] and again["tokens"] == found["tokens"]
    assert (tmp_path / "out" / "train.bin").stat().st_size == 2 * found["tokens"]


def test_baked_rows_are_those_of_the_loader(store: Store, tmp_path: Path) -> None:
    words = ["--seq-len", "16", "--packing", "best_fit", "--seed", "4", "--batch-size", "3", "--epochs", "2"]
    done = run(*BAKE, store.path, *words, "--min-tokens", "4", "--out", "rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = BakedRows(tmp_path / "rows" / "train")
    loader = packline.Loader(
        store.rows(16, packing="best_fit", min_tokens=4), batch_size=3, seed=4, epochs=2, shuffle=True
    )
    found = result(done)
    assert found["rows"] == len(rows) + len(BakedRows(tmp_path / "rows" / "val"))
    assert len(rows) == 2 * len(store.rows(16, packing="best_fit", min_tokens=4))
    for step in range(len(loader)):
        batch = loader.batch(step)
        baked = rows.read(np.arange(3 * step, 3 * step + 3))
        assert all(np.array_equal(batch[name], baked[name]) for name in batch)


def test_a_run_file_and_its_stages(store: Store, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f"""
[loader]
batch_size = 2
[[stages]]
seq_len = 8
tokens = 160
[[stages.sources]]
store = "{store.path}"
[[stages]]
seq_len = 16
[[stages.sources]]
store = "{store.path}"
"""
    )
    done = run(*BAKE, "run.toml", "--out", "out", cwd=tmp_path)
    assert done.returncode == 2 and "--stage 0" in done.stderr
    done = run(*BAKE, "run.toml", "--out", "out", "--stage", "0", cwd=tmp_path)
    assert done.returncode == 0 and len(BakedRows(tmp_path / "out")) == 20


def test_text_to_npz_batches_is_one_command(tmp_path: Path, tokenizer_json: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(5):
        (tmp_path / "in" / f"{number}.txt").write_text(f"The {number}th text of a few. " * 30)
    words: list[str | Path] = ["export", "in", "--tokenizer", tokenizer_json, "--to", "npz", "--out", "out"]
    shape = ["--seq-len", "32", "--batch-size", "4"]
    done = run(*words, *shape, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "built out.store; it is kept" in done.stderr
    store = packline.open(tmp_path / "out.store", verify=True)
    files = sorted((tmp_path / "out").glob("*.npz"))
    tokens = np.concatenate([np.load(path)["input_tensor"] for path in files])
    rows = store.rows(32)
    assert np.array_equal(tokens, rows.read(np.arange(len(rows)), ["tokens"])["tokens"])
    again = run(*words, *shape, "--json", cwd=tmp_path)
    assert again.returncode == 0 and result(again)["nothing_to_do"]


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["nowhere", "--to", "megatron"], 1, "nowhere does not exist"),
        (["a.txt", "--to", "megatron"], 1, "is a file, not the folder of a store"),
        (["a.txt", "b.txt", "--to", "megatron"], 1, "cannot export 2 things at once"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    done = run("export", *words, "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and re.fullmatch(r"error: .*\n(hint: .*\n)?", done.stderr)
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.txt"}


def test_ctrl_c_says_how_to_go_on(store: Store, tmp_path: Path) -> None:
    words = [*BAKE, str(store.path), "--seq-len", "8", "--epochs", "20", "--set", "file_rows=2"]
    command = [sys.executable, "-m", "packline", *words, "--out", "out", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/.packline/parts/*.json")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr and not (tmp_path / "out" / "packline.json").exists()
    line = re.search(r"^hint: resume with: (.*)$", stderr, re.M)
    assert line is not None and "--epochs 20" in line[1]


def test_how_far_it_is(store: Store) -> None:
    now = [0.0]
    tally = Tally(lambda: now[0])
    planned = ExportPlanned(
        format="npz", out="o", order="as they come", units=4, units_done=1, workers=0, bytes=2_000_000,
        shared_bytes=0, sharing="", documents=None, rows=100, tokens=8000,
        lost=(NotPreserved("tail", 3, "tokens", "too short"),),
    )  # fmt: skip
    tally.hear(planned)
    assert tally.measure() == (2000, 2000, 8000, "tokens")
    now[0] = 10.0
    tally.hear(Progress("", 0, 0, 2000))
    assert tally.measure() == (4000, 2000, 8000, "tokens")
    assert tally.state() == (0.5, "50.0%  200 tokens/s  1 of 4 units  about 20 s left")
    for _ in range(3):
        tally.hear(UnitDone("x"))
    assert tally.measure() == (8000, 2000, 8000, "tokens")
    assert [plain(line) for line in export_lines(planned)] == [
        "  writes         npz: 100 rows of 80 tokens, 4 parts, 1 of them done by an earlier run",
        "  order          as they come",
        "  new on disk    about 2.0 MB",
        "  not preserved  tail: 3 tokens: too short",
    ]


def test_a_validation_file_that_will_be_missing_is_told_before_after_and_by_verify(tmp_path: Path) -> None:
    make_store(tmp_path / "store", random_documents(20, 1000), vocab_size=1000, eod_id=0)
    told = r"^  warning +no val\.bin: nanoGPT's train\.py opens it and stops without$"
    words = ("export", "store", "--to", "nanogpt", "--out", "out")
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(told, done.stderr, re.M) and re.search(told, done.stdout, re.M)
    again = run(*words, cwd=tmp_path)
    assert "nothing to do" in again.stdout and re.search(told, again.stdout, re.M)
    (warning,) = result(run(*words, "--json", cwd=tmp_path))["warnings"]
    checked = run("verify", "out", "--from", "nanogpt", cwd=tmp_path)
    assert checked.returncode == 0 and f"note: {warning}" in checked.stdout
    assert result(run("verify", "out", "--from", "nanogpt", "--json", cwd=tmp_path))["notes"] == [warning]


def test_rows_say_in_which_folders_the_splits_are(store: Store, tmp_path: Path) -> None:
    words: list[str | Path] = ["export", store.path, "--to", "litdata", "--seq-len", "16"]
    done = run(*words, "--out", "all", cwd=tmp_path)
    assert re.search(r"litdata +all: \d+ files in train/ and val/, ", done.stdout)
    done = run(*words, "--split", "train", "--out", "rows", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"split val: 2 documents: [\d,]+ tokens: rows are of train alone; --split val", done.stderr
    )


@pytest.mark.parametrize(
    "value", ["fields=tokens,targets,loss_mask", 'fields=["tokens", "targets", "loss_mask"]']
)
def test_an_option_may_be_a_list(store: Store, tmp_path: Path, value: str) -> None:
    words = ["--to", "mds", "--seq-len", "32", "--set", value]
    done = run("export", store.path, *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "out" / "train" / "index.json").read_bytes())
    assert index["shards"][0]["column_names"] == ["loss_mask", "targets", "tokens"]
    assert re.search(r"^ *fields +tokens,targets +Columns", run("formats", "mds").stdout, re.M)


def test_it_ends_with_what_the_trainer_has_to_be_told(store: Store, tmp_path: Path) -> None:
    words: list[str | Path] = ["export", store.path, "--to", "trl", "--seq-len", "32", "--out", "rows"]
    done = run(*words, cwd=tmp_path)
    told = done.stdout.partition("  for the trainer\n")[2]
    assert "padding_free=True" in told and "max_length=None" in told
    compile(textwrap.dedent(told), "told", "exec")
    assert run(*words, cwd=tmp_path).stdout.endswith(told)  # also where there is nothing to do
    lines = result(run(*words, "--json", cwd=tmp_path))["trainer_lines"]
    assert [line.rstrip() for line in textwrap.dedent(told).splitlines()] == lines


def test_a_dry_run_says_what_the_export_does_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for words in (["--to", "nanogpt"], ["--to", "npz", "--seq-len", "16"]):
        planned = result(run("export", store.path, *words, "-o", "out", "--dry-run", "--json", cwd=tmp_path))
        assert planned["dry_run"] and sorted(tmp_path.rglob("*")) == before
        shown = run("export", store.path, *words, "-o", "out", "--dry-run", cwd=tmp_path)
        assert shown.returncode == 0 and "new on disk" in shown.stdout
        name = words[1]
        made = result(run("export", store.path, *words, "-o", name, "--json", cwd=tmp_path))
        assert planned["rows"] == made["rows"]
        before = sorted(tmp_path.rglob("*"))
    words = ["--to", "nanogpt", "--tokenizer", "t", "-o", "o", "--dry-run"]
    text = run("export", "in.jsonl", *words, cwd=tmp_path)
    assert text.returncode in (1, 2) and sorted(tmp_path.rglob("*")) == before
