"""`packline report`: a description of a store in one self-contained HTML file."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from packline.cli.analyze import watching
from packline.cli.arguments import Flags, option
from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.viewing.page_file import check_place, write_page
from packline.viewing.report import ROWS, SEQ_LEN, report_page
from packline.viewing.text import size

CONTENTS = Group("What is in it", sort_key=10)
RUNNING = Group("Running", sort_key=20)
_FLAGS = Flags()


def report(
    store: Annotated[str, Parameter(help="Folder of a finished store.")],
    *,
    out: Annotated[
        str, Parameter(name=["--out", "-o"], help="The file; replaced if it is there.")
    ] = "report.html",
    seq_len: Annotated[
        int | None, option(f"Tokens of a row. Default: {SEQ_LEN:,}, or less in a small store.", CONTENTS)
    ] = None,
    packing: Annotated[
        Literal["concat", "best_fit", "pad"] | None,
        option("Of the rows that are shown. Default: concat.", CONTENTS),
    ] = None,
    against: Annotated[
        list[str] | None,
        option("A tokenizer to hold the store's against. May be given several times.", CONTENTS),
    ] = None,
    rows: Annotated[int, option(f"How many rows to show. Default: {ROWS}.", CONTENTS)] = ROWS,
    workers: Annotated[
        int | None, option("Processes. Default: as many as this process may use.", RUNNING)
    ] = None,
    flags: Flags = _FLAGS,
) -> int:
    """Write a report; see `pages`."""
    path = check_place(out)
    with watching() as on_progress:
        page = report_page(
            store,
            seq_len=seq_len,
            packing=packing or "concat",
            against=against or (),
            rows=rows,
            workers=workers,
            on_event=on_progress,
        )
    write_page(page, path)
    written = path.stat().st_size
    lines: list[Line] = [
        [("report", "quiet"), (str(path), "title")],
        [("on", "quiet"), f"{store}: {page.summary}"],
        [("size", "quiet"), f"{size(written)}, opens in any browser"],
    ]
    lines += [[("warning", "warning"), warning] for warning in page.warnings]
    output.lines(table(lines, "ll", width=output.wrap))
    output.result(
        {
            "command": "report",
            "store": store,
            "exit_code": DONE,
            "out": str(path),
            "bytes": written,
            "warnings": list(page.warnings),
        }
    )
    return DONE
