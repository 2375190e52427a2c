"""`packline report`: a description of a store in one self-contained HTML file."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

from packline.cli.analyze import watching
from packline.cli.arguments import Count, Flags, Length, option
from packline.cli.main import DONE
from packline.cli.output import output
from packline.viewing.html import check_place, write_page
from packline.viewing.page import KeyValues, Note
from packline.viewing.report import ROWS, SEQ_LEN, report_page
from packline.viewing.text import size

CONTENTS = Group("Contents", sort_key=10)
RUNNING = Group("Running", sort_key=20)
_FLAGS = Flags()


def report(
    store: Annotated[str, Parameter(help="Folder of a finished store.")],
    /,
    *,
    out: Annotated[
        str, Parameter(name=["--out", "-o"], help="File to write; replaced if it exists.")
    ] = "report.html",
    seq_len: Annotated[
        Length | None, option(f"Tokens per row. Default: {SEQ_LEN:,}, or fewer for a small store.", CONTENTS)
    ] = None,
    packing: Annotated[
        Literal["concat", "best_fit", "pad"] | None,
        option("Packing of the rows shown. Default: concat.", CONTENTS),
    ] = None,
    against: Annotated[
        list[str] | None,
        option("Tokenizer to compare with. May be repeated.", CONTENTS),
    ] = None,
    rows: Annotated[Count, option(f"Number of rows to show. Default: {ROWS}.", CONTENTS)] = ROWS,
    workers: Annotated[
        int | None, option("Number of processes. Default: one per usable core.", RUNNING)
    ] = None,
    flags: Flags = _FLAGS,
) -> int:
    """Write a report; see `help_texts`."""
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
    facts = (
        ("report", str(path)),
        ("store", f"{store}: {page.summary}"),
        ("size", f"{size(written)}, opens in any browser"),
    )
    output.blocks(KeyValues(facts), *(Note(f"warning: {text}", "warning") for text in page.warnings))
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
