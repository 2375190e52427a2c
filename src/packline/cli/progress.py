"""Progress of a job: one line while it runs, with a bar on a terminal; its state later; the end of imports.

A build is measured by bytes of text, other jobs by tokens where their number is known, else by units. The
bytes are an estimate from file sizes, and for a compressed file a guess: it grows if there is more text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import packline
from packline.cli.main import DONE, TOO_MANY_BAD, resumable
from packline.cli.output import Facts, Line, Piece, output, table
from packline.jobs.events import (
    BuildPlanned,
    Comparing,
    EnginesTried,
    Event,
    ImportPlanned,
    Note,
    OnEvent,
    Planned,
    Progress,
    ReusePlanned,
    UnitDone,
    UnitsKnown,
)
from packline.store.ledger import Ledger
from packline.viewing.text import (
    bar,
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
    from packline.jobs.status import Status
    from packline.jobs.store_job import Imported


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
                    lines = output.fact_lines(
                        {"engines": f"{' and '.join(event.used)}: {event.reason}"}, gap=4
                    )
                case Note():
                    lines = [[("note: ", "warning"), event.text]]
            for line in lines:
                output.note(*line)
            show(*tally.state())

        yield tally, hear


def plan_lines(planned: Planned, reuse: ReusePlanned | None) -> list[Line]:
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


def imported_values(done: Imported, tally: Tally, out: str) -> dict[str, Any]:
    """Results of an import or of conversations as values for JSON output."""
    planned = tally.planned
    return {
        "store": out,
        "nothing_to_do": done.nothing_to_do,
        "documents": done.manifest.documents,
        "tokens": done.manifest.tokens,
        "seconds": done.seconds,
        "units_done_before": planned.units_done if planned else 0,
        "workers": planned.workers if planned else 0,
        "notes": tally.notes,
    }


def show_plan(command: str, plan: Callable[[OnEvent], None]) -> int:
    """Show the plan of an import or of conversations; nothing is written."""
    with watch() as (tally, hear):
        plan(hear)
    return output.result(command, tally.planned, dry_run=True)


def finished_facts(imported: Imported, out: str) -> Facts:
    manifest = imported.manifest
    counts = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    lost = manifest.ledger.lost_ids or 0
    done = "nothing to do: the store is complete" if imported.nothing_to_do else duration(imported.seconds)
    return {
        "store": (out, "title"),
        "holds": f"{counts} of {short_name(manifest.tokenizer.name)} as {manifest.dtype}",
        "without id": some(lost, f"{plural(lost, 'document')}, whose id is no valid Unicode"),
        "trained on": _trained(manifest.ledger),
        "done": (done, "good"),
        "look at it": f"packline view {out} --document 0",
        "check it": f"packline verify {out}",
    }


def _trained(ledger: Ledger) -> str:
    """Fraction of tokens trained on, and counts of truncation."""
    mask = ledger.mask
    if not mask:
        return ""
    share = percent(mask.trained_tokens / max(ledger.tokens, 1))
    cut = f"; {plural(mask.truncated, 'document')} cut by {plural(mask.truncated_tokens, 'token')}"
    return f"{plural(mask.trained_tokens, 'token')}, {share} of all{some(mask.truncated, cut)}"


STATES: dict[str, Piece] = {
    "finished": ("finished", "good"),
    "running": ("running", "number"),
    "unknown": ("not known: no process has left a sign of life", "quiet"),
    "interrupted": ("interrupted: the command that began it resumes it", "warning"),
}


def status(
    store: Annotated[str, Parameter(help="A store, or the --out of any job.")],
    /,
) -> int:
    """Show the progress of a job.

    Reads committed work only and changes nothing, so it may run during a job
    and after an interruption.

    Examples:

      packline status store
      packline status s3://bucket/store
      packline status store --json
    """
    from packline.jobs.status import status as look

    found = look(store)
    output.lines(status_lines(found))
    return output.result("status", found, store=store)


def status_lines(found: Status) -> list[Line]:
    done, rest = bar(found.done_fraction or 0.0, 24)
    store, ledger, resume = found.kind == "store", found.ledger, ("", "")
    if found.state == "interrupted" and found.command:
        resume = found.command, "" if Path(found.command_folder) == Path.cwd() else found.command_folder
    lines = output.fact_lines(
        {
            "build" if store else "export": found.path,
            "state": STATES[found.state],
            "shared by": ", ".join(found.processes) if len(found.processes) > 1 else "",
            "last run": found.driver,
        },
        gap=7 if store else 6,
    )
    if store or found.state != "finished":
        units = _units(found) if store else _units(found).replace("unit", "part")
        lines.append(["  ", ("committed   ", "quiet"), (done, "good"), (rest, "quiet"), f"  {units}"])
    records = f"{ledger.documents:,} of {plural(ledger.documents_in, 'record')}, {ledger.bad:,} bad"
    lines += output.fact_lines(
        {
            "documents": records if store else "",
            "tokens": f"{ledger.tokens:,} of {size(ledger.text_bytes)} of text" if store else "",
            "on disk": size(found.bytes_on_disk),
            "resume with": (resume[0], "hint") if resume[0] else "",
            "in": resume[1],
        },
        gap=3,
    )
    if len(found.sources) > 1:
        titles: Line = [(word, "quiet") for word in ("source", "documents", "tokens", "text", "bad")]
        sources: list[Line] = [
            [name, f"{one.documents:,}", f"{one.tokens:,}", size(one.text_bytes), f"{one.bad:,}"]
            for name, one in found.sources.items()
        ]
        lines += [[""], *table([titles, *sources], "lrrrr")]
    return lines


def _units(found: Status) -> str:
    if found.units_total is None:
        return f"{plural(found.units_done, 'unit')}, of how many is not known"
    return f"{found.units_done:,} of {units_of(found.units_total, is_exact=found.total_is_exact)}"
