"""Results of the commands that make a store by way of an import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.cli.progress import Tally, watch
from packline.jobs.events import OnEvent
from packline.jobs.store_job import Imported
from packline.store.ledger import Ledger
from packline.viewing.text import duration, percent, plural, short_name


def imported_facts(command: str, done: Imported, tally: Tally, out: str, code: int) -> dict[str, Any]:
    """Results of an import or of conversations as values for JSON output."""
    planned = tally.planned
    return {
        "command": command,
        "store": out,
        "exit_code": code,
        "nothing_to_do": done.nothing_to_do,
        "documents": done.manifest.documents,
        "tokens": done.manifest.tokens,
        "seconds": done.seconds,
        "units_done_before": planned.units_done if planned else 0,
        "workers": planned.workers if planned else 0,
        "notes": tally.notes,
    }


def dry_run(command: str, out: str, plan: Callable[[OnEvent], None]) -> int:
    """Show the plan of an import or of conversations; nothing is written."""
    tally = Tally()
    with watch(tally) as hear:
        plan(hear)
    facts = msgspec.to_builtins(tally.planned)
    output.result({"command": command, "dry_run": True, "exit_code": DONE, **facts})
    return DONE


def finished_lines(imported: Imported, out: str) -> list[Line]:
    manifest = imported.manifest
    counts = f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"
    done = "nothing to do: the store is complete" if imported.nothing_to_do else duration(imported.seconds)
    rows: list[Line] = [
        [("store", "quiet"), (out, "title")],
        [("holds", "quiet"), f"{counts} of {short_name(manifest.tokenizer.name)} as {manifest.dtype}"],
        [("done", "quiet"), (done, "good")],
        [("look at it", "quiet"), f"packline view {out} --document 0"],
        [("check it", "quiet"), f"packline verify {out}"],
    ]
    if trained := _mask_line(manifest.ledger):
        rows.insert(2, [("trained on", "quiet"), trained])
    if lost := manifest.ledger.lost_ids:
        rows.insert(2, [("without id", "quiet"), f"{plural(lost, 'document')}, whose id is no valid Unicode"])
    return table(rows, "ll", width=output.wrap)


def _mask_line(ledger: Ledger) -> str:
    """Fraction of tokens trained on, and counts of truncation."""
    mask = ledger.mask
    if not mask:
        return ""
    share = percent(mask.trained_tokens / max(ledger.tokens, 1))
    line = f"{plural(mask.trained_tokens, 'token')}, {share} of all"
    if mask.truncated:
        line += f"; {plural(mask.truncated, 'document')} cut by {plural(mask.truncated_tokens, 'token')}"
    return line
