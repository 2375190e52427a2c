"""Processes that are started before a command line is parsed: which, and that they change no result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.jobs.builds import digests

from packline.cli.main import main
from packline.encoders import engines, separate_engine
from packline.encoders.engines import ENGINES, load_ahead, load_engine, stop_loading
from packline.encoders.special_tokens import json_to_encode
from packline.encoders.tokenizer import load_tokenizer
from packline.jobs import ahead
from packline.jobs.ahead import end_ahead, looks_little, start_for, take_host
from packline.jobs.host_process import HostProcess
from packline.sources.batch import Texts


@pytest.fixture(autouse=True)
def nothing_ahead() -> Iterator[None]:
    yield
    end_ahead()
    stop_loading()


@pytest.fixture
def corpus(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(tmp_path / "in/a.jsonl", [f"document {number}, a few words" for number in range(100)])


@pytest.mark.parametrize(
    "words, started",
    [
        (["build", "a.jsonl", "--tokenizer", "{}"], "host"),
        (["build", "--tokenizer={}", "a.jsonl"], "engine"),  # what `a.jsonl` is depends on the options
        (["plan", "a.jsonl", "--tokenizer", "{}"], "engine"),
        (["build", "a.jsonl", "--tokenizer", "{}", "--engine", "fastokens"], ""),
        (["build", "a.jsonl", "--tokenizer", "{}", "--workers=2"], ""),
        (["build", "a.jsonl", "--tokenizer", "{}", "--on", "ray"], ""),
        (["plan", "a.jsonl", "--tokenizer"], ""),
        (["plan", "a.jsonl", "--tokenizer", "{}.none"], ""),
        (["build", "recipe.toml"], ""),
    ],
)
def test_a_process_is_started_for_a_command_line_that_decides_the_engine(
    tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], started: str
) -> None:
    monkeypatch.setattr(separate_engine, "LARGE", 0)
    start_for([word.format(tokenizer_json) for word in words])
    host = take_host()
    assert (host is not None, bool(separate_engine._AHEAD)) == (started == "host", started == "engine")
    if host is not None:
        host.close(kill=True)


def test_little_text_and_small_tokenizers_have_no_host(corpus: Path, tokenizer_json: Path) -> None:
    start_for(["build", str(corpus), "--tokenizer", str(tokenizer_json)])
    assert take_host() is None and not separate_engine._AHEAD


def test_a_build_takes_the_host_and_comes_to_the_same_bytes(
    corpus: Path, tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was loaded ahead: the engine of this tokenizer, of another one, or of a broken file."""
    words = ["--tokenizer", str(tokenizer_json), "--eod", "<|endoftext|>", "-q"]
    assert main(["build", str(corpus), "--out", str(tmp_path / "here"), *words]) == 0
    monkeypatch.setattr("packline.jobs.units._is_little", lambda work: False)
    monkeypatch.setattr(ahead, "LITTLE_TEXT", 0)
    other = tmp_path / "other.json"
    other.write_text(tokenizer_json.read_text().replace("<|endoftext|>", "<|other|>"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    begun = HostProcess.__init__
    started: list[str] = []
    for given in (str(tokenizer_json), str(other), str(broken)):

        def begin(host: HostProcess, preload: str, tokenizer: str = "", given: str = given) -> None:
            started.append(tokenizer)
            begun(host, preload, given)

        monkeypatch.setattr(HostProcess, "__init__", begin)
        out = tmp_path / f"by {Path(given).stem}"
        assert main(["build", str(corpus), "--out", str(out), *words]) == 0
        assert digests(out) == digests(tmp_path / "here")
    assert started == [str(tokenizer_json)] * 3, "one host for each build, started ahead"


def test_a_command_that_fails_leaves_no_process(
    tmp_path: Path, tokenizer_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[HostProcess] = []
    begun = HostProcess.__init__

    def begin(host: HostProcess, preload: str, tokenizer: str = "") -> None:
        begun(host, preload, tokenizer)
        started.append(host)

    monkeypatch.setattr(HostProcess, "__init__", begin)
    assert main(["build", str(tmp_path / "none"), "--tokenizer", str(tokenizer_json), "--nonsense"]) != 0
    (host,) = started
    assert host._process.poll() is not None and take_host() is None


def test_an_engine_that_was_loaded_ahead_is_used_only_for_its_tokenizer(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json))
    texts = Texts.of(["some words", "<|endoftext|> 漢字"])
    before = threading.active_count()
    for parse, taken in ((False, True), (True, False)):
        load_ahead(str(tokenizer_json))
        text = json_to_encode(tokenizer, parse=parse)
        engine = load_engine("fastokens", text)
        assert bool(engines._LOADING) != taken
        assert (
            engine.encode(texts).tokens.tolist() == ENGINES["fastokens"](text).encode(texts).tokens.tolist()
        )
        stop_loading()
        assert not engines._LOADING and threading.active_count() == before, "a fork is safe"


def test_a_tokenizer_that_is_not_here_is_not_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "load_tokenizer", None)
    load_ahead("owner/name")
    assert not engines._LOADING


def test_only_a_few_local_files_are_looked_at(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(*inputs: str | Path) -> bool:
        return looks_little([os.fspath(given) for given in inputs])

    folder = corpus.parent
    assert little(corpus) and little(folder) and little(corpus, folder)
    assert not little(corpus, folder.parent)  # a folder in a folder
    assert not little(f"{folder}/*.jsonl") and not little("hf://datasets/a/b")
    size = corpus.stat().st_size
    monkeypatch.setattr(ahead, "LITTLE_TEXT", 2 * size)
    assert little(corpus) and not little(corpus, corpus)
    monkeypatch.setattr(ahead, "MOST_FILES", 1)
    (folder / "b.jsonl").write_bytes(b"")
    assert little(corpus) and not little(folder)
