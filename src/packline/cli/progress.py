"""Progress of a running job: bars on a terminal, otherwise an occasional line.

`Tally` adds up events and is independent of terminals; the rest displays it. A build has a bar for each of
its sources, by bytes of text; other jobs have one bar, by tokens where their number is known, else by units.
The size of a source is an estimate from file sizes, and for a compressed file a guess: if it yields more text
than expected, the expected size grows with it. Rates are those of the last ten seconds, so that they show the
current speed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import packline
from packline.cli.main import note_command
from packline.cli.output import Line, output, table
from packline.jobs.events import (
    BuildPlanned,
    EnginesTried,
    Event,
    ImportPlanned,
    Note,
    Planned,
    Progress,
    UnitDone,
)
from packline.viewing.text import bar, cells, cut, duration, percent, plural, scaled, size

WINDOW_SECONDS = 10.0
TELLING_SECONDS = 1.0
MOST_BARS = 8
NARROW = 76
ALMOST = 0.98
"""Maximum fraction of a bar until its source has been read to the end."""


@dataclass(slots=True)
class SourceTally:
    """State of one source."""

    expected_bytes: int
    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0

    @property
    def fraction(self) -> float:
        """Completed fraction."""
        return min(self.text_bytes / max(self.expected_bytes, 1), ALMOST)

    @property
    def remaining_bytes(self) -> float:
        """Estimate of the remaining bytes, from the completed fraction."""
        total = max(self.expected_bytes, self.text_bytes / ALMOST)
        return total - self.text_bytes


class Tally:
    """Sum of a job's events.

    Args:
        clock: returns seconds, for rates.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.planned: Planned | None = None
        self.engines: EnginesTried | None = None
        self.sources: dict[str, SourceTally] = {}
        self.units_done = 0
        self.rates: dict[str, dict[str, float]] = {}
        """MB/s of the last committed unit, by script and engine."""
        self.notes: list[str] = []
        self.tokens = 0
        """Tokens of this run."""
        self._clock, self._began = clock, clock()
        self._window: deque[tuple[float, int, int]] = deque()

    def hear(self, event: Event) -> None:
        """Process an event."""
        if isinstance(event, Progress):
            self.tokens += event.tokens
            source = self.sources.setdefault(event.source, SourceTally(0))
            source.documents += event.documents
            source.text_bytes += event.text_bytes
            source.tokens += event.tokens
            self._window.append((self._clock(), event.text_bytes, event.tokens))
        elif isinstance(event, UnitDone):
            self.units_done += 1
            self.rates |= event.rates
        elif isinstance(event, Planned):
            self.planned, self.units_done, self._began = event, event.units_done, self._clock()
            if isinstance(event, BuildPlanned):
                self.sources = {name: SourceTally(expected) for name, expected in event.sources.items()}
                for name, ledger in event.sources_done.items():
                    done = SourceTally(
                        event.sources[name], ledger.documents, ledger.text_bytes, ledger.tokens
                    )
                    self.sources[name] = done
        elif isinstance(event, EnginesTried):
            self.engines = event
            self._window.append((self._clock(), 0, 0))
        elif isinstance(event, Note):
            self.notes.append(event.text)

    @property
    def total(self) -> SourceTally:
        """Sum of all sources."""
        sources = list(self.sources.values())
        expected = sum(round(source.text_bytes + source.remaining_bytes) for source in sources)
        return SourceTally(
            expected,
            sum(source.documents for source in sources),
            sum(source.text_bytes for source in sources),
            sum(source.tokens for source in sources),
        )

    def speed(self) -> tuple[float, float]:
        """Recent bytes of text and tokens per second."""
        now = self._clock()
        while len(self._window) > 2 and self._window[0][0] < now - WINDOW_SECONDS:
            self._window.popleft()
        if not self._window:
            return 0.0, 0.0
        seconds = max(now - self._window[0][0], 0.1)
        _, text_bytes, tokens = zip(*self._window, strict=True)
        return sum(text_bytes) / seconds, sum(tokens) / seconds

    def remaining_seconds(self) -> float | None:
        """Estimate of the remaining time; None while there is too little data."""
        rate = self.speed()[0]
        if not self._window or self._clock() - self._window[0][0] < TELLING_SECONDS:
            return None
        left = sum(source.remaining_bytes for source in self.sources.values())
        return left / rate if rate else None

    def units(self) -> str:
        """`3 of 64 units`; streams gain units as they are read, so the plan's number is the minimum."""
        planned = self.planned.units if self.planned else 0
        return f"{self.units_done:,} of {max(planned, self.units_done):,} units"

    @property
    def fraction(self) -> float:
        """Completed fraction: by tokens if their number is known, else by units."""
        planned = self.planned
        if planned is None:
            return 0.0
        by_units = self.units_done / max(planned.units, 1)
        if not planned.tokens:
            return by_units
        kept = planned.units_done / max(planned.units, 1)
        return min(max(kept + self.tokens / planned.tokens, by_units), 1.0)

    def line(self) -> str:
        """Progress as one line, of a job without sources."""
        seconds = max(self._clock() - self._began, 0.1)
        parts = [percent(self.fraction), f"{scaled(self.tokens / seconds)} tokens/s", self.units()]
        kept = self.planned.units_done / max(self.planned.units, 1) if self.planned else 0.0
        done = self.fraction - kept
        if seconds > TELLING_SECONDS and done > 0:
            parts.append(f"{duration(seconds / done * (1 - self.fraction))} left")
        return "  ".join(parts)


@contextmanager
def watch(
    tally: Tally,
    out: str | None = None,
    plan: Callable[[Planned], list[Line]] | None = None,
) -> Iterator[Callable[[Event], None]]:
    """Show a running job. Yields the function that receives its events.

    Args:
        out: where the result will be; the command that resumes the job is recorded in its work folder.
        plan: lines that describe the plan; by default those for a store.
    """
    describe = plan or plan_lines
    with output.follow(lambda width: draw(tally, width), lambda: plain_line(tally)) as tick:

        def hear(event: Event) -> None:
            tally.hear(event)
            if isinstance(event, Planned):
                if out is not None:
                    note_command(out, event.units)
                for line in describe(event):
                    output.note(*line)
            elif isinstance(event, EnginesTried):
                for line in engine_lines(event):
                    output.note(*line)
            elif isinstance(event, Note):
                output.note(("note: ", "warning"), event.text)
            elif isinstance(event, Progress | UnitDone):
                tick()

        yield hear


def plan_lines(planned: Planned) -> list[Line]:
    """Lines that describe a planned store."""
    if isinstance(planned, BuildPlanned):
        return build_lines(planned)
    return import_lines(planned) if isinstance(planned, ImportPlanned) else []


def import_lines(planned: ImportPlanned) -> list[Line]:
    """Lines that describe a planned import, or a build of conversations."""
    known = [
        *([plural(planned.documents, "document")] if planned.documents is not None else []),
        *([plural(planned.tokens, "token")] if planned.tokens is not None else []),
    ]
    what = f"{planned.format}: {plural(planned.files, 'file')}, {size(planned.bytes)}"
    kept = f", {plural(planned.units_done, 'unit')} kept" if planned.units_done else ""
    return [[", ".join([what, *known]) + f" in {plural(planned.units, 'unit')}{kept}"]]


def build_lines(planned: BuildPlanned) -> list[Line]:
    """Lines that describe a planned build."""
    expected = sum(planned.sources.values())
    work = f"{plural(planned.files, 'file')}, about {size(expected)} of text, {plural(planned.units, 'unit')}"
    if planned.units_done:
        work += f", {planned.units_done:,} of them done by an earlier run"
    name = Path(planned.tokenizer)
    tokenizer = f"{name.parent.name}/{name.name}" if name.name == "tokenizer.json" else name.name
    tokens = (
        f"{tokenizer}, {planned.vocab_size:,} tokens as {planned.dtype}, "
        f"documents end with {planned.eod} ({planned.eod_id})"
    )
    workers = (
        plural(planned.workers, "worker process", "worker processes") if planned.workers else "none: all here"
    )
    rows: list[Line] = [
        [("inputs", "quiet"), work],
        [("tokenizer", "quiet"), tokens],
        [("workers", "quiet"), workers],
    ]
    return [[("packline ", "title"), packline.__version__], *table(rows, "ll", width=output.wrap)]


def engine_lines(tried: EnginesTried) -> list[Line]:
    """Engines that will be used, and reasons."""
    return table(
        [[("engines", "quiet"), f"{' and '.join(tried.used)}: {tried.reason}"]],
        "ll",
        gap=4,
        width=output.wrap,
    )


def plain_line(tally: Tally) -> str:
    """Progress as one line."""
    if not isinstance(tally.planned, BuildPlanned):
        return tally.line()
    total, (rate, tokens) = tally.total, tally.speed()
    parts = [
        percent(total.fraction),
        f"{total.documents:,} documents",
        f"{size(rate)}/s",
        f"{scaled(tokens)} tokens/s",
        tally.units(),
    ]
    left = tally.remaining_seconds()
    if left is not None:
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


def draw(tally: Tally, width: int) -> list[Line]:
    """One bar per source and a line for the total, or one bar."""
    if tally.planned is None:
        return [[("  looking at the inputs, loading the tokenizer ...", "quiet")]]
    if not isinstance(tally.planned, BuildPlanned):
        done, rest = bar(tally.fraction, min(max(width - 70, 8), 40))
        return [["  ", (done, "good"), (rest, "quiet"), "  ", tally.line()]]
    if tally.engines is None:
        return [[("  loading the engines, and trying them on some of the documents ...", "quiet")]]
    rate, tokens = tally.speed()
    left = tally.remaining_seconds()
    lines: list[Line] = [[""]]
    shown = sorted(tally.sources.items(), key=lambda item: -item[1].expected_bytes)
    name_width = min(max(cells(name) for name, _ in shown), max(width - 60, 8))
    for name, source in shown[:MOST_BARS]:
        lines.append(_bar_line(cut(name, name_width), name_width, source, width))
    if len(shown) > MOST_BARS:
        lines.append([(f"  and {len(shown) - MOST_BARS} more sources", "quiet")])
    if len(shown) > 1:
        lines.append(_bar_line("all", name_width, tally.total, width))
    if tally.total.fraction >= ALMOST:
        left_text = "finishing"
    else:
        left_text = f"{duration(left)} left" if left is not None else "..."
    parts = [f"{size(rate)}/s", f"{scaled(tokens)} tokens/s", tally.units(), left_text]
    wide = width >= NARROW
    lines.append([cut((" " * (name_width + 4) if wide else "  ") + "  ·  ".join(parts), width)])
    return lines


def _bar_line(name: str, name_width: int, source: SourceTally, width: int) -> Line:
    counts = f"{source.documents:>12,} documents"
    if width >= NARROW:
        counts += f" {scaled(source.tokens):>6} tokens"
    done, rest = bar(source.fraction, max(min(width - name_width - 12 - len(counts), 40), 4))
    space = " " * (name_width - cells(name))
    return [f"  {name}{space}  ", (done, "good"), (rest, "quiet"), f" {source.fraction:4.0%} {counts}"]
