"""Tokenizers of the hub: one question, one commit, the cache, and without a hub soon."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.loopback import WRITE, LoopbackHub
from tests.hub.repositories import git_file

from packline.encoders.tokenizer import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    KNOWN_NAMES,
    _absent,
    hub_id,
    load_tokenizer,
)
from packline.errors import TokenizerError
from packline.vocabulary.training import train_bpe

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import json, sys, time
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
started = time.perf_counter()
try:
    t = load_tokenizer(sys.argv[1])
    found = [t.name, t.kind, t.revision, t.eos_token, t.chat, t.fingerprint]
except TokenizerError as error:
    found = str(error)
print(json.dumps([found, time.perf_counter() - started]))
"""
TRAINED = train_bpe(["some words, some more words"] * 5, 270)


def load_elsewhere(
    name: str, endpoint: str, home: Path, cwd: Path | None = None, **environment: str
) -> tuple[Any, float]:
    """The tokenizer or an error, and seconds; in a process, since the client reads its settings once."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    source = Path(load_tokenizer.__code__.co_filename).parents[2]
    hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", CODE, name],
        env=kept | hub | {"HF_HUB_DISABLE_XET": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    found, seconds = json.loads(done.stdout.splitlines()[-1])
    return found, seconds


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    """A hub with one repository, whose commit has a tag."""
    config = b'{"eos_token": "<|endoftext|>", "chat_template": "x"}'
    files = {"tokenizer.json": git_file(TRAINED.encode()), "tokenizer_config.json": git_file(config)}
    with LoopbackHub(tmp_path / "hub") as served:
        repository = served.hub.create("models", "org/tok", False, WRITE)
        repository.tags["v2"] = repository.add("main", None, "files", files).sha
        yield served


@pytest.fixture
def refusing() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "tokenizer.json").write_text(TRAINED, "utf-8")
    return tmp_path / "local"


def test_a_hub_that_refuses_costs_no_wait(refusing: str, tmp_path: Path) -> None:
    said, seconds = load_elsewhere("gpt2", refusing, tmp_path)
    assert "no tokenizer gpt2: no file or folder of that name here, none in the cache of the hub" in said
    assert f"{refusing} does not answer: ConnectError" in said
    assert seconds < CONNECT_SECONDS + 15  # the client by itself tries for 25


def test_a_hub_that_never_answers_is_not_waited_for(silent: str, tmp_path: Path) -> None:
    said, seconds = load_elsewhere("org/tok", silent, tmp_path)
    assert "does not answer: ReadTimeout" in said
    assert ANSWER_SECONDS <= seconds < ANSWER_SECONDS + 60  # the client by itself: six minutes


def test_a_hub_that_is_down_is_asked_once(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.fail("org/tok", "503", times=9)
    said, _ = load_elsewhere("org/tok", hub.endpoint, tmp_path)
    assert "does not answer: HfHubHTTPError" in said and "503" in said
    assert hub.count("org/tok") == 1


def test_well_known_names_are_hub_ids_in_any_case() -> None:
    for name, repository in KNOWN_NAMES.items():
        assert hub_id(name) == hub_id(name.upper()) == (repository, None) == hub_id(repository)
        assert hub_id(f"{name}@v1") == (repository, "v1")
    with pytest.raises(TokenizerError) as caught:
        _absent("gtp2", "")
    assert "did you mean 'gpt2'?" in caught.value.hint


def test_what_was_fetched_before_is_there_without_a_hub(refusing: str, folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "home" / "hub" / "models--Xenova--gpt-4"  # where the hub's client keeps it
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    found, _ = load_elsewhere("cl100k_base", refusing, tmp_path / "home")
    assert found[-1] == load_tokenizer(str(folder)).fingerprint


def test_a_folder_of_that_name_goes_before_the_hub(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "gpt2")
    found, _ = load_elsewhere("gpt2", hub.endpoint, tmp_path / "home", tmp_path)
    assert found[-1] == load_tokenizer(str(folder)).fingerprint
    assert hub.requests == []


@pytest.mark.parametrize(
    "name", ["missing/tokenizer.json", "./missing", "/missing/folder", "a/b/c", "a b", "x.tiktoken"]
)
def test_what_is_no_hub_id_is_not_asked_for(name: str) -> None:
    assert hub_id(name) is None
    with pytest.raises(TokenizerError, match=r"no tokenizer at .* expected a file or folder, found nothing"):
        load_tokenizer(name)


def test_a_hub_id_is_fetched_pinned_and_found_again_offline(
    hub: LoopbackHub, folder: Path, tmp_path: Path
) -> None:
    fingerprint, home = load_tokenizer(str(folder)).fingerprint, tmp_path / "home"
    commit = hub.repository("org/tok", "models").find("main").sha
    expected = ["org/tok", "huggingface", commit, "<|endoftext|>", True, fingerprint]
    assert load_elsewhere("org/tok", hub.endpoint, home)[0] == expected
    assert load_elsewhere("org/tok@v2", hub.endpoint, home)[0] == ["org/tok@v2", *expected[1:]]
    hub.requests.clear()
    assert load_elsewhere("org/tok", hub.endpoint, home)[0] == expected
    assert hub.count("org/tok") == hub.count("^GET /api/models/org/tok$") == 1  # all files are in the cache
    hub.requests.clear()
    assert load_elsewhere("org/tok", hub.endpoint, home, HF_HUB_OFFLINE="1")[0] == expected
    assert not hub.requests


def test_a_hub_id_that_cannot_be_had_says_so(hub: LoopbackHub, tmp_path: Path) -> None:
    said, _ = load_elsewhere("no/such", hub.endpoint, tmp_path)
    assert "cannot load the tokenizer no/such: no file or folder of that name here, and from" in said
    assert "from the hub RepositoryNotFound" in said
    said, _ = load_elsewhere("no/such", hub.endpoint, tmp_path, HF_HUB_OFFLINE="1")
    assert "none in the cache of the hub, and HF_HUB_OFFLINE is set" in said
    repository = hub.repository("org/tok", "models")
    repository.add("main", repository.find("main").sha, "other", {"vocab.txt": git_file(b"a")})
    said, _ = load_elsewhere("org/tok", hub.endpoint, tmp_path)
    assert "no tokenizer org/tok in the hub: expected one of tokenizer.json" in said
