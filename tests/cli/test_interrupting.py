"""Ctrl-C: the build says how to go on, and the very line that it prints goes on."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.conftest import python_sources

import packline

UNITS = 3


def published(store: Path) -> dict[str, str]:
    """The checksum of every file of a store."""
    files = [path for path in sorted(store.rglob("*")) if path.is_file()]
    return {
        path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, write_jsonl: Callable[..., Path]) -> Path:
    """About 4 MB a unit, so that a build has several and takes a moment."""
    texts = [text for _, text in python_sources(1_500_000)]
    path = write_jsonl(tmp_path_factory.mktemp("corpus") / "a b.jsonl", texts)
    data = path.read_bytes()
    path.write_bytes(data * (UNITS * (4 << 20) // len(data)))
    return path


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tokenizer_json: Path) -> dict[str, str]:
    """The files of a store that is built without an interruption."""
    out = tmp_path_factory.mktemp("straight") / "store"
    packline.build(corpus, tokenizer_json, out=out, workers=0)
    return published(out)


def build_words(corpus: Path, tokenizer: Path) -> list[str]:
    """A build by the reference engine, which is slow: once a unit is committed there are seconds left."""
    words = ["build", str(corpus), "--tokenizer", str(tokenizer), "--engine", "tokenizers"]
    return [sys.executable, "-m", "packline", *words]


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not happened() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("as_json", "number"),
    [(False, signal.SIGTERM), (True, signal.SIGHUP)],  # Ctrl-C is typed below
)
def test_the_printed_command_resumes_to_the_same_bytes(
    tmp_path: Path,
    corpus: Path,
    tokenizer_json: Path,
    straight: dict[str, str],
    as_json: bool,
    number: signal.Signals,
) -> None:
    out = tmp_path / "an out"
    more = ["--workers", "1", *(["--json"] if as_json else [])]
    command = [*build_words(corpus, tokenizer_json), "--out", str(out), *more]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=tmp_path,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a parent such as nohup ignores SIGHUP
    )
    wait_for(lambda: any((out / "receipts").glob("*.json")), process)
    os.killpg(process.pid, number)  # to all processes at once, as a terminal or a scheduler does
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "error:" not in stderr and re.search("^interrupted: ", stderr, re.MULTILINE)
    assert not (out / "manifest.json").exists()
    assert "Traceback" not in stderr
    line = re.search(r"^hint: resume with: (.*)$", stderr, re.MULTILINE)
    assert line is not None
    assert shlex.split(line[1]) == command
    status = [sys.executable, "-m", "packline", "status", str(out)]
    shown = subprocess.run(status, capture_output=True, text=True, env=environment(), cwd="/")
    assert line[1] in shown.stdout and str(tmp_path) in shown.stdout
    if as_json:
        assert json.loads(stdout)["error"]["command"] == line[1]
    # A person may choose a faster engine when going on; no byte depends on it.
    go_on = line[1].replace("--engine tokenizers", "--engine auto")
    done = subprocess.run(go_on, shell=True, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if as_json:
        assert json.loads(done.stdout)["units_done_before"] >= 1
    else:
        assert "done by an earlier run" in done.stderr
    assert published(out) == straight


def on_a_terminal(command: list[str], cwd: Path, interrupt: bool) -> tuple[str, int]:
    """Run a command on a terminal of its own; type Ctrl-C when bars appear."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execve(command[0], command, environment())
    shown, typed = b"", False
    while select.select([terminal], [], [], 120)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
        if interrupt and not typed and "━".encode() in shown:
            os.write(terminal, b"\x03")
            typed = True
    os.close(terminal)
    return shown.decode("utf-8"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_ctrl_c_on_a_terminal_is_as_quiet(tmp_path: Path, corpus: Path, tokenizer_json: Path) -> None:
    command = [*build_words(corpus, tokenizer_json), "--out", "out"]
    shown, code = on_a_terminal(command, tmp_path, interrupt=True)
    assert code == 130, shown
    assert "Traceback" not in shown
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", shown)
    assert "resume with:" in text
    assert "packline build" in text.replace("-m packline", "packline")
