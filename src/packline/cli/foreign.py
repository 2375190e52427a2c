"""Shared parts of the commands that read other projects' data sets: reading options, and import progress."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from packline.cli.arguments import MAIN, TOKENS, _token, option
from packline.cli.exporting import options_of
from packline.cli.main import note_command
from packline.cli.output import Line, output
from packline.errors import RecipeError
from packline.formats.importing.run import ImportRequest
from packline.jobs.events import Event, ImportPlanned, Note, OnEvent, Progress, UnitDone
from packline.viewing.text import bar, duration, plural, scaled, size


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options for reading a data set of another project; None for those not given."""

    from_: Annotated[
        str | None,
        option("Its format (packline formats lists them). Default: by its files.", MAIN, name="--from"),
    ] = None
    tokenizer: Annotated[
        str | None, option("The tokenizer that made the ids: a tokenizer.json, a hub id, ...", MAIN)
    ] = None
    eod: Annotated[
        str | None,
        option(
            "End of document: a token's string, or an id. Default: as the data or the tokenizer says.", TOKENS
        ),
    ] = None
    bos: Annotated[
        str | None, option("Beginning of document: a token's string, or an id. Default: none.", TOKENS)
    ] = None
    set: Annotated[
        list[str] | None,
        option("An option of the format to read, NAME=VALUE, a list as NAME=A,B. May be repeated.", MAIN),
    ] = None

    def boundary(self) -> tuple[str | int | None, str | int | None]:
        """End and beginning of documents; a number is an id."""
        return (
            None if self.eod is None else _token(self.eod),
            None if self.bos is None else _token(self.bos),
        )

    def options(self) -> dict[str, Any]:
        """Options of the format, by name."""
        return options_of(self.set)

    def request(self, path: str, out: str, workers: int | None) -> ImportRequest:
        """Request for an import.

        Raises:
            RecipeError: no tokenizer is given.
        """
        if self.tokenizer is None:
            raise RecipeError("no tokenizer", hint="name the one that made the ids with --tokenizer")
        eod, bos = self.boundary()
        return ImportRequest(path, self.from_, self.tokenizer, out, eod, bos, self.options(), workers)


class ImportTally:
    """State of a running import."""

    def __init__(self) -> None:
        self.plan: ImportPlanned | None = None
        self.tokens = 0
        self.units_done = 0
        self.notes: list[str] = []
        self._started = time.monotonic()

    def hear(self, event: Event) -> None:
        """Process an event."""
        if isinstance(event, ImportPlanned):
            self.plan, self.units_done = event, event.units_done
        elif isinstance(event, Progress):
            self.tokens += event.tokens
        elif isinstance(event, UnitDone):
            self.units_done += 1
        elif isinstance(event, Note):
            self.notes.append(event.text)

    def draw(self, width: int) -> list[Line]:
        """A progress bar and the remaining time."""
        plan = self.plan
        if plan is None:
            return [[("  looking at headers and indexes ...", "quiet")]]
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = self.tokens / seconds
        share = self.units_done / max(plan.units, 1)
        left = ""
        if plan.tokens:
            left_tokens = plan.tokens * (1 - plan.units_done / max(plan.units, 1)) - self.tokens
            share = min(max(1 - left_tokens / plan.tokens, 0.0), 1.0)
            left = f"  {duration(max(left_tokens, 0) / rate)} left" if rate else ""
        full, rest = bar(share, max(min(width - 60, 40), 4))
        counts = f" {share:4.0%}  {scaled(self.tokens)} tokens  {scaled(rate)} tokens/s{left}"
        return [["  importing  ", (full, "good"), (rest, "quiet"), counts]]


@contextmanager
def watch_import(tally: ImportTally, out: str | Path) -> Iterator[OnEvent]:
    """Show an import into OUT: a bar on a terminal, otherwise one line with the plan."""

    def hear(event: Event) -> None:
        tally.hear(event)
        if isinstance(event, ImportPlanned):
            note_command(out)
        if isinstance(event, ImportPlanned) and not output.interactive:
            for line in plan_lines(event):
                output.note(*line)

    if not output.interactive:
        yield hear
    else:
        with output.live(tally.draw):
            yield hear
    for note in tally.notes:
        output.note(("note: ", "warning"), note)


def plan_lines(plan: ImportPlanned) -> list[Line]:
    """Lines that describe a planned import."""
    known = [
        *([plural(plan.documents, "document")] if plan.documents is not None else []),
        *([plural(plan.tokens, "token")] if plan.tokens is not None else []),
    ]
    what = f"{plan.format}: {plural(plan.files, 'file')}, {size(plan.bytes)}"
    kept = f", {plural(plan.units_done, 'unit')} kept" if plan.units_done else ""
    return [[", ".join([what, *known]) + f" in {plural(plan.units, 'unit')}{kept}"]]
