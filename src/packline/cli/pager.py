"""Long results in a terminal, shown by a pager if there is one and the terminal is interactive.

    terminal    $PAGER, or `less -R`, which passes colors only; up to one screen is simply printed
    pipe        plain lines, as usual

All text for the pager has passed through `visible`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from packline.cli.output import Line, output, styled


def show(lines: Sequence[Line]) -> None:
    """Print lines; in a terminal, through a pager."""
    command = _pager() if output.mode == "terminal" and sys.stdin.isatty() else None
    if command is None or len(lines) < shutil.get_terminal_size().lines:
        output.lines(lines)
        return
    environment = {"LESS": "FRX", "LESSCHARSET": "utf-8"} | dict(os.environ)
    # Ctrl-C is handled by the pager while it runs.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        subprocess.run(command, input=_ansi(lines).encode(), env=environment, check=False)
    except OSError:
        output.lines(lines)
    finally:
        signal.signal(signal.SIGINT, before)


def _pager() -> list[str] | None:
    """Command of the pager; None if there is none, or it is disabled (`PAGER=cat`, `PAGER=`)."""
    chosen = os.environ.get("PAGER")
    command = ["less", "-R"] if chosen is None else shlex.split(chosen)
    return command if command and command != ["cat"] and shutil.which(command[0]) else None


def _ansi(lines: Sequence[Line]) -> str:
    """Lines in rich's rendering for this terminal."""
    from rich.console import Console

    console = Console(
        file=None, highlight=False, markup=False, emoji=False, no_color=not output.color, width=output.width
    )
    with console.capture() as captured:
        for line in lines:
            console.print(styled(line), soft_wrap=True)
    return captured.get()
