"""`packline status`: the progress of a job, from its committed units."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from packline.cli.main import DONE
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
    output.result({"command": "status", "store": store, "exit_code": DONE, **msgspec.to_builtins(found)})
    return DONE


def status_lines(found: Status) -> list[Line]:
    done, rest = bar(found.done_fraction or 0.0, 24)
    resume: list[Line] = []
    if found.state == "interrupted" and found.command:
        resume = [[("resume with", "quiet"), (found.command, "hint")]]
        if Path(found.command_folder) != Path.cwd():
            resume.append([("in", "quiet"), found.command_folder])
    ledger = found.ledger
    name = "build" if found.kind == "store" else "export"
    head: list[Line] = [[(name, "quiet"), found.path], [("state", "quiet"), STATES[found.state]]]
    if len(found.processes) > 1:
        head.append([("shared by", "quiet"), ", ".join(found.processes)])
    if found.driver:
        head.append([("last run", "quiet"), found.driver])
    lines = table(head, "ll", gap=7)
    if found.kind == "export":
        if found.state != "finished":
            parts = _units(found).replace("unit", "part")
            lines.append(["  ", ("committed   ", "quiet"), (done, "good"), (rest, "quiet"), f"  {parts}"])
        return lines + table([[("on disk", "quiet"), size(found.bytes_on_disk)], *resume], "ll", gap=3)
    lines.append(["  ", ("committed   ", "quiet"), (done, "good"), (rest, "quiet"), f"  {_units(found)}"])
    rows: list[Line] = [
        [
            ("documents", "quiet"),
            f"{ledger.documents:,} of {plural(ledger.documents_in, 'record')}, {ledger.bad:,} bad",
        ],
        [("tokens", "quiet"), f"{ledger.tokens:,} of {size(ledger.text_bytes)} of text"],
        [("on disk", "quiet"), size(found.bytes_on_disk)],
    ]
    lines += table([*rows, *resume], "ll", gap=3)
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
