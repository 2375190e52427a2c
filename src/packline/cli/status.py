"""`packline status`: the progress of a job, from its committed units."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from packline.cli.output import Line, Piece, output, table
from packline.jobs.status import Status
from packline.jobs.status import status as look
from packline.viewing.text import bar, plural, size, units_of

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
