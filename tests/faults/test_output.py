"""Standard output that is full or closed, too few open files, a work folder that cannot be removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import environment
from tests.jobs.builds import build

import packline
from packline.facade import Store
from packline.jobs.events import Note
from packline.jobs.executors import sendable
from packline.storage.local import plain_error


@pytest.fixture
def command(tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path]) -> list[str]:
    """A build of two documents, in the process that is asked for it."""
    path = write_jsonl(tmp_path / "in/a.jsonl", ["one", "two"])
    words = ["build", str(path), "--tokenizer", str(tokenizer_json), "--out", str(tmp_path / "out")]
    return [sys.executable, "-m", "packline", *words, "--engine", "tokenizers"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("to", "more", "said"),
    [
        ("/dev/full", (), "No space left on device"),
        ("/dev/full", ("--json",), "No space left on device"),
        ("&-", (), "it is closed"),
        ("&-", ("--json",), "it is closed"),
    ],
)
def test_a_full_or_closed_standard_output_is_said_plainly_and_the_store_is_complete(
    to: str, more: tuple[str, ...], said: str, tmp_path: Path, command: list[str]
) -> None:
    line = ["sh", "-c", f'"$@" >{to}', "sh", *command, *more]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 1
    assert f"error: cannot write to standard output: {said}" in done.stderr
    for word in ("Traceback", "Exception ignored", "should not happen"):
        assert word not in done.stderr
    assert len(Store(tmp_path / "out").documents) == 2


def test_a_closed_standard_error_stops_nothing(tmp_path: Path, command: list[str]) -> None:
    line = ["sh", "-c", '"$@" 2>&-', "sh", *command, "--workers", "1", "--json"]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 0
    assert json.loads(done.stdout)["documents"] == 2


def test_too_few_open_files_say_which_limit_to_raise(tmp_path: Path, command: list[str]) -> None:
    said = []
    for limit in (10, 14):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        line = ["sh", "-c", f'ulimit -n {limit}; "$@"', "sh", *command, "--workers", "1"]
        done = subprocess.run(line, capture_output=True, text=True, env=environment())
        assert "Traceback" not in done.stderr
        if done.returncode:
            assert "ulimit -n" in done.stderr, done.stderr
            said.append(limit)
    assert said


@pytest.mark.parametrize(("number", "said"), [(errno.EMFILE, "ulimit -n"), (errno.EIO, "system's log")])
def test_errors_of_the_machine_say_what_to_do(number: int, said: str) -> None:
    error = OSError(number, os.strerror(number), "/data/a.bin")
    plain = plain_error(error)
    assert plain is not None and said in plain.hint and "/data/a.bin" in plain.message
    told = sendable(error)
    assert (told.message, told.hint) == (plain.message, plain.hint)
    assert plain_error(OSError(errno.ENOENT, "no")) is None


def test_a_work_folder_that_cannot_be_removed_is_noted(
    tmp_path: Path, tokenizer_json: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", ["one"])
    unlink = os.unlink
    told: list[Any] = []

    def refuse(path: Any, *arguments: Any, **options: Any) -> None:
        if str(path).endswith("build.json"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        unlink(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        build(tmp_path / "out", tmp_path / "in", tokenizer_json, on_event=told.append)
    notes = [event.text for event in told if isinstance(event, Note)]
    assert any(".packline was not removed" in note and "build.json" in note for note in notes)
    assert (tmp_path / "out/.packline").exists() and packline.open(tmp_path / "out").documents
    again: list[Any] = []
    build(tmp_path / "out", tmp_path / "in", tokenizer_json, on_event=again.append)
    assert not [event for event in again if isinstance(event, Note)]
    assert not (tmp_path / "out/.packline").exists()
