"""What came of a build: the ledger as a table, rates, and what to do next."""

from __future__ import annotations

import shlex

from packline.cli.output import Line, Piece, output, table
from packline.cli.progress import Tally
from packline.cli.text import duration, percent, plural, scaled, size
from packline.runtime.events import Finished
from packline.store.ledger import Ledger


def ledger_lines(ledger: Ledger) -> list[Line]:
    """The ledger as a table: documents on the left, tokens on the right, each adding up to its last line."""
    losses = [
        ("without text", ledger.empty),
        ("too short", ledger.too_short),
        ("too long", ledger.too_long),
        *((reason.replace("_", " "), count) for reason, count in ledger.rejected.items()),
    ]
    left: list[tuple[Piece, Piece]] = [("records in", f"{ledger.documents_in:,}")]
    left += [((name, "warning"), (f"-{count:,}", "warning")) for name, count in losses if count]
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


def show_finished(finished: Finished, tally: Tally, out: str) -> None:
    """The closing summary."""
    ledger = finished.ledger
    output.line()
    if finished.nothing_to_do:
        output.line(("the store was complete already: ", "good"), "nothing to do")
        output.line()
    output.lines(ledger_lines(ledger))
    output.line()
    rows: list[Line] = []
    if not finished.nothing_to_do:
        rows = [[("speed", "quiet"), *_speed(finished)], [("encoded by", "quiet"), _engines(finished)]]
    if ledger.special_token_strings:
        count = plural(ledger.special_token_strings, "special-token string")
        rows.append([("note", "quiet"), f"{count} inside documents"])
    rows.append([("store", "quiet"), _store(finished, out)])
    output.lines(table([row for row in rows if row[1]], "ll"))
    output.line()
    path = shlex.quote(out)
    output.lines(
        table([[("look at it", "quiet"), f"packline info {path}"], [("check it", "quiet"), f"packline verify {path}"]], "ll")
    )


def _speed(finished: Finished) -> list[Piece]:
    """The rate once it ran, and the time in all."""
    running = max(finished.seconds - finished.first_unit_seconds, 1e-3)
    tokens = finished.ledger.tokens * finished.run_text_bytes / max(finished.ledger.text_bytes, 1)
    rate = f"{size(finished.run_text_bytes / running)}/s, {scaled(tokens / running)} tokens/s"
    whole = f"{size(finished.run_text_bytes)} of text in {duration(finished.seconds)}"
    fixed = f"{duration(finished.first_unit_seconds)} of it before the first document"
    return [f"{whole} ({fixed}), then {rate}"]


def _engines(finished: Finished) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in engine_shares(finished).items())


def engine_shares(finished: Finished) -> dict[str, float]:
    """The share of the text that each engine encoded, the largest first."""
    whole = sum(finished.engine_bytes.values())
    ordered = sorted(finished.engine_bytes.items(), key=lambda item: -item[1])
    return {name: size / whole for name, size in ordered if size} if whole else {}


def _store(finished: Finished, out: str) -> str:
    shards = plural(finished.shards, "shard")
    worker = f", at most {size(finished.peak_rss_bytes)} of memory a worker" if finished.peak_rss_bytes else ""
    return f"{out}: {shards}, {size(finished.store_bytes)}{worker}"


def too_many_bad(ledger: Ledger, limit: float, out: str) -> tuple[str, str]:
    """The message and the hint for more bad records than were allowed.

    >>> ledger = Ledger(documents_in=10, rejected={"malformed_json": 2})
    >>> too_many_bad(ledger, 0.01, "store")[0]
    '2 of 10 records are bad (20.0%, more than the 1.0% of --max-bad-fraction): 2 malformed_json'
    """
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in ledger.rejected.items())
    message = (
        f"{ledger.bad:,} of {ledger.documents_in:,} records are bad ({percent(ledger.bad_fraction)}, "
        f"more than the {percent(limit)} of --max-bad-fraction): {reasons}"
    )
    hint = f"the store is complete without them; they are in {out}/rejects/, verbatim in .raw, what and why in .jsonl"
    return message, hint
