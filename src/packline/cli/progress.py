"""Progress of a running job: bars on a terminal, otherwise an occasional line.

`Tally` adds up events and is independent of terminals; the rest displays it. A build has a bar for each of
its sources, by bytes of text; other jobs have one bar, by tokens where their number is known, else by units.
The size of a source is an estimate from file sizes, and for a compressed file a guess: if it yields more text
than expected, the expected size grows with it. Rates are those of the last ten seconds, so that they show the
current speed.
"""

from __future__ import annotations

import shlex
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import packline
from packline.cli.main import note_command
from packline.cli.output import Line, output, table
from packline.cli.reuse_lines import comparing_line, reuse_lines
from packline.jobs.events import (
    BuildPlanned,
    Comparing,
    EnginesTried,
    Event,
    Finished,
    ImportPlanned,
    Note,
    Planned,
    Progress,
    ReusePlanned,
    UnitDone,
    UnitsKnown,
)
from packline.store.ledger import Ledger, losses
from packline.viewing.ledger import ledger_table
from packline.viewing.page import Block, KeyValues
from packline.viewing.page import Note as NoteBlock
from packline.viewing.text import (
    bar,
    cells,
    cut,
    duration,
    percent,
    plural,
    scaled,
    size,
    time_left,
    units_of,
)

if TYPE_CHECKING:
    from packline.vocabulary.trained_folder import TrainingReport
    from packline.vocabulary.training import TrainingProgress

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
        self.comparing: Comparing | None = None
        self.engines: EnginesTried | None = None
        self.reuse: ReusePlanned | None = None
        self.sources: dict[str, SourceTally] = {}
        self.units_done = 0
        self.rates: dict[str, dict[str, float]] = {}
        """MB/s of the last committed unit, by script and engine."""
        self.notes: list[str] = []
        self._of = (0, True)
        """Units in all, and whether the number is exact."""
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
            self._of = (event.units, event.is_exact)
            if isinstance(event, BuildPlanned):
                self.sources = {name: SourceTally(expected) for name, expected in event.sources.items()}
                for name, ledger in event.sources_done.items():
                    done = SourceTally(
                        event.sources[name], ledger.documents, ledger.text_bytes, ledger.tokens
                    )
                    self.sources[name] = done
        elif isinstance(event, UnitsKnown):
            self._of = (event.units, event.is_exact)
        elif isinstance(event, Comparing):
            self.comparing = event
        elif isinstance(event, ReusePlanned):
            self.reuse = event
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
        """`3 of 64 units`; of about 64 while streams are read, which gain units."""
        units, is_exact = self._of
        return f"{self.units_done:,} of {units_of(units, is_exact=is_exact)}"

    @property
    def fraction(self) -> float:
        """Completed fraction: by tokens if their number is known, else by units."""
        planned = self.planned
        if planned is None:
            return 0.0
        by_units = self.units_done / max(self._of[0], 1)
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
            parts.append(time_left(seconds / done * (1 - self.fraction)))
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
            elif isinstance(event, ReusePlanned):
                for line in reuse_lines(event):
                    output.note(*line)
            elif isinstance(event, EnginesTried):
                for line in engine_lines(event):
                    output.note(*line)
            elif isinstance(event, Note):
                output.note(("note: ", "warning"), event.text)
            elif isinstance(event, Comparing | Progress | UnitDone):
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
    units = units_of(planned.units, is_exact=planned.is_exact)
    work = f"{plural(planned.files, 'file')}, about {size(expected)} of text, {units}"
    if earlier := planned.units_done - planned.units_reused:
        work += f", {earlier:,} of them done by an earlier run"
    if planned.units_reused:
        work += f", {planned.units_reused:,} of them reused"
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
    if tally.planned is None and tally.comparing is not None:
        return comparing_line(tally.comparing)
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
        parts.append(time_left(left))
    return "  ".join(parts)


def draw(tally: Tally, width: int) -> list[Line]:
    """One bar per source and a line for the total, or one bar."""
    if tally.planned is None:
        looking = "looking at the inputs, loading the tokenizer ..."
        return [[(f"  {comparing_line(tally.comparing) if tally.comparing else looking}", "quiet")]]
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
        left_text = time_left(left) if left is not None else "..."
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


class TrainingTally:
    """Latest progress report, and the start time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.last: TrainingProgress | None = None
        self._clock, self._began = clock, clock()

    def line(self) -> str:
        """Progress as one line."""
        now = self.last
        if now is None:
            return "looking at the inputs ..."
        learned = f"{plural(now.documents, 'document')}, {size(now.text_bytes)} of text"
        if now.merges:
            return f"{learned}  {now.merges:,} of {now.wanted:,} merges"
        seconds = max(self._clock() - self._began, 0.1)
        return f"counting words of {learned}  {size(int(now.text_bytes / seconds))}/s"

    def draw(self, width: int) -> list[Line]:
        """Progress for a terminal: a bar while merges are found, since their number is known."""
        if self.last is None or not self.last.merges:
            return [[(f"  {self.line()}", "quiet")]]
        done, rest = bar(self.last.merges / self.last.wanted, min(max(width - 70, 8), 40))
        return [["  ", (done, "good"), (rest, "quiet"), "  ", self.line()]]


@contextmanager
def watch_training() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show a running training. Yields the function that receives its progress."""
    tally = TrainingTally()
    with output.follow(tally.draw, tally.line) as tick:

        def hear(progress: TrainingProgress) -> None:
            tally.last = progress
            tick()

        yield hear


def training_lines(
    report: TrainingReport, out: str, max_chars: int | None, doc_chars: int | None
) -> list[Line]:
    """Summary of a training, as lines of a table."""
    one = report.token_bytes
    special = ", ".join(f"{token} {number}" for token, number in report.special_tokens.items())
    learned = f"{plural(report.documents, 'document')} of {plural(report.files, 'file')}"
    facts = {
        "vocabulary": f"{report.vocab_size:,} tokens, {report.merges:,} merges, pattern {report.pattern}",
        "special tokens": f"{len(report.special_tokens)}: {special}" if special else "none",
        "token bytes": f"min {one.min}, max {one.max}, mean {one.mean:.2f}, std {one.std:.2f}",
        "learned from": f"{learned}, {size(report.text_bytes)}",
    }
    if report.words is not None:
        facts["words"] = f"{report.words:,} distinct"
    if report.stopped_early:
        facts["stopped"] = f"at {max_chars:,} characters; what follows was not read"
    if report.cut_documents:
        facts["cut"] = f"{plural(report.cut_documents, 'document')} at {doc_chars:,} characters"
    if report.left_out:
        facts["left out"] = f"{plural(report.left_out, 'document')} that are empty or filtered"
    if report.held_out:
        facts["held out"] = f"{plural(report.held_out, 'document')} for validation and testing"
    facts["time"] = f"{duration(report.seconds)}, trained by {report.trainer}"
    rows: list[Line] = [[("tokenizer", "quiet"), (out, "title")]]
    rows += [[(name, "quiet"), fact] for name, fact in facts.items()]
    if report.vocab_size < report.asked_vocab_size:
        text_ran_out = f"no pair was left to merge: {report.asked_vocab_size:,} tokens were requested"
        rows.append([("note", "warning"), text_ran_out])
    if report.forgotten_words:
        forgotten = f"{report.forgotten_words:,} rare words did not fit into memory"
        share = f"{percent(report.forgotten_share)} of the distinct ones"
        rows.append([("note", "warning"), f"{forgotten}, {share}"])
    for reason, count in report.bad_records.items():
        rows.append([("bad records", "warning"), f"{count:,} {reason}"])
    return rows


def show_finished(finished: Finished, out: str) -> None:
    """Print the final summary."""
    path = shlex.quote(out)
    done = [NoteBlock("nothing to do: the store is complete", "good")] if finished.nothing_to_do else []
    steps = KeyValues((("look at it", f"packline info {path}"), ("check it", f"packline verify {path}")))
    output.line()
    output.blocks(*done, *finished_blocks(finished, out), steps)


def finished_blocks(finished: Finished, out: str) -> list[Block]:
    """Ledger, speed, engines, warnings and the resulting store."""
    rows: list[tuple[str, str]] = []
    if finished.run_text_bytes:
        whole = f"{size(finished.run_text_bytes)} of text in {duration(finished.seconds)}"
        rows.append(("time", f"{whole}, {duration(finished.first_unit_seconds)} of it start-up"))
        rows.append(("speed", f"{_speed(finished)} after start-up"))
    if shares := engine_shares(finished):
        rows.append(("encoded by", ", ".join(f"{name} {percent(share)}" for name, share in shares.items())))
    if finished.peak_rss_bytes:
        rows.append(("memory", f"peak {size(finished.peak_rss_bytes)} (largest worker)"))
    rows.append(("store", f"{out}: {plural(finished.shards, 'shard')}, {size(finished.store_bytes)}"))
    notes: list[Block] = []
    if finished.ledger.special_token_strings:
        count = plural(finished.ledger.special_token_strings, "special-token string")
        notes.append(NoteBlock(f"{count} inside documents", "warning"))
    for name, ledger in finished.sources.items():
        if not ledger.documents:  # a misspelt field of a filter causes that
            lost = ", ".join(f"{count:,} {reason}" for reason, count in losses(ledger)) or "it has no records"
            notes.append(NoteBlock(f"source {name} gave no documents: {lost}", "warning"))
    return [ledger_table(finished.ledger), *notes, KeyValues(tuple(rows))]


def _speed(finished: Finished) -> str:
    running = max(finished.seconds - finished.first_unit_seconds, 1e-3)
    tokens = finished.ledger.tokens * finished.run_text_bytes / max(finished.ledger.text_bytes, 1)
    return f"{size(finished.run_text_bytes / running)}/s, {scaled(tokens / running)} tokens/s"


def engine_shares(finished: Finished) -> dict[str, float]:
    """Share of the text encoded by each engine, largest first."""
    whole = sum(finished.engine_bytes.values())
    ordered = sorted(finished.engine_bytes.items(), key=lambda item: -item[1])
    return {name: size / whole for name, size in ordered if size} if whole else {}


def warn_of_splits(missing: list[str]) -> None:
    """Warn about splits without documents."""
    for line in missing:
        output.warning(line, "request --val-documents 100, a larger fraction, or a source as the split")


def too_many_bad(ledger: Ledger, limit: float, out: str) -> tuple[str, str]:
    """Message and hint for more bad records than allowed.

    >>> ledger = Ledger(documents_in=10, rejected={"malformed_json": 2})
    >>> too_many_bad(ledger, 0.01, "store")[0]
    '2 of 10 records are bad (20.0%, more than the 1.0% of --max-bad-fraction): 2 malformed_json'
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger.rejected.items())
    message = (
        f"{ledger.bad:,} of {ledger.documents_in:,} records are bad ({percent(ledger.bad_fraction)}, "
        f"more than the {percent(limit)} of --max-bad-fraction): {reasons}"
    )
    place = f"{out}/rejects/, verbatim in .raw, with the reason in .jsonl"
    hint = f"the store is complete without them; they are in {place}"
    if "invalid_utf8" in ledger.rejected:
        hint += "; iconv converts a text to UTF-8, or name its encoding: --charset latin-1, utf-16, ..."
    return message, hint
