"""Measuring: what is watched is what happened, and rates of different work are refused."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from benchmarks.catalogue import CEILINGS, Contender, TokenizerFile, read_tokenizer
from benchmarks.corpus import Facts
from benchmarks.errors import BenchmarkError
from benchmarks.process import Outcome, processes_of, run_fresh
from benchmarks.suite import ROOT, check_work, environment, run_of
from benchmarks.tests.runs import run
from benchmarks.units import measure_drivers

TEXTS = [f"The {word} of line {number}: <|endoftext|> naïve 漢字 {{x[{number}] = 0;}}\n" * 3
         for number, word in enumerate(["rate", "tide", "cost", "end"] * 20)]  # fmt: skip


def fresh(code: str, folder: Path, **options: Any) -> Outcome:
    return run_fresh([sys.executable, "-c", code], cwd=folder, env=dict(os.environ), **options)


def test_memory_of_a_child_process_is_seen_and_told_from_the_first_process(tmp_path: Path) -> None:
    child = "import time; x = b'x' * (200 << 20); time.sleep(0.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('{{}}')"
    outcome = run_fresh([sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ), interval=0.02)
    assert 200 << 20 < outcome.workers[0].private < 260 << 20
    assert 200 << 20 < outcome.workers[0].resident < 280 << 20
    assert 0 < outcome.main.private < 100 << 20
    assert outcome.together > outcome.workers[0].private
    assert outcome.wall_seconds > 0.5


def test_the_last_line_is_the_report_whatever_stands_before_it(tmp_path: Path) -> None:
    outcome = run_fresh(
        [sys.executable, "-c", "print('noise'); print('{\"a\": 1}')"], cwd=tmp_path, env=dict(os.environ)
    )
    assert outcome.report == {"a": 1}


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; sys.stderr.write('went wrong'); sys.exit(1)", "went wrong"),
        ("print('no object')", "no JSON object"),
        ("", "no JSON object"),
    ],
)
def test_a_contender_that_fails_or_reports_nothing_is_an_error(
    tmp_path: Path, code: str, complaint: str
) -> None:
    with pytest.raises(BenchmarkError, match=complaint):
        fresh(code, tmp_path)


def test_nothing_of_a_contender_lives_on(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, os, json\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(json.dumps({'session': os.getsid(0)}))"
    )
    outcome = run_fresh([sys.executable, "-c", code], cwd=tmp_path, env=dict(os.environ))
    deadline = time.monotonic() + 60
    while processes_of(outcome.report["session"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(outcome.report["session"]) == []


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(BenchmarkError, match="not done after"):
        fresh("import time; time.sleep(60)", tmp_path, timeout_seconds=0.5)
    assert time.monotonic() - began < 50


FACTS = {"english": Facts(10, 1000, {}, {}), "slice": Facts(5, 500, {}, {})}


def test_equal_work_passes_and_the_end_of_document_is_allowed_for() -> None:
    check_work(
        [run("c", "ceiling", tokens=300), run("p", "packline", tokens=310), run("m", "peer", tokens=310)],
        FACTS,
    )


@pytest.mark.parametrize(
    "other",
    [
        run("p", "packline", tokens=300),
        run("p", "packline", tokens=311),
        run("p", "packline", tokens=310, documents=9),
        run("p", "packline", tokens=310, text_bytes=999),
        run("c2", "ceiling", tokens=301),
        run("m", "peer", tokens=320),
    ],
)
def test_other_work_is_refused(other: object) -> None:
    with pytest.raises(BenchmarkError, match="expected"):
        check_work([run("c", "ceiling", tokens=300), other], FACTS)  # type: ignore[list-item]


def test_a_report_without_a_field_is_refused_with_its_name(tmp_path: Path) -> None:
    contender = Contender("packline, JSONL", "packline", "english", "t", [])
    code = (
        "import json; print(json.dumps(dict.fromkeys(['documents', 'tokens', 'text_bytes', 'seconds'], 1)))"
    )
    outcome = fresh(code, tmp_path)
    with pytest.raises(BenchmarkError, match="first_unit_seconds"):
        run_of(contender, 1, FACTS["english"], outcome)


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level BPE with one special token, whose pattern all engines know."""
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    pattern = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "english.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def reference_tokens(path: Path) -> int:
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.encode_special_tokens = True
    return sum(len(reference.encode(text, add_special_tokens=False).ids) for text in TEXTS)


@pytest.mark.parametrize("variant", CEILINGS)
def test_every_ceiling_encodes_every_document_once_and_exactly(
    variant: str, tokenizer_json: Path, corpus: Path
) -> None:
    script = [sys.executable, "-m", "benchmarks.contenders.ceiling", str(corpus), str(tokenizer_json)]
    options = [*CEILINGS[variant], "--batch-bytes", "300"]
    report = run_fresh([*script, *options], cwd=ROOT, env=environment()).report
    assert report["documents"] == len(TEXTS)
    assert report["text_bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert report["tokens"] == reference_tokens(tokenizer_json)
    assert 0 < report["seconds"] < 60


@pytest.mark.parametrize("engine", ["gigatoken", "fastokens"])
def test_parity_compares_the_documents_and_finds_them_equal(
    engine: str, tokenizer_json: Path, corpus: Path
) -> None:
    script = [sys.executable, "-m", "benchmarks.contenders.parity", str(corpus), str(tokenizer_json)]
    report = run_fresh([*script, "--engine", engine], cwd=ROOT, env=environment()).report
    assert (report["documents"], report["different"]) == (len(TEXTS), 0)
    assert report["tokens"] == reference_tokens(tokenizer_json)


def test_parity_counts_a_difference(
    tokenizer_json: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.contenders import parity

    exact = parity.engine_ids

    def wrong(engine: str, tokenizer: str, documents: list[str]) -> list[list[int]]:
        ids = exact(engine, tokenizer, documents)
        return [ids[0][:-1], *ids[1:]]

    monkeypatch.setattr(parity, "engine_ids", wrong)
    monkeypatch.setattr(sys, "argv", ["parity", str(corpus), str(tokenizer_json), "--engine", "fastokens"])
    parity.main()
    assert json.loads(capsys.readouterr().out)["different"] == 1


def test_the_end_of_document_is_found_or_refused(tokenizer_json: Path, tmp_path: Path) -> None:
    found = read_tokenizer(tokenizer_json.parent, "<|endoftext|>")
    assert found.eod_id == tokenizers.Tokenizer.from_file(str(tokenizer_json)).token_to_id("<|endoftext|>")
    with pytest.raises(BenchmarkError, match="has no token '<none>'"):
        read_tokenizer(tokenizer_json, "<none>")
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(BenchmarkError, match=r"is no tokenizer\.json"):
        read_tokenizer(tmp_path, "<|endoftext|>")


def test_the_driver_of_pretended_units_publishes_a_store(tokenizer_json: Path) -> None:
    lines: list[str] = []
    tokenizer = TokenizerFile("small", str(tokenizer_json), "<|endoftext|>", 0)
    assert measure_drivers([3], tokenizer=tokenizer, say=lines.append)[0] > 0
    assert int(lines[0].partition(" units:")[0].replace(",", "")) >= 3
