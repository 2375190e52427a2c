"""Result of a build: the ledger as a table, rates, and next steps."""

from __future__ import annotations

import shlex

from packline.cli.output import output
from packline.jobs.events import Finished
from packline.store.ledger import Ledger, losses
from packline.viewing.page import Block, KeyValues, Note
from packline.viewing.text import duration, percent, plural, scaled, size


def show_finished(finished: Finished, out: str) -> None:
    """Print the final summary."""
    path = shlex.quote(out)
    done = [Note("nothing to do: the store is complete", "good")] if finished.nothing_to_do else []
    steps = KeyValues((("look at it", f"packline info {path}"), ("check it", f"packline verify {path}")))
    output.line()
    output.blocks(*done, *finished_blocks(finished, out), steps)


def finished_blocks(finished: Finished, out: str) -> list[Block]:
    """Ledger, speed, engines, warnings and the resulting store."""
    from packline.viewing.describe import ledger_table  # it loads readers, which no help page needs

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
        notes.append(Note(f"{count} inside documents", "warning"))
    for name, ledger in finished.sources.items():
        if not ledger.documents:  # a misspelt field of a filter causes that
            lost = ", ".join(f"{count:,} {reason}" for reason, count in losses(ledger)) or "it has no records"
            notes.append(Note(f"source {name} gave no documents: {lost}", "warning"))
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
    """Warn about splits without documents."""
    for line in missing:
        output.warning(line, "request a larger fraction, or assign a source to the split: split of a source")


def too_many_bad(ledger: Ledger, limit: float, out: str) -> tuple[str, str]:
    """Message and hint for more bad records than allowed.

    >>> ledger = Ledger(documents_in=10, rejected={"malformed_json": 2})
    >>> too_many_bad(ledger, 0.01, "store")[0]
    '2 of 10 records are bad (20.0%, more than the 1.0% of --max-bad-fraction): 2 malformed_json'
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger.rejected.items())
    message = (
        f"{ledger.bad:,} of {ledger.documents_in:,} records are bad ({percent(ledger.bad_fraction)}, "
        f"more than the {percent(limit)} of --max-bad-fraction): {reasons}"
    )
    place = f"{out}/rejects/, verbatim in .raw, with the reason in .jsonl"
    hint = f"the store is complete without them; they are in {place}"
    return message, hint
