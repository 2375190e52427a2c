"""What the five pipelines get wrong or promise, point by point: those points that no other test is about.

S0.1  inputs of several kinds, in order          S0.6  a kill leaves no half batch
S2.6  every token is in a chunk                  S3.7  nothing without a tokenizer
S4.1  the end of documents
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import environment, result, run
from tests.seeds.workspace import make_workspace, write_lines

import packline
from packline.testing import make_store

# ------------------------------------------------------------------------------------- S0: batches in .npz


def test_inputs_of_several_kinds_are_rows_in_order(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]
) -> None:
    """S0.1"""
    write_jsonl(tmp_path / "b.jsonl", ["first", "second"])
    write_jsonl(tmp_path / "a.jsonl", ["third"], field="content")
    (tmp_path / "c.txt").write_text("fourth\n\nfifth\n", "utf-8")
    words = ["--documents", "line", "--tokenizer", str(tokenizer_json), "--out", "store", "--json"]
    done = run("build", "b.jsonl", "a.jsonl", "c.txt", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    store = packline.open(tmp_path / "store")
    assert [store.text(n) for n in range(len(store.documents))] == [
        "first",
        "second",
        "third",
        "fourth",
        "fifth",
    ]
    assert store.manifest.ledger.empty == 1  # chuk-mlx makes a row of nothing of the empty line


NPZ: dict[str, Any] = {"to": "npz", "workers": 0, "seq_len": 16, "packing": "pad", "batch_size": 4}
KILLED = """
import os, signal, sys
import packline, packline.formats.export

left = int(sys.argv[3])

def dying(call):
    def called(*arguments, **settings):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **settings)
    return called

for name in ("rename", "replace", "fsync", "write", "pwrite", "ftruncate"):
    setattr(os, name, dying(getattr(os, name)))
packline.export(sys.argv[1], out=sys.argv[2], **{settings})
print(left)
"""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_kill_leaves_no_half_batch_and_the_next_run_finishes(tmp_path: Path) -> None:
    """S0.6"""
    store = make_store(tmp_path / "store", [[3, 17, 16, 2] * 6])

    def export(out: Path, after: int) -> subprocess.CompletedProcess[str]:
        words = [
            sys.executable,
            "-c",
            KILLED.replace("{settings}", repr(NPZ)),
            str(store.path),
            str(out),
            str(after),
        ]
        return subprocess.run(words, capture_output=True, text=True, check=False, env=environment())

    whole = export(tmp_path / "whole", 10**6)
    assert whole.returncode == 0, whole.stderr
    calls = 10**6 - int(whole.stdout)
    assert calls > 10 and len(list((tmp_path / "whole").glob("*.npz"))) == 6
    for after in (0, calls // 3, 2 * calls // 3):
        out = tmp_path / f"killed-{after}"
        assert export(out, after).returncode == -signal.SIGKILL
        assert not (out / "packline.json").exists()
        for batch in out.glob("*.npz"):  # one that has its name is whole
            assert batch.read_bytes() == (tmp_path / "whole" / batch.name).read_bytes()
        assert not packline.export(store, out=out, **NPZ).nothing_to_do
        assert files(out) == files(tmp_path / "whole")


# ------------------------------------------------------------------------------------ S2: .pt, token by token


def test_every_token_is_in_a_chunk_or_said_to_be_left_over(
    tmp_path: Path, tokenizer_json: Path, documents: list[str]
) -> None:
    """S2.6"""
    write_lines(tmp_path / "in.jsonl", [{"text": text} for text in documents[:60]])
    built = run("build", "in.jsonl", "--tokenizer", tokenizer_json, "--out", "store", "--json", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    words = ["export", "store", "--to", "pt", "--seq-len", "1000", "--out", "out", "--json"]
    found = result(run(*words, cwd=tmp_path))
    chunks = len(list((tmp_path / "out").glob("chunk_*.pt")))
    left_over = sum(lost["count"] for lost in found["lost"] if lost["unit"] == "tokens")
    assert chunks > 1 and found["tokens"] == chunks * 1000
    assert found["tokens"] + left_over == packline.open(tmp_path / "store").manifest.tokens


# ---------------------------------------------------------------------------- S3: what needs the tokenizer


@pytest.mark.parametrize(
    "words",
    [
        ["build", "texts.jsonl"],
        ["sft", "conversations.jsonl", "--scheme", "nanochat"],
        ["evals", "core", "eval_bundle"],
        ["evals", "chat", "--mmlu", "mmlu/test"],
    ],
    ids=" ".join,
)
def test_nothing_is_done_without_a_tokenizer(
    tmp_path: Path, tokenizer_json: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.7"""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    make_workspace(tmp_path, tokenizer_json, ["a few words"] * 90)
    for more, code in (([], 2), (["--tokenizer", "fineweb_edu_32k/tokenizer"], 1)):
        done = run(*words, *more, "--out", "out", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "tokenizer" in done.stderr and "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()


# ----------------------------------------------------------------------------- S4: ends


def test_the_end_of_documents_is_the_one_that_was_named(
    tmp_path: Path, tokenizer_json: Path, documents: list[str]
) -> None:
    """S4.1: by string and id, behind the last document too, and never the end of a turn by default."""
    make_workspace(tmp_path, tokenizer_json, [text for text in documents if text.strip()][:90])
    words = ["build", "texts.jsonl", "--tokenizer", "Qwen/Qwen3-1.7B"]
    left_open = run(*words, "--out", "no", cwd=tmp_path)
    assert left_open.returncode != 0 and not (tmp_path / "no").exists()
    assert "<|endoftext|> (0)" in left_open.stderr and "<|im_end|> (4097)" in left_open.stderr
    for name, eod in (("string", "<|endoftext|>"), ("id", "0"), ("turn", "<|im_end|>")):
        done = run(*words, "--eod", eod, "--out", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        store = packline.open(tmp_path / name)
        wanted = 4097 if name == "turn" else 0
        assert store.eod_id == store.manifest.tokenizer.eod_id == wanted
        assert {int(tokens[-1]) for tokens in store.documents} == {wanted}
        assert sum(int((tokens == wanted).sum()) for tokens in store.documents) == len(store.documents)
    shards = [sorted((tmp_path / name).glob("*.bin")) for name in ("string", "id")]
    assert [path.read_bytes() for path in shards[0]] == [path.read_bytes() for path in shards[1]]
