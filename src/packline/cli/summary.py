"""Result of a build: the ledger as a table, rates, and next steps."""

from __future__ import annotations

import shlex

from packline.cli.output import Line, Piece, output, table
from packline.jobs.events import Finished
from packline.store.ledger import Ledger, losses
from packline.viewing.text import duration, percent, plural, scaled, size


def ledger_lines(ledger: Ledger) -> list[Line]:
    """The ledger as a table: documents on the left, tokens on the right, each adding up to its last line."""
    left: list[tuple[Piece, Piece]] = [("records in", f"{ledger.documents_in:,}")]
    left += [((name, "warning"), (f"-{count:,}", "warning")) for name, count in losses(ledger)]
    right: list[tuple[Piece, Piece]] = [
        ("of text", f"{ledger.text_tokens:,}"),
        ("end of document", f"{ledger.eod_tokens:,}"),
    ]
    if ledger.bos_tokens:
        right.append(("begin of document", f"{ledger.bos_tokens:,}"))
    height = max(len(left), len(right))
    left += [("", "")] * (height - len(left))
    right += [("", "")] * (height - len(right))
    left.append((("documents", "title"), (f"{ledger.documents:,}", "title")))
    right.append((("tokens", "title"), (f"{ledger.tokens:,}", "title")))
    rows: list[Line] = [[*one, "  ", *other] for one, other in zip(left, right, strict=True)]
    return table(rows, "lrllr")


def show_finished(finished: Finished, out: str) -> None:
    """Print the final summary."""
    output.line()
    if finished.nothing_to_do:
        output.line("  ", ("nothing to do: ", "good"), "the store is complete")
        output.line()
    output.lines(ledger_lines(finished.ledger))
    output.line()
    output.lines(finished_lines(finished, out))
    output.line()
    path = shlex.quote(out)
    rows: list[Line] = [
        [("look at it", "quiet"), f"packline info {path}"],
        [("check it", "quiet"), f"packline verify {path}"],
    ]
    output.lines(table(rows, "ll"))


def finished_lines(finished: Finished, out: str) -> list[Line]:
    """Lines on speed, engines and the resulting store."""
    rows: list[Line] = []
    if finished.run_text_bytes:
        whole = f"{size(finished.run_text_bytes)} of text in {duration(finished.seconds)}"
        rows.append(
            [
                ("time", "quiet"),
                f"{whole}, {duration(finished.first_unit_seconds)} start-up",
            ]
        )
        rows.append([("speed after it", "quiet"), _speed(finished)])
    if shares := engine_shares(finished):
        rows.append(
            [("encoded by", "quiet"), ", ".join(f"{name} {percent(share)}" for name, share in shares.items())]
        )
    if finished.peak_rss_bytes:
        rows.append([("memory", "quiet"), f"peak {size(finished.peak_rss_bytes)} (largest worker)"])
    if finished.ledger.special_token_strings:
        count = plural(finished.ledger.special_token_strings, "special-token string")
        rows.append([("note", "warning"), f"{count} inside documents"])
    for name, ledger in finished.sources.items():
        if not ledger.documents:  # a misspelt field of a filter causes that
            lost = ", ".join(f"{count:,} {what}" for what, count in losses(ledger)) or "it has no records"
            rows.append([("note", "warning"), f"source {name} gave no documents: {lost}"])
    rows.append(
        [("store", "quiet"), f"{out}: {plural(finished.shards, 'shard')}, {size(finished.store_bytes)}"]
    )
    return table(rows, "ll", width=output.wrap)


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
        output.warning(
            line, "ask for a larger share, or give the split documents of its own: split of a source"
        )


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
    place = f"{out}/rejects/, verbatim in .raw, what and why in .jsonl"
    hint = f"the store is complete without them; they are in {place}"
    return message, hint
