"""Run `packline` and take what it prints: in this process, or as a user does in a process of its own.

`run` calls what the command calls, without the half second that a process takes to start. What concerns the
process is shown by `run_alone`: its environment, its imports, its exit code, and that workers and libraries
print nothing between the lines of the command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any
from unittest.mock import patch

import packline
from packline.cli.main import main
from packline.jobs.signals import INTERRUPTING


def environment(**more: str) -> dict[str, str]:
    """No terminal, a known width, and this checkout's packline."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    return {**kept, "COLUMNS": "100", "TERM": "xterm-256color", **more}


def run(*words: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """`packline WORDS...` in this process, whose folder, environment and signals are afterwards as before."""
    printed, complained = io.BytesIO(), io.BytesIO()
    command = [str(Path(packline.__file__).with_name("__main__.py")), *map(str, words)]
    handlers = {number: signal.getsignal(number) for number in INTERRUPTING}
    try:
        with (
            patch.dict(os.environ, environment(**more)),
            patch.object(sys, "argv", command),
            contextlib.chdir(cwd or "."),
            contextlib.redirect_stdout(io.TextIOWrapper(printed, "utf-8", newline="\n")) as out,
            contextlib.redirect_stderr(io.TextIOWrapper(complained, "utf-8", newline="\n")) as error,
        ):
            for name in ("NO_COLOR", "FORCE_COLOR"):
                os.environ.pop(name, None)
            code = _code()
            out.flush()
            error.flush()
            texts = [stream.getvalue().decode("utf-8") for stream in (printed, complained)]
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return subprocess.CompletedProcess(command, code, *texts)


def _code() -> int:
    """The exit code of `main`, as a process has it."""
    try:
        return main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:
        traceback.print_exc()
        return 1


def run_alone(*words: str | Path, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """`packline WORDS...` in a process of its own, with its output in pipes."""
    return subprocess.run(
        [sys.executable, "-m", "packline", *map(str, words)],
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
