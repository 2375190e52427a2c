"""Run `packline` as a user does: in a process of its own, with its output in pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment(**more: str) -> dict[str, str]:
    """No terminal, a known width, and this checkout's packline."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "COLUMNS": "100", "TERM": "xterm-256color", **more}


def run(*words: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """`packline WORDS...` with its output in pipes."""
    command = [sys.executable, "-m", "packline", *map(str, words)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        cwd=cwd,
        env=environment(**more),
    )


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The last line of standard output, as JSON."""
    values = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(values, dict)
    return values
