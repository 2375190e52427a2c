"""What the tests of builds share: small stores by the hundred, and their files compared."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import packline
from packline.facade import Store
from packline.jobs.events import UnitDone
from packline.storage.places import open_storage

SRC = Path(packline.__file__).parents[1]

TINY = """
import sys
if any("packline" in word for word in sys.orig_argv):
    from packline.jobs import cut_inputs
    cut_inputs.UNIT_BYTES = ()
    cut_inputs.LARGEST_UNIT = cut_inputs.LARGEST_SLICE = {unit_bytes}
    cut_inputs.COMPRESSION_GUESS = 99
    from packline.sources import lines, reader
    lines.read_lines.__kwdefaults__["block_bytes"] = reader.CUT_BYTES = {block_bytes}
    from packline.jobs import receipts
    receipts.FIRST_SECONDS = receipts.LONGEST_SECONDS = 0.05
"""
"""A build's own processes are started fresh, so they are told by a file that Python reads at its start."""


def build(out: Path, inputs: Any, tokenizer: Path, **settings: Any) -> Store:
    """A build in this process unless it says otherwise; the plainest engine loads fastest."""
    plain: dict[str, Any] = {"workers": 0, "engine": "tokenizers"}
    return packline.build(inputs, tokenizer, out=out, **(plain | settings))


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a store, by name below it; without the records of runs."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "runs")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def stored(place: str) -> dict[str, str]:
    """SHA-256 of every object of a place."""
    storage = open_storage(place)
    return {one.name: hashlib.sha256(storage.read(one.name)).hexdigest() for one in storage.walk()}


class Stop(Exception):
    """Interrupts a build from one of its events."""


def stop_after(units: int) -> Callable[[Any], None]:
    """A listener that interrupts a build once so many units are done."""
    done = itertools.count(1)

    def hear(event: Any) -> None:
        if isinstance(event, UnitDone) and next(done) >= units:
            raise Stop

    return hear


def rejects(folder: Path) -> list[dict[str, Any]]:
    """Entries of rejects/, each with its verbatim bytes under `raw`."""
    found = []
    for path in sorted(folder.glob("rejects/*.jsonl")):
        raw = path.with_suffix(".raw").read_bytes()
        for line in path.read_bytes().splitlines():
            entry = msgspec.json.decode(line)
            entry["raw"] = raw[entry["offset"] : entry["offset"] + entry["bytes"]]
            found.append(entry)
    return found


def set_sizes(patch: pytest.MonkeyPatch, unit_bytes: int, block_bytes: int | None = None) -> None:
    """Units, and blocks, of these sizes for builds in this process."""
    patch.setattr("packline.jobs.cut_inputs.UNIT_BYTES", ())
    for name in ("LARGEST_UNIT", "LARGEST_SLICE"):
        patch.setattr(f"packline.jobs.cut_inputs.{name}", unit_bytes)
    patch.setattr("packline.jobs.cut_inputs.COMPRESSION_GUESS", 99)  # small ones too are cut as they are read
    if block_bytes is not None:
        from packline.sources import lines

        defaults = lines.read_lines.__kwdefaults__
        assert defaults is not None and "block_bytes" in defaults
        patch.setitem(defaults, "block_bytes", block_bytes)
        patch.setattr("packline.sources.reader.CUT_BYTES", block_bytes)


def set_sizes_everywhere(
    patch: pytest.MonkeyPatch, folder: Path, unit_bytes: int, block_bytes: int = 1 << 16
) -> None:
    """The same for builds in this process and for those in processes of their own."""
    set_sizes(patch, unit_bytes, block_bytes)
    folder.mkdir(exist_ok=True)
    text = TINY.format(unit_bytes=unit_bytes, block_bytes=block_bytes)
    (folder / "sitecustomize.py").write_text(text)
    patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(SRC)]))


SCRIPT = """
import json, sys
import packline
from packline.errors import PacklineError
arguments = json.loads(sys.argv[1])
try:
    packline.build(arguments.pop("inputs"), arguments.pop("tokenizer"), **arguments)
except PacklineError as error:
    print(type(error).__name__, "|", error, "|", error.hint)
    sys.exit(3)
"""


def start_build(
    out: Path, inputs: Any, tokenizer: Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.Popen[str]:
    """A build in a process, and a process group, of its own: exit code 3 and a line for an error."""
    paths = [str(path) for path in (inputs if isinstance(inputs, list) else [inputs])]
    arguments = {"inputs": paths, "tokenizer": str(tokenizer), "out": str(out)} | settings
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, msgspec.json.encode(arguments).decode()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={"PYTHONPATH": str(SRC), **os.environ, **(environment or {})},
    )


def start_slice(out: Path, inputs: Path, tokenizer: Path, slice: str, *words: str) -> subprocess.Popen[str]:
    """One slice of a build, by the command line, with a worker."""
    command = ["build", str(inputs), "--tokenizer", str(tokenizer), "--out", str(out), "--slice", slice]
    return subprocess.Popen(
        [sys.executable, "-m", "packline", *command, "--workers", "1", "--engine", "tokenizers", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={"PYTHONPATH": str(SRC), **os.environ},
    )
