"""The only module that prints.

    terminal   lines with styles, by rich; progress is redrawn in place
    plain      the same lines without control characters: for a pipe, a file, a dumb terminal
    json       one JSON object on standard output, as its last and only line

Results go to standard output; progress, errors and hints to standard error, each in the mode that fits its
destination. rich is imported only for a terminal. Every text passes through `visible`, so no text of a
document or file name can control the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from packline.errors import OutputError, hide_credentials
from packline.viewing.text import Line as Line
from packline.viewing.text import Piece as Piece
from packline.viewing.text import plain as plain
from packline.viewing.text import table as table
from packline.viewing.text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from packline.viewing.page import Block, Page

Mode = Literal["terminal", "plain", "json"]

STYLES = {
    "title": "bold",
    "quiet": "dim",
    "good": "green",
    "warning": "yellow",
    "error": "bold red",
    "hint": "bold",
    "interrupted": "yellow",
    "number": "cyan",
    "control": "bold red",
    "bad": "bold red",
    "heading": "bold underline",
    "edge": "bold cyan",
    "escape": "magenta",
    "padding": "dim",
    "unlearned": "dim underline",
    "token-0": "#1c1c1c on #afd7ff",
    "token-1": "#1c1c1c on #d7ffaf",
    "token-2": "#1c1c1c on #ffd7af",
    "token-3": "#1c1c1c on #d7d7ff",
    "token-4": "#1c1c1c on #ffffaf",
}
PLAIN_WIDTH = 100
PLAIN_EVERY_SECONDS = 5.0
"""Interval between lines of progress where nothing can be redrawn."""
WARNINGS = ("warning", "note", "missing", "bad records")
"""Names of facts that are warnings."""
Facts = Mapping[str, Piece | list[str] | None]
"""Names and values; a list has a line for each value, and what is empty is not shown."""


class Output:
    """Standard output and standard error, in the configured modes."""

    def __init__(self) -> None:
        self.mode: Mode = "plain"
        self.interactive = False
        """True if standard error is a terminal that supports redrawing."""
        self.color = False
        self.width = PLAIN_WIDTH
        self.wrap: int | None = None
        """Column at which long lines wrap; None for a pipe, whose lines a program may read."""
        self.quiet = False
        """True to show no progress and no notes."""
        self.mute = False
        """True to print no result, for commands whose result is files. Not in json mode."""
        self._consoles: dict[bool, Console] = {}

    def configure(self, *, as_json: bool = False, quiet: bool = False, mute: bool = False) -> None:
        """Set the modes from the destinations of the output; NO_COLOR and TERM=dumb are respected."""
        self.quiet, self.mute = quiet, mute
        able = os.environ.get("TERM", "") not in ("", "dumb")
        self.mode = "json" if as_json else "terminal" if able and _is_terminal(sys.stdout) else "plain"
        self.interactive = able and _is_terminal(sys.stderr)
        self.color = self.mode == "terminal" and not os.environ.get("NO_COLOR")
        self.width = PLAIN_WIDTH
        if self.mode == "terminal" or self.interactive:
            self.width = max(shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns, 40)
        self.wrap = self.width if self.mode == "terminal" or self.interactive else None
        self._consoles = {}

    def line(self, *pieces: Piece) -> None:
        """Print a line of the result, except in json mode."""
        if self.mode == "json" or self.mute:
            return
        if self.mode == "plain":
            _write_result(plain(pieces))
        else:
            self._console(error=False).print(styled(pieces), soft_wrap=True)

    def lines(self, lines: Sequence[Line]) -> None:
        """Print several lines of the result, except in json mode."""
        for line in lines:
            self.line(*line)

    def page(self, page: Page, *, pager: bool = False) -> None:
        """Print a page, except in json mode."""
        if self.mode == "json" or self.mute:
            return
        from packline.viewing.terminal import render_lines

        lines = render_lines(page, self.width, self.color, wrap=self.wrap is not None)
        if pager:
            self.show(lines)
        else:
            self.lines(lines)

    def blocks(self, *blocks: Block) -> None:
        """Print blocks of a page, except in json mode."""
        if self.mode == "json" or self.mute:
            return
        from packline.viewing.terminal import render_blocks

        self.lines(render_blocks(blocks, self.width, self.color, wrap=self.wrap is not None))

    def show(self, lines: Sequence[Line]) -> None:
        """Print lines; in a terminal, more than a screen of them by a pager, unless PAGER is none."""
        program = os.environ.get("PAGER", "less").partition(" ")[0]
        pages = len(lines) >= shutil.get_terminal_size().lines and program != "cat" and shutil.which(program)
        if self.mode != "terminal" or not (pages and sys.stdin.isatty()):
            self.lines(lines)
            return
        for name, value in {"LESS": "FRX", "LESSCHARSET": "utf-8"}.items():
            os.environ.setdefault(name, value)
        with self._console(error=False).pager(styles=self.color, links=False):
            self.lines(lines)

    def facts(self, facts: Facts) -> None:
        """Print names and values of the result, except in json mode."""
        self.lines(self.fact_lines(facts))

    def fact_lines(self, facts: Facts, gap: int = 2) -> list[Line]:
        """Names and values as lines."""
        rows: list[Line] = []
        for name, value in facts.items():
            for number, one in enumerate(value if isinstance(value, list) else [value] if value else []):
                style = "warning" if name in WARNINGS else "quiet"
                rows.append([("" if number else name, style), one])
        return table(rows, "ll", gap=gap, width=self.wrap)

    def note(self, *pieces: Piece) -> None:
        """Print a line about progress on standard error."""
        if self.quiet:
            return
        if self.interactive:
            self._console(error=True).print(styled(pieces), soft_wrap=True)
        elif self.mode != "json":
            _write_note(plain(pieces))

    def result(self, command: str, *values: Any, code: int = 0, **more: Any) -> int:
        """Print the result as JSON, as the last line of standard output; only in json mode.

        Args:
            values: Structs or dicts, whose fields are those of the object.

        Returns:
            The exit code.
        """
        if self.mode == "json":
            import msgspec

            facts = {"command": command, "exit_code": code}
            for one in (*values, more):
                facts |= msgspec.to_builtins(one, str_keys=True)
            _write_result(json.dumps(facts))
        return code

    def _failed(self, **error: Any) -> None:
        if self.mode == "json":
            _write_result(json.dumps({"error": error}))

    def error(self, kind: str, message: str, hint: str = "") -> None:
        """Report an error and its remedy on standard error; in json mode on standard output too."""
        message, hint = hide_credentials(message), hide_credentials(hint)
        self._say("error", message)
        self._say("hint", hint)
        self._failed(kind=kind, message=message, hint=hint)

    def interrupted(self, message: str, hint: str, **more: str) -> None:
        """Report an interruption, what is kept and how to resume; in json mode on standard output too."""
        self._say("interrupted", message, always=True)
        self._say("hint", hint)
        whole = ": ".join(filter(None, ["interrupted", message]))
        self._failed(kind="Interrupted", message=whole, hint=hint, **more)

    def warning(self, message: str, hint: str) -> None:
        """Report a problem with completed work, on standard error in every mode."""
        self._say("warning", message)
        self._say("hint", hint)

    def _say(self, word: str, text: str, *, always: bool = False) -> None:
        if not text and not always:
            return
        if self.interactive:
            line: Line = [(f"{word}:", word), f" {text}"] if text else [(word, word)]
            with contextlib.suppress(OSError):  # the terminal was closed
                self._console(error=True).print(styled(line), soft_wrap=True)
        else:
            _write_note(f"{word}: {visible(text)}" if text else word)

    @contextmanager
    def progress(self) -> Iterator[Callable[[float, str], None]]:
        """Show the progress of the block: a bar on a terminal, else a line every few seconds.

        Yields:
            A function to call after each piece of work, with the share that is done and what to say of it.
        """
        if self.interactive and not self.quiet:
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            words = Column(no_wrap=True, overflow="ellipsis")
            columns = (" ", BarColumn(24), TextColumn("{task.description}", markup=False, table_column=words))
            with Progress(*columns, console=self._console(error=True), transient=True) as bars:
                bar = bars.add_task("", total=1.0)
                yield lambda share, line: bars.update(bar, completed=share, description=visible(line))
            return
        last = time.monotonic()

        def tell(share: float, line: str) -> None:
            nonlocal last
            if time.monotonic() - last >= PLAIN_EVERY_SECONDS:
                last = time.monotonic()
                self.note(line)

        yield tell

    def _console(self, *, error: bool) -> Console:
        if error not in self._consoles:
            from rich.console import Console

            self._consoles[error] = Console(
                stderr=error,
                highlight=False,
                markup=False,
                emoji=False,
                no_color=bool(os.environ.get("NO_COLOR")),
            )
        return self._consoles[error]


def styled(pieces: Line) -> Text:
    """Convert a line for rich."""
    from rich.text import Text

    text = Text()
    for piece in pieces:
        content, style = (piece, "") if isinstance(piece, str) else piece
        text.append(visible(content), STYLES.get(style, ""))
    return text


def _write_result(text: str) -> None:
    """Write one line to standard output."""
    hint = "the files that the command made are complete; only its printed result is missing"
    if sys.stdout is None:
        raise OutputError("cannot write to standard output: it is closed", hint=hint)
    try:
        _write_line(sys.stdout, text)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        discard(sys.stdout)
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"cannot write to standard output: {reason}", hint=hint) from error


def _write_note(text: str) -> None:
    """Write one line to standard error. If that fails the error is ignored, and the work continues."""
    if sys.stderr is not None:
        try:
            _write_line(sys.stderr, text)
        except (OSError, ValueError):
            discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream to nowhere, so that Python reports no second error when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_line(stream: TextIO, text: str) -> None:
    """Write one line; characters that the stream cannot encode are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


output = Output()
"""The command's output; `main` configures it."""
