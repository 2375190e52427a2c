"""Tokenizers of the hub: by one question, and without a hub soon."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from packline.encoders import hub
from packline.encoders.hub import ANSWER_SECONDS, CONNECT_SECONDS, KNOWN_NAMES, hub_id
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
from packline.vocabulary.training import train_bpe

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import json, sys, time
from packline.encoders.tokenizer import load_tokenizer
from packline.errors import TokenizerError
started = time.perf_counter()
try:
    found = load_tokenizer(sys.argv[1]).fingerprint
except TokenizerError as error:
    found = "no: " + str(error)
print(json.dumps([found, time.perf_counter() - started]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baseline")
    (folder / "tokenizer.json").write_text(train_bpe(["some words, some more words"] * 5, 270), "utf-8")
    return folder


def load_elsewhere(name: str, endpoint: str, home: Path, cwd: Path | None = None) -> tuple[str, float]:
    """A fingerprint or an error, and its seconds; in a process, since the client reads its settings once."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("HF_") and "proxy" not in key.lower()
    }
    source = Path(load_tokenizer.__code__.co_filename).parents[2]
    hub = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", CODE, name],
        env=kept | hub,
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


class Broken(http.server.BaseHTTPRequestHandler):
    """A hub that is down for maintenance."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        self.send_response(503)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def broken() -> Iterator[str]:
    Broken.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def cache(home: Path, repository: str, folder: Path) -> None:
    """Lay a repository down where the hub's client keeps what it has fetched."""
    place = home / "hub" / f"models--{repository.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def test_a_hub_that_refuses_costs_no_wait(refusing: str, tmp_path: Path) -> None:
    said, seconds = load_elsewhere("gpt2", refusing, tmp_path)
    assert "no tokenizer gpt2: no file or folder of that name here, none in the cache of the hub" in said
    assert f"{refusing} does not answer: ConnectError" in said
    assert seconds < CONNECT_SECONDS + 15  # the client by itself tries for 25


def test_a_hub_that_never_answers_is_not_waited_for(silent: str, tmp_path: Path) -> None:
    said, seconds = load_elsewhere("some/repository", silent, tmp_path)
    assert "does not answer: ReadTimeout" in said
    assert ANSWER_SECONDS <= seconds < ANSWER_SECONDS + 60  # the client by itself: six minutes


def test_a_host_without_an_address_is_no_network(tmp_path: Path) -> None:
    said, seconds = load_elsewhere("gtp2", "http://no-such-host.invalid", tmp_path)
    assert "http://no-such-host.invalid does not answer: no address of no-such-host.invalid" in said
    assert seconds < CONNECT_SECONDS + 10


def test_a_hub_that_is_down_is_asked_once(broken: str, tmp_path: Path) -> None:
    said, _ = load_elsewhere("some/repository", broken, tmp_path)
    assert "does not answer: HfHubHTTPError" in said and "503" in said
    assert [each for each in Broken.asked if "some/" in each] == ["/api/models/some/repository"]


def test_well_known_names_are_hub_ids_in_any_case() -> None:
    for name, repository in KNOWN_NAMES.items():
        assert hub_id(name) == hub_id(name.upper()) == (repository, None) == hub_id(repository)
        assert hub_id(f"{name}@v1") == (repository, "v1")
    with pytest.raises(TokenizerError) as caught:
        hub._absent("gtp2", ("tokenizer.json",), "")
    assert "did you mean 'gpt2'?" in caught.value.hint


def test_what_was_fetched_before_is_there_without_a_hub(refusing: str, folder: Path, tmp_path: Path) -> None:
    cache(tmp_path / "home", "Xenova/gpt-4", folder)
    said, _ = load_elsewhere("cl100k_base", refusing, tmp_path / "home")
    assert said == load_tokenizer(str(folder)).fingerprint


def test_a_folder_of_that_name_goes_before_the_hub(broken: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "gpt2")
    said, _ = load_elsewhere("gpt2", broken, tmp_path / "home", tmp_path)
    assert said == load_tokenizer(str(folder)).fingerprint
    assert Broken.asked == []


@pytest.mark.parametrize("name", ["none.json", "./none", "a/b/c", "two words", "none.tiktoken"])
def test_what_is_no_hub_id_is_not_asked_for(broken: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(TokenizerError, match="expected a file or folder, found nothing"):
        load_tokenizer(name)
    said, _ = load_elsewhere(name, broken, tmp_path)
    assert "expected a file or folder, found nothing" in said
    assert Broken.asked == []
