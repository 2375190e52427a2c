"""Progress of a running job on one line, with a bar on a terminal, and its result.

A build is measured by bytes of text, other jobs by tokens where their number is known, else by units. The
bytes are an estimate from file sizes, and for a compressed file a guess: it grows if there is more text.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import packline
from packline.cli.main import DONE, TOO_MANY_BAD, resumable
from packline.cli.output import Facts, Line, output
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
LOOKING = "looking at the inputs, loading the tokenizer ..."
TRYING = "loading the engines, and trying them on some of the documents ..."
TELLING_SECONDS = 1.0
ALMOST = 0.98
"""Maximum fraction of the bar until all inputs have been read to the end."""


def reuse_lines(planned: ReusePlanned) -> list[Line]:
    """Lines that describe a plan of reuse: what is taken over, and by source why the rest is run."""
    count = planned.units + planned.units_run
    text = sum(source.text_bytes for source in planned.sources)
    reasons = [
        f"{source.source}: {plural(number, 'unit')} to run: {reason}"
        for source in planned.sources
        for reason, number in source.run.items()
    ]
    lines = [
        f"{planned.units:,} of {plural(count, 'unit')}, about {size(text)} of text, from {planned.store}",
        *reasons[:SHOWN],
    ]
    if len(reasons) > SHOWN:
        lines.append(f"and {plural(len(reasons) - SHOWN, 'more reason')}; --json lists all")
    if planned.read_bytes:
        lines.append(f"{size(planned.read_bytes)} of inputs were read to compare their content")
    return output.fact_lines({"reuse": lines + [f"damaged: {line}" for line in planned.damaged[:3]]})


class Tally:
    """Sums of a job's events, and its progress.

    Args:
        clock: returns seconds, for rates.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.planned: Planned | None = None
        self.comparing: Comparing | None = None
        self.engines: EnginesTried | None = None
        self.reuse: ReusePlanned | None = None
        self.units_done = 0
        self.rates: dict[str, dict[str, float]] = {}
        """MB/s of the last committed unit, by script and engine."""
        self.notes: list[str] = []
        self._of = (0, True)
        """Units in all, and whether the number is exact."""
        self.documents = self.tokens = self.text_bytes = 0
        """Those of this run."""
        self.earlier = Ledger()
        """Documents and bytes of earlier runs of a build."""
        self._clock, self._began = clock, clock()

    def hear(self, event: Event) -> None:
        match event:
            case Progress():
                self.documents += event.documents
                self.text_bytes += event.text_bytes
                self.tokens += event.tokens
            case UnitDone():
                self.units_done += 1
                self.rates |= event.rates
            case Planned():
                self.planned, self.units_done, self._began = event, event.units_done, self._clock()
                self._of = (event.units, event.is_exact)
                if isinstance(event, BuildPlanned):
                    self.earlier = sum(event.sources_done.values(), Ledger())
            case UnitsKnown():
                self._of = (event.units, event.is_exact)
            case Comparing():
                self.comparing = event
            case ReusePlanned():
                self.reuse = event
            case EnginesTried():
                self.engines, self._began = event, self._clock()
            case Note():
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
            kept = self.earlier.text_bytes
            done = kept + self.text_bytes
            return done, kept, max(sum(planned.sources.values()), done / ALMOST, 1), "bytes"
        if planned.tokens:
            kept = planned.tokens * planned.units_done // max(planned.units, 1)
            by_units = planned.tokens * self.units_done / max(units, 1)
            return min(max(kept + self.tokens, by_units), planned.tokens), kept, planned.tokens, "tokens"
        return self.units_done, planned.units_done, max(units, 1), "units"

    def units(self) -> str:
        """`3 of 64 units`; of about 64 while streams are read, which gain units."""
        units, is_exact = self._of
        return f"{self.units_done:,} of {units_of(max(units, self.units_done), is_exact=is_exact)}"

    def state(self) -> tuple[float, str]:
        """Share of the work that is done, and progress as one line, with mean rates of this run."""
        if self.planned is None and self.comparing is not None:
            new = f"{plural(self.comparing.files, 'input')} with other times, {size(self.comparing.bytes)}"
            share = self.comparing.fraction
            return share, f"{percent(share)}  comparing {new}, with what was read of them"
        if self.planned is None or (isinstance(self.planned, BuildPlanned) and self.engines is None):
            return 0.0, TRYING if self.planned else LOOKING
        done, kept, whole, noun = self.measure()
        parts = [percent(done / whole)]
        if noun == "bytes":
            documents = self.earlier.documents + self.documents
            parts += [plural(documents, "document"), f"{size(self.text_bytes / self.seconds)}/s"]
        parts += [f"{scaled(self.tokens / self.seconds)} tokens/s", self.units()]
        if self.seconds > TELLING_SECONDS and done > kept:
            parts.append(time_left(self.seconds / (done - kept) * (whole - done)))
        return done / whole, "  ".join(parts)

    def kept(self) -> str:
        """Description of what the job has kept, if it is interrupted."""
        if not self.planned:
            return "before the first unit"
        return f"{plural(self.units_done, 'unit')} committed; only those that were running are lost"


@contextmanager
def watch(
    plan: Callable[[Planned], list[Line]] | None = None,
) -> Iterator[tuple[Tally, Callable[[Event], None]]]:
    """Show a running job, which records this command as the one that resumes it.

    Yields its tally, and the function that receives its events.
    """
    tally = Tally()
    with resumable(tally.kept), output.progress() as show:
        show(*tally.state())

        def hear(event: Event) -> None:
            tally.hear(event)
            lines: list[Line] = []
            match event:
                case Planned():
                    lines = plan(event) if plan else plan_lines(event, tally.reuse)
                case ReusePlanned():
                    lines = reuse_lines(event)
                case EnginesTried():
                    lines = output.fact_lines({"engines": engines_used(event)}, gap=4)
                case Note():
                    lines = [[("note: ", "warning"), event.text]]
            for line in lines:
                output.note(*line)
            show(*tally.state())

        yield tally, hear


def engines_used(tried: EnginesTried) -> str:
    return f"{' and '.join(tried.used)}: {tried.reason}"


def plan_lines(planned: Planned, reuse: ReusePlanned | None = None) -> list[Line]:
    """Lines on the plan of a build, or of an import."""
    if isinstance(planned, ImportPlanned):
        known = [
            *([plural(planned.documents, "document")] if planned.documents is not None else []),
            *([plural(planned.tokens, "token")] if planned.tokens is not None else []),
        ]
        what = f"{planned.format}: {plural(planned.files, 'file')}, {size(planned.bytes)}"
        kept = f", {plural(planned.units_done, 'unit')} kept" if planned.units_done else ""
        return [[", ".join([what, *known]) + f" in {plural(planned.units, 'unit')}{kept}"]]
    if not isinstance(planned, BuildPlanned):
        return []
    expected = sum(planned.sources.values())
    units = units_of(planned.units, is_exact=planned.is_exact)
    work = f"{plural(planned.files, 'file')}, about {size(expected)} of text, {units}"
    reused = 0 if reuse is None else reuse.units
    if earlier := planned.units_done - reused:
        work += f", {earlier:,} of them done by an earlier run"
    if reused:
        work += f", {reused:,} of them reused"
    facts: Facts = {
        "inputs": work,
        "tokenizer": f"{short_name(planned.tokenizer)}, {planned.vocab_size:,} tokens as {planned.dtype}, "
        f"documents end with {planned.eod} ({planned.eod_id})",
        "workers": plural(planned.workers, "worker process", "worker processes")
        if planned.workers
        else "none: all here",
    }
    return [[("packline ", "title"), packline.__version__], *output.fact_lines(facts)]


def training_state(now: TrainingProgress, seconds: float) -> tuple[float, str]:
    """Share of the merges that are found, and the progress of a training as one line."""
    learned = f"{plural(now.documents, 'document')}, {size(now.text_bytes)} of text"
    if now.merges:
        return now.merges / now.wanted, f"{learned}  {now.merges:,} of {now.wanted:,} merges"
    return 0.0, f"counting words of {learned}  {size(int(now.text_bytes / max(seconds, 0.1)))}/s"


@contextmanager
def watch_training() -> Iterator[Callable[[TrainingProgress], None]]:
    """Show a running training. Yields the function that receives its progress."""
    began = time.monotonic()
    with output.progress() as show:
        show(0.0, "looking at the inputs ...")
        yield lambda progress: show(*training_state(progress, time.monotonic() - began))


@contextmanager
def watch_bytes(name: str, at_the_end: str = "") -> Iterator[Callable[[int, int], None]]:
    """Show how much is read. Yields the function that receives the bytes done and in all."""
    began = time.monotonic()
    with output.progress() as show:

        def hear(done: int, whole: int) -> None:
            share, rate = done / max(whole, 1), done / max(time.monotonic() - began, 0.1)
            line = f"{name}  {percent(share)}  {size(done)} of {size(whole)}  {size(rate)}/s"
            show(share, at_the_end if at_the_end and done == whole else line)

        show(0.0, name)
        yield hear


def some(count: int | None, text: str) -> str:
    """The text, if the count is not 0."""
    return text if count else ""


def training_facts(report: TrainingReport, out: str, max_chars: int | None, doc_chars: int | None) -> Facts:
    one = report.token_bytes
    special = ", ".join(f"{token} {number}" for token, number in report.special_tokens.items())
    learned = f"{plural(report.documents, 'document')} of {plural(report.files, 'file')}"
    cut, left_out, held_out, notes = report.cut_documents, report.left_out, report.held_out, []
    if report.vocab_size < report.asked_vocab_size:
        notes.append(f"no pair was left to merge: {report.asked_vocab_size:,} tokens were requested")
    if report.forgotten_words:
        forgotten = f"{report.forgotten_words:,} rare words did not fit into memory"
        notes.append(f"{forgotten}, {percent(report.forgotten_share)} of the distinct ones")
    return {
        "tokenizer": (out, "title"),
        "vocabulary": f"{report.vocab_size:,} tokens, {report.merges:,} merges, pattern {report.pattern}",
        "special tokens": f"{len(report.special_tokens)}: {special}" if special else "none",
        "token bytes": f"min {one.min}, max {one.max}, mean {one.mean:.2f}, std {one.std:.2f}",
        "learned from": f"{learned}, {size(report.text_bytes)}",
        "words": some(report.words, f"{report.words or 0:,} distinct"),
        "stopped": some(report.stopped_early, f"at {max_chars or 0:,} characters; what follows was not read"),
        "cut": some(cut, f"{plural(cut, 'document')} at {doc_chars or 0:,} characters"),
        "left out": some(left_out, f"{plural(left_out, 'document')} that are empty or filtered"),
        "held out": some(held_out, f"{plural(held_out, 'document')} for validation and testing"),
        "time": f"{duration(report.seconds)}, trained by {report.trainer}",
        "note": notes,
        "bad records": [f"{count:,} {reason}" for reason, count in report.bad_records.items()],
    }


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


def warn_of_bad(ledger: Ledger, limit: float, out: str) -> int:
    """Warn of more bad records than allowed; return the exit code."""
    if ledger.bad_fraction <= limit:
        return DONE
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger.rejected.items())
    message = (
        f"{ledger.bad:,} of {ledger.documents_in:,} records are bad ({percent(ledger.bad_fraction)}, "
        f"more than the {percent(limit)} of --max-bad-fraction): {reasons}"
    )
    place = f"{out}/rejects/, verbatim in .raw, with the reason in .jsonl"
    hint = f"the store is complete without them; they are in {place}"
    if "invalid_utf8" in ledger.rejected:
        hint += "; iconv converts a text to UTF-8, or name its encoding: --charset latin-1, utf-16, ..."
    output.warning(message, hint)
    return TOO_MANY_BAD
