"""Progress of a running job: bars on a terminal, otherwise an occasional line.

`Tally` adds up events and is independent of terminals; `cli.transfer` displays it. A build has a bar for each
of its sources and one for all, by bytes of text; other jobs have one bar, by tokens where their number is
known, else by units. The size of a source is an estimate from file sizes, and for a compressed file a guess:
if it yields more text than expected, the expected size grows with it.

Report of what a build takes over from an earlier store, and of inputs that are compared with it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import packline
from packline.cli.main import recorded
from packline.cli.output import MOST_BARS, Line, Row, State, output, table
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
from packline.viewing.page import Block, KeyValues
from packline.viewing.page import Note as NoteBlock
from packline.viewing.summaries import ledger_table
from packline.viewing.text import (
    duration,
    percent,
    plural,
    scaled,
    short_name,
    size,
    time_left,
    units_of,
)

if TYPE_CHECKING:
    from packline.vocabulary.trained_folder import TrainingReport
    from packline.vocabulary.training import TrainingProgress


SHOWN = 12
"""Largest number of reasons that are shown."""


def reuse_lines(planned: ReusePlanned) -> list[Line]:
    """Lines that describe a plan of reuse: what is taken over, and by source why the rest is run."""
    count = planned.units + planned.units_run
    text = sum(source.text_bytes for source in planned.sources)
    rows: list[Line] = [
        [
            ("reuse", "quiet"),
            f"{planned.units:,} of {plural(count, 'unit')}, about {size(text)} of text, from {planned.store}",
        ]
    ]
    reasons = [
        f"{source.source}: {plural(number, 'unit')} to run: {reason}"
        for source in planned.sources
        for reason, number in source.run.items()
    ]
    rows += [["", line] for line in reasons[:SHOWN]]
    if len(reasons) > SHOWN:
        rows.append(["", f"and {plural(len(reasons) - SHOWN, 'more reason')}; --json lists all"])
    if planned.read_bytes:
        rows.append(["", f"{size(planned.read_bytes)} of inputs were read to compare their content"])
    rows += [["", (f"damaged: {line}", "warning")] for line in planned.damaged[:3]]
    return table(rows, "ll", width=output.wrap)


def comparing_line(event: Comparing) -> str:
    what = f"{plural(event.files, 'input')} with other times, {size(event.bytes)}"
    return f"{percent(event.fraction)}  comparing {what}, with what was read of them"


TELLING_SECONDS = 1.0
LOOKING = "looking at the inputs, loading the tokenizer ..."
ALMOST = 0.98
"""Maximum fraction of a bar until its source has been read to the end."""


@dataclass(slots=True)
class SourceTally:
    expected_bytes: int
    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0

    @property
    def whole_bytes(self) -> float:
        """Estimate of all bytes; more than were read until now."""
        return max(self.expected_bytes, self.text_bytes / ALMOST, 1)


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
        self.text_bytes = 0
        """Bytes of text of this run."""
        self._clock, self._began = clock, clock()

    def hear(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.tokens += event.tokens
            source = self.sources.setdefault(event.source, SourceTally(0))
            source.documents += event.documents
            source.text_bytes += event.text_bytes
            source.tokens += event.tokens
            self.text_bytes += event.text_bytes
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
            self.engines, self._began = event, self._clock()
        elif isinstance(event, Note):
            self.notes.append(event.text)

    @property
    def seconds(self) -> float:
        """Seconds since the plan, or since the engines were tried."""
        return max(self._clock() - self._began, 0.1)

    def measure(self) -> tuple[float, float, float, str]:
        """Work that is done, that of earlier runs in it, the whole, and its unit."""
        planned, (units, _) = self.planned, self._of
        assert planned is not None
        if isinstance(planned, BuildPlanned):
            done = sum(source.text_bytes for source in self.sources.values())
            whole = sum(source.whole_bytes for source in self.sources.values())
            return done, done - self.text_bytes, whole, "bytes"
        if planned.tokens:
            kept = planned.tokens * planned.units_done / max(planned.units, 1)
            by_units = planned.tokens * self.units_done / max(units, 1)
            return min(max(kept + self.tokens, by_units), planned.tokens), kept, planned.tokens, "tokens"
        return self.units_done, planned.units_done, max(units, 1), "units"

    def units(self) -> str:
        """`3 of 64 units`; of about 64 while streams are read, which gain units."""
        units, is_exact = self._of
        return f"{self.units_done:,} of {units_of(max(units, self.units_done), is_exact=is_exact)}"

    def line(self) -> str:
        """Progress as one line, with mean rates of this run."""
        if self.planned is None:
            return comparing_line(self.comparing) if self.comparing else LOOKING
        done, kept, whole, noun = self.measure()
        parts = [percent(done / whole)]
        if noun == "bytes":
            documents = sum(source.documents for source in self.sources.values())
            parts += [plural(documents, "document"), f"{size(self.text_bytes / self.seconds)}/s"]
        parts += [f"{scaled(self.tokens / self.seconds)} tokens/s", self.units()]
        if self.seconds > TELLING_SECONDS and done > kept:
            parts.append(time_left(self.seconds / (done - kept) * (whole - done)))
        return "  ".join(parts)

    def state(self) -> State:
        """Progress as bars: one per source and one for all, or one."""
        if self.planned is None:
            return self.line()
        done, _, whole, noun = self.measure()
        if noun != "bytes":
            return [Row("", done, whole, noun, self.units())]
        if self.engines is None:
            return "loading the engines, and trying them on some of the documents ..."
        sources = sorted(self.sources.items(), key=lambda item: -item[1].expected_bytes)
        rows = [
            Row(name, source.text_bytes, source.whole_bytes, noun, plural(source.documents, "document"))
            for name, source in sources[:MOST_BARS]
            if len(sources) > 1
        ]
        together = "all" if len(sources) <= MOST_BARS else f"all {len(sources)} sources"
        name = sources[0][0] if len(sources) == 1 else together
        return [*rows, Row(name, done, whole, noun, self.units())]


def kept(tally: Tally) -> str:
    """Description of what an interrupted job has kept."""
    if not tally.planned:
        return "before the first unit"
    return f"{plural(tally.units_done, 'unit')} committed; only those that were running are lost"


@contextmanager
def watch(
    tally: Tally,
    plan: Callable[[Planned], list[Line]] | None = None,
) -> Iterator[Callable[[Event], None]]:
    """Show a running job, which records this command as the one that resumes it.

    Yields the function that receives its events.

    Args:
        plan: lines that describe the plan; by default those for a store.
    """
    describe = plan or plan_lines
    with output.follow(tally.state, tally.line) as tick, recorded():

        def hear(event: Event) -> None:
            tally.hear(event)
            if isinstance(event, Planned):
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
    if isinstance(planned, BuildPlanned):
        return build_lines(planned)
    return import_lines(planned) if isinstance(planned, ImportPlanned) else []


def import_lines(planned: ImportPlanned) -> list[Line]:
    known = [
        *([plural(planned.documents, "document")] if planned.documents is not None else []),
        *([plural(planned.tokens, "token")] if planned.tokens is not None else []),
    ]
    what = f"{planned.format}: {plural(planned.files, 'file')}, {size(planned.bytes)}"
    kept = f", {plural(planned.units_done, 'unit')} kept" if planned.units_done else ""
    return [[", ".join([what, *known]) + f" in {plural(planned.units, 'unit')}{kept}"]]


def build_lines(planned: BuildPlanned) -> list[Line]:
    expected = sum(planned.sources.values())
    units = units_of(planned.units, is_exact=planned.is_exact)
    work = f"{plural(planned.files, 'file')}, about {size(expected)} of text, {units}"
    if earlier := planned.units_done - planned.units_reused:
        work += f", {earlier:,} of them done by an earlier run"
    if planned.units_reused:
        work += f", {planned.units_reused:,} of them reused"
    tokens = (
        f"{short_name(planned.tokenizer)}, {planned.vocab_size:,} tokens as {planned.dtype}, "
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

    def state(self) -> State:
        """Progress for a terminal: a bar while merges are found, since their number is known."""
        now = self.last
        return [Row("", now.merges, now.wanted, "merges")] if now and now.merges else self.line()


@contextmanager
def watch_training() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show a running training. Yields the function that receives its progress."""
    tally = TrainingTally()
    with output.follow(tally.state, tally.line) as tick, recorded():

        def hear(progress: TrainingProgress) -> None:
            tally.last = progress
            tick()

        yield hear


@contextmanager
def watch_bytes(name: str, at_the_end: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show how much is read, on a terminal. Yields the function that receives the bytes done and in all.

    Args:
        at_the_end: text after the last byte, until the block ends.
    """
    row = Row(name, 0, None, "bytes")

    def hear(done: int, whole: int) -> None:
        nonlocal row
        row = Row(name, done, max(whole, 1), "bytes")

    with output.follow(lambda: at_the_end if at_the_end and row.done == row.whole else [row]):
        yield hear


def training_lines(
    report: TrainingReport, out: str, max_chars: int | None, doc_chars: int | None
) -> list[Line]:
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
