"""Results of the commands that make a store by way of an import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packline.cli.output import Facts, output
from packline.cli.progress import Tally, some, watch
from packline.jobs.events import OnEvent
from packline.jobs.store_job import Imported
from packline.store.ledger import Ledger
from packline.viewing.text import duration, percent, plural, short_name


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


def dry_run(command: str, plan: Callable[[OnEvent], None]) -> int:
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
