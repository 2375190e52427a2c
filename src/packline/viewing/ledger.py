"""The ledger of a store as a table: what becomes of records and tokens.

Loading this module loads no reader of stores, which would delay the end of a short build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from packline.store.ledger import Ledger
from packline.viewing.page import Bar, Mood, Table, Value
from packline.viewing.text import percent, plural

if TYPE_CHECKING:
    from packline.packing.stats import PackingStats

RATE = "bytes per token"


def ledger_table(ledger: Ledger, prices: Sequence[PackingStats] = ()) -> Table:
    """The ledger: records read, each loss by name, documents; their tokens, and what becomes of them.

    Args:
        prices: costs of packings; the first decides which tokens are in rows.

    >>> ledger = Ledger(documents_in=3, documents=2, empty=1, tokens=9, text_tokens=7, eod_tokens=2)
    >>> table = ledger_table(ledger)
    >>> [f"{row[0]}: {row[1].shown}" for row in table.rows][:3]
    ['records in: 3', '- without text: 1', '= documents: 2']
    """
    rows: list[tuple[Value, ...]] = []

    def add(label: str, count: int, whole: int, mood: Mood = "plain", note: str = "") -> None:
        rows.append((label, Bar(f"{count:,}", count / whole if whole else 0.0, mood=mood), note))

    def lose(label: str, count: int, whole: int, mood: Mood = "warning") -> None:
        if count:
            add(f"- {label}", count, whole, mood, f"{percent(count / whole)}" if whole else "")

    records = ledger.documents_in
    add("records in", records, records)
    lose("without text", ledger.empty, records)
    lose("too short", ledger.too_short, records)
    lose("too long", ledger.too_long, records)
    lose("left out by filters", ledger.filtered or 0, records)
    for reason, count in ledger.rejected.items():
        lose(f"bad: {reason.replace('_', ' ')}", count, records, "bad")
    rate = f"{ledger.text_bytes / ledger.text_tokens:.2f} {RATE}" if ledger.text_tokens else ""
    add("= documents", ledger.documents, records, "good")
    if ledger.lost_ids:
        add("without their id", ledger.lost_ids, ledger.documents, "warning", "no valid Unicode")
    add("tokens of text", ledger.text_tokens, ledger.tokens, note=rate)
    add("+ end of document", ledger.eod_tokens, ledger.tokens)
    if ledger.bos_tokens:
        add("+ begin of document", ledger.bos_tokens, ledger.tokens)
    add("= tokens", ledger.tokens, ledger.tokens, "good")
    if ledger.mask:
        add("trained on", ledger.mask.trained_tokens, ledger.tokens)
    if prices:
        price, counts = prices[0], prices[0].counts
        lost = counts.dropped_tokens + counts.truncated_tokens
        lose("validation and test", ledger.tokens - counts.tokens, ledger.tokens, "plain")
        lose("a tail too short for a row", lost, ledger.tokens)
        made = f"{plural(counts.rows, 'row')} of {price.seq_len:,}, {price.name}"
        add("= tokens in rows", counts.tokens - lost, ledger.tokens, "good", made)
    return Table("From records to tokens", (), tuple(rows), "lrl")
