"""`packline info --html`: a description of a store in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from packline.cli.analyze import watching
from packline.cli.main import DONE
from packline.cli.output import output
from packline.viewing.html import check_place, write_page
from packline.viewing.page import KeyValues, Note
from packline.viewing.report import ROWS, report_page
from packline.viewing.text import size


def write_report(
    store: str,
    out: str,
    *,
    seq_len: int | None,
    packing: str | None,
    against: Sequence[str],
    rows: int | None,
    workers: int | None,
) -> int:
    """Write a report of a store."""
    path = check_place(out)
    with watching() as on_progress:
        page = report_page(
            store,
            seq_len=seq_len,
            packing=packing or "concat",
            against=against,
            rows=ROWS if rows is None else rows,
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
            "command": "info",
            "store": store,
            "exit_code": DONE,
            "out": str(path),
            "bytes": written,
            "warnings": list(page.warnings),
        }
    )
    return DONE
