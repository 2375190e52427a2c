"""Summaries as blocks of a page: the ledger of a store, a run file, and what differs between two of either.

Loading this module loads no reader of stores, which would delay the end of a short build.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from packline.store.ledger import LEFT_OUT, Ledger
from packline.viewing.page import Bar, Block, Heading, KeyValues, Mood, Note, Page, Table, Value
from packline.viewing.text import percent, plural, scaled, size

if TYPE_CHECKING:
    from packline.loading.run_summary import RunDifference, RunUse
    from packline.packing.stats import PackingStats
    from packline.store.difference import Change, SourceDifference, StoreDifference


MOST = 20
"""Rows of settings and inputs that are listed; `--json` has all."""
KINDS = {
    "added": "added",
    "removed": "removed",
    "changed": "changed",
    "otherwise": "same text",
    "other_tokens": "other tokens",
    "unchecked": "not compared",
    "same": "equal",
}
"""Headings of the counts of documents."""


def difference_blocks(found: StoreDifference) -> list[Block]:
    names = (("first", found.one), ("second", found.other))
    counts = tuple(
        f"{store}: {plural(documents, 'document')}, {plural(tokens, 'token')}"
        for (_, store), documents, tokens in zip(names, found.documents, found.tokens, strict=True)
    )
    result = "equal" if found.equal else "different"
    blocks: list[Block] = [KeyValues((("first", counts[0]), ("second", counts[1]), ("stores are", result)))]
    for title, changes in (("Tokenizer", found.tokenizer), ("Settings", found.recipe)):
        if changes:
            blocks += [Heading(title), settings_table(changes)]
    if found.inputs:
        blocks += [Heading("Inputs"), _inputs(found)]
    if found.sources:
        blocks += [Heading("Sources"), _tokens(found), _documents(found.sources)]
    if found.equal_sources and not found.equal:
        blocks.append(Note(f"equal: {', '.join(found.equal_sources)}"))
    if found.listed:
        blocks += [Heading("Documents"), _listed_documents(found)]
    blocks += [Note(note, "warning") for note in found.notes]
    return blocks


def settings_table(changes: list[Change]) -> Table:
    rows = tuple((one.name, _value(one.one), _value(one.other)) for one in changes[:MOST])
    return Table(_of(len(changes), "setting"), ("setting", "first", "second"), rows, "lll")


def _inputs(found: StoreDifference) -> Table:
    rows = tuple((one.kind, one.source, one.name, *map(_size, one.bytes)) for one in found.inputs[:MOST])
    head = ("", "source", "file", "first", "second")
    return Table(_of(len(found.inputs), "file"), head, rows, "lllrr")


def _tokens(found: StoreDifference) -> Table:
    rows = []
    for source in found.sources:
        splits = dict.fromkeys([*source.tokens[0], *source.tokens[1]])
        for split in splits:
            one, other = (tokens.get(split, 0) for tokens in source.tokens)
            rows.append((source.name, split, f"{one:,}", f"{other:,}", f"{other - one:+,}"))
    head = ("source", "split", "first", "second", "change")
    return Table("Tokens by source and split", head, tuple(rows), "llrrr")


def _documents(sources: list[SourceDifference]) -> Table:
    there = {
        kind: heading
        for kind, heading in KINDS.items()
        if kind in ("added", "removed", "changed") or any(getattr(one.counts, kind) for one in sources)
    }
    rows = tuple((one.name, *(f"{getattr(one.counts, kind):,}" for kind in there)) for one in sources)
    return Table("Documents by source", ("source", *there.values()), rows, "l" + "r" * len(there))


def _listed_documents(found: StoreDifference) -> Table:
    rows = tuple(
        (one.kind if one.kind != "otherwise" else KINDS[one.kind], one.source, one.file, f"{one.position:,}")
        for one in found.listed[:MOST]
    )
    return Table("The first documents that differ", ("", "source", "file", "position"), rows, "lllr")


def _of(count: int, what: str) -> str:
    return f"{min(count, MOST):,} of {plural(count, what)}" if count > MOST else plural(count, what)


def _size(bytes: int | None) -> str:
    return "" if bytes is None else size(bytes)


def _value(value: object) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


RATE = "bytes per token"


def ledger_table(ledger: Ledger, prices: Sequence[PackingStats] = ()) -> Table:
    """The ledger: records read, each loss by name, documents; their tokens, and what becomes of them."""
    rows: list[tuple[Value, ...]] = []

    def add(label: str, count: int, whole: int, mood: Mood = "plain", note: str = "") -> None:
        rows.append((label, Bar(f"{count:,}", count / whole if whole else 0.0, mood=mood), note))

    def lose(label: str, count: int, whole: int, mood: Mood = "warning") -> None:
        if count:
            add(f"- {label}", count, whole, mood, f"{percent(count / whole)}" if whole else "")

    records = ledger.documents_in
    add("records in", records, records)
    for name, words in LEFT_OUT.items():
        lose(words, getattr(ledger, name) or 0, records)
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


def run_summary_page(path: str, run: RunUse) -> Page:
    stages = tuple(
        (
            f"{number}",
            f"{one.first_step:,} to {one.first_step + one.steps - 1:,}",
            f"{one.batch_size:,}",
            f"{one.seq_len:,}",
            scaled(one.tokens),
        )
        for number, one in enumerate(run.stages)
    )
    sources = tuple(
        (
            f"{number}",
            one.source,
            Bar(percent(one.share), one.share),
            f"{one.rows:,}",
            f"{one.used:,}",
            f"{one.epochs:.2f} of {one.max_epochs or 'any'}",
            f"{one.missing:,}" if one.missing else "",
        )
        for number, stage in enumerate(run.stages)
        for one in stage.sources
    )
    head = ("stage", "source", "share", "rows", "rows used", "epochs at its end", "rows missing")
    facts = (("seed", f"{run.seed:,}"), ("order", run.order))
    blocks: tuple[Block, ...] = (
        KeyValues(facts),
        Table("Stages", ("stage", "steps", "rows per batch", "tokens per row", "tokens"), stages, "rrrrr"),
        Table("Sources", head, sources, "rllrrrr"),
    )
    summary = f"{plural(run.steps, 'step')}, {scaled(run.tokens)} tokens, {plural(len(run.stages), 'stage')}"
    return Page(path, blocks, summary=summary, warnings=run.warnings)


def run_difference_blocks(found: RunDifference) -> list[Block]:
    result = "equal" if found.equal else "different"
    facts = KeyValues((("first", found.one), ("second", found.other), ("run files are", result)))
    return [facts, *([settings_table(found.settings)] if found.settings else [])]
