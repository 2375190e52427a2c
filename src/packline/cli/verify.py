"""`packline verify`: check a store and list what is wrong."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE, FAILED
from packline.cli.output import Line, output, table
from packline.cli.text import bar, duration, plural, size
from packline.store.report import Report

_FLAGS = Flags()


def verify(
    store: Annotated[str, Parameter(help="Folder of a finished store.")],
    *,
    deep: Annotated[
        bool,
        Parameter(help="Also read the inputs again and compare documents.", negative="", show_default=False),
    ] = False,
    flags: Flags = _FLAGS,
) -> int:
    """Check a store from its files alone; see `pages`."""
    report = run_verify(store, deep)
    output.lines(report_lines(report))
    code = DONE if report.ok else FAILED
    values: dict[str, Any] = msgspec.to_builtins(report)
    output.result({"command": "verify", "store": store, "exit_code": code, **values})
    return code


def run_verify(store: str, deep: bool) -> Report:
    """Verify, with a bar on a terminal."""
    import packline.store.verify

    done = [0, 1]

    def hear(read: int, whole: int) -> None:
        done[:] = [read, max(whole, 1)]

    def draw(width: int) -> list[Line]:
        share = done[0] / done[1]
        full, rest = bar(share, min(width - 40, 40))
        what = "  comparing documents with the inputs ..." if deep and share >= 1 else f" {share:4.0%} read"
        return [["  verifying  ", (full, "good"), (rest, "quiet"), what]]

    if not output.interactive:
        return packline.store.verify.verify(store, deep=deep)
    with output.live(draw):
        return packline.store.verify.verify(store, deep=deep, on_progress=hear)


def report_lines(report: Report) -> list[Line]:
    """What was looked at and what is wrong."""
    lines: list[Line] = [[("problem: ", "error"), str(problem)] for problem in report.problems]
    if report.problems_not_listed:
        lines.append([("problem: ", "error"), f"and {report.problems_not_listed:,} more"])
    looked = f"{plural(report.files, 'file')}, {size(report.bytes)}, {plural(report.documents, 'document')}"
    whole = f"{looked}, {plural(report.tokens, 'token')} in {duration(report.seconds)}"
    rows: list[Line] = [[("checked", "quiet"), whole]]
    if report.deep is not None:
        deep = report.deep
        compared = f"{plural(deep.documents, 'document')} of {plural(deep.shards, 'shard')}"
        by = f"by the reference tokenizer, {deep.decoded:,} of them also decoded"
        rows.append([("encoded again", "quiet"), f"{compared} {by}"])
        rows += [[("not compared", "warning"), note] for note in deep.notes]
    count = len(report.problems) + report.problems_not_listed
    verdict = ("all is well", "good") if report.ok else (plural(count, "problem"), "error")
    rows.append([("verdict", "quiet"), verdict])
    return [*lines, *table(rows, "ll", width=output.wrap)]
