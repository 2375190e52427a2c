"""The command: it listens, answers, says what is wrong, and ends when told to."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import environment
from tests.viewing.web.sites import small_store

from packline.cli.main import main
from packline.errors import PacklineError, RecipeError
from packline.facade import Store
from packline.viewing.web import serving
from packline.viewing.web.serving import check_installed, listen


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return small_store(tmp_path_factory.mktemp("serving") / "store")


@contextmanager
def running(store: Store, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "packline", "serve", str(store.path), "--port", "0", "--json", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def read(url: str, **headers: str) -> tuple[int, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_serves_and_ctrl_c_ends_it_cleanly(store: Store) -> None:
    with running(store) as (process, told):
        assert told["token"] is None and told["url"] == f"http://127.0.0.1:{told['port']}/"
        status, text = read(told["url"] + "document/3")
        assert status == 200 and "data-ids" in text
        assert read(told["url"], Host="evil.example")[0] == 421
        # The longest text that its form takes, of characters that are long in an address.
        status, _ = read(told["url"] + "compare/tokenizers?text=" + "%E6%BC%A2" * 8000)
        assert status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and errors == ""


def test_beyond_this_machine_it_has_a_token(store: Store) -> None:
    with running(store, "--host", "0.0.0.0") as (_, told):
        base = f"http://127.0.0.1:{told['port']}/"
        assert read(base)[0] == 401
        assert read(base, Cookie=f"packline_{told['port']}={told['token']}")[0] == 200


def test_a_port_in_use_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert main(["serve", str(store.path), "--port", str(port)]) == 1
    errors = capsys.readouterr().err
    assert (
        f"cannot listen on 127.0.0.1 at port {port}" in errors and "in use" in errors and "--port 0" in errors
    )


@pytest.mark.parametrize("port", [-1, 65536])
def test_no_such_port(port: int) -> None:
    with pytest.raises(RecipeError, match="expected 0 to 65535"):
        listen(port=port)


def test_no_such_address() -> None:
    with pytest.raises(PacklineError, match="cannot listen on"):
        listen("256.1.1.1", 0)


def test_no_store_and_no_such_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "no store was named" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "none"), "--port", "0"]) == 1
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_is_missing_is_told(
    store: Store, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(PacklineError) as caught:
        check_installed()
    assert missing in caught.value.message and "packline[web]" in caught.value.hint
    assert main(["serve", str(store.path), "--port", "0"]) == 1
    assert serving.INSTALL in capsys.readouterr().err
