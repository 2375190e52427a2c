"""Descriptions of a store, an analysis and packings as blocks of a page, the same on every surface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from packline.store.tables import SHARD_FILES
from packline.viewing.columns import ColumnCounts, column_table
from packline.viewing.info import DocumentLengths, Group, group_shards
from packline.viewing.page import (
    Bar,
    Block,
    Heading,
    KeyValues,
    Link,
    Note,
    Page,
    Table,
    Value,
    bar_cells,
    table_of,
)
from packline.viewing.summaries import RATE, ledger_table
from packline.viewing.text import percent, plural, scaled, short_name, size
from packline.viewing.tokens import document_strip

if TYPE_CHECKING:
    from packline.packing.selection import Selection
    from packline.packing.stats import PackingStats
    from packline.store.reader import StoreReader
    from packline.viewing.analysis import Analysis, Suspicious, TokenCount

LARGEST_SOURCES = 24
"""Sources shown by name in charts, the largest first."""
ROUND_TRIPS = {
    "exact": "exactly",
    "normalized": "up to normalization",
    "lossy": "not exactly",
}
FIRST_TOKENS = 48
"""Tokens shown of a document in the summary of a store."""


def store_page(
    store: StoreReader,
    lengths: DocumentLengths | None = None,
    *,
    documents: Sequence[int] = (),
    columns: Sequence[ColumnCounts] = (),
) -> Page:
    """Summary of a store, read from its manifest."""
    facts, groups = store_facts(store), group_table(group_shards(store))
    blocks: list[Block] = [KeyValues(facts), groups]
    if lengths is not None:
        blocks = [KeyValues((*facts, *length_facts(lengths))), groups]
        blocks += [*column_table(store, columns), ledger_table(store.manifest.ledger)]
        blocks += [length_table(lengths)] if lengths.histogram else []
    strips = [document_strip(store, number, most=FIRST_TOKENS) for number in documents]
    return Page(f"Store {store.place}", (*blocks, *strips), store_warnings(store))


def store_facts(store: StoreReader) -> tuple[tuple[str, str], ...]:
    """Facts that identify a store: contents, tokenizer, files."""
    manifest = store.manifest
    entry, ledger = manifest.tokenizer, manifest.ledger
    begin = f", begin with {entry.bos} ({entry.bos_id:,})" if entry.bos is not None else ""
    facts = (
        ("documents", f"{manifest.documents:,}"),
        ("tokens", f"{manifest.tokens:,}"),
        ("text", f"{size(ledger.text_bytes)} of {plural(len(manifest.inputs), 'file')}"),
        ("imported from", ", ".join(dict.fromkeys(entry.format for entry in manifest.imported))),
        ("in the loss", percent(ledger.mask.trained_tokens / max(ledger.tokens, 1)) if ledger.mask else ""),
        (RATE, f"{ledger.text_bytes / ledger.text_tokens:.2f}" if ledger.text_tokens else ""),
        ("tokenizer", f"{short_name(entry.name)}, {entry.vocab_size:,} tokens as {manifest.dtype}"),
        ("boundaries", f"documents end with {entry.eod} ({entry.eod_id:,}){begin}"),
        ("round-trips", ROUND_TRIPS.get(entry.round_trip, ROUND_TRIPS["lossy"])),
        ("on disk", _disk(store)),
        ("made by", f"packline {manifest.packline}"),
        ("fingerprint", manifest.checksum[:16]),
    )
    return tuple((name, value) for name, value in facts if value)


def _disk(store: StoreReader) -> str:
    manifest = store.manifest
    kinds = manifest.shards.bytes_by_file()
    parts = [f"{ending} {size(kinds[kind])}" for kind, ending in SHARD_FILES.items() if kinds[kind]]
    units = manifest.units.bytes_by_file()
    if rejects := units["rejects"] + units["reject_entries"]:
        parts.append(f"rejects {size(rejects)}")
    whole = f"{plural(len(manifest.shards), 'shard')}, {size(manifest.store_bytes)}"
    return f"{whole}: {', '.join(parts)}" if parts else whole


def store_warnings(store: StoreReader) -> tuple[str, ...]:
    """Warnings from the ledger and the tokenizer to read before training."""
    manifest = store.manifest
    ledger = manifest.ledger
    found = [f"the ledger does not balance: {problem}" for problem in ledger.imbalance()]
    if not ledger.documents:
        found.append("the store is empty")
    if ledger.bad:
        share = percent(ledger.bad_fraction)
        found.append(f"{plural(ledger.bad, 'record')} of the input could not be read ({share}); see rejects/")
    left_out = ledger.left_out - (ledger.filtered or 0)  # records left out by a filter are intended
    if ledger.documents_in and left_out >= 0.01 * ledger.documents_in:
        share = percent(left_out / ledger.documents_in)
        found.append(f"{share} of the input was left out: empty, too short or too long")
    if ledger.special_token_strings:
        count = plural(ledger.special_token_strings, "time")
        found.append(f"the text of documents contains the name of a special token {count}")
    if manifest.tokenizer.round_trip == "lossy":
        found.append(f"{manifest.tokenizer.name} does not decode to the exact text")
    return tuple(found)


def group_table(groups: Sequence[Group], link: Callable[[Group], str] | None = None) -> Table:
    whole = sum(group.tokens for group in groups) or 1
    return table_of(
        "By split and source",
        ("split", "l", [one.split for one in groups]),
        ("source", "l", [Link(one.source, link(one)) if link else one.source for one in groups]),
        ("label", "l", [one.label or "" for one in groups]),
        ("documents", "r", [f"{one.documents:,}" for one in groups]),
        ("tokens", "r", [f"{one.tokens:,}" for one in groups]),
        ("share", "r", [percent(one.tokens / whole) for one in groups]),
        ("tokens per document", "r", [f"{one.tokens / max(one.documents, 1):,.0f}" for one in groups]),
        (RATE, "r", [f"{one.text_bytes / max(one.tokens, 1):.2f}" * (one.text_bytes > 0) for one in groups]),
    )


def source_tables(groups: Sequence[Group]) -> list[Block]:
    """Tables of tokens by source and by label, the largest first."""
    found: list[Block] = [_summed("source", [(group.source, group) for group in groups])]
    if labelled := [(group.label, group) for group in groups if group.label is not None]:
        found.append(_summed("label", labelled))
    return found


def _summed(noun: str, named: Sequence[tuple[str, Group]]) -> Table:
    sums: dict[str, list[int]] = {}
    for name, one in named:
        counts = (one.tokens, one.documents, one.tokens * (one.split != "train"), one.text_bytes)
        sums[name] = list(map(sum, zip(sums.get(name, [0] * 4), counts, strict=True)))
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    shown, rest = ordered[:LARGEST_SOURCES], ordered[LARGEST_SOURCES:]
    if rest:
        shown.append((f"{len(rest):,} more", list(map(sum, zip(*(row for _, row in rest), strict=True)))))
    whole = sum(group.tokens for _, group in named) or 1
    top = max((counts[0] for _, counts in shown), default=0) or 1
    rows = tuple(
        (
            name,
            f"{documents:,}",
            Bar(f"{tokens:,} ({percent(tokens / whole)})", tokens / top),
            f"{held:,}",
            size(text_bytes),
        )
        for name, (tokens, documents, held, text_bytes) in shown
    )
    head = (noun, "documents", "tokens", "not for training", "text")
    return Table(f"Tokens by {noun}", head, rows, "lrrrr")


def length_facts(lengths: DocumentLengths) -> tuple[tuple[str, str], ...]:
    if not lengths.histogram:
        return (("tokens per document", "no documents"),)
    shown = f"{lengths.shortest:,} to {lengths.longest:,}, mean {lengths.mean:,.0f}, "
    shown += f"median {lengths.median:,}, 90% at most {lengths.p90:,}, 99% at most {lengths.p99:,}"
    return (("tokens per document", shown),)


def length_table(lengths: DocumentLengths) -> Table:
    """Table of documents by length in powers of two, with quantiles, from the first class not empty."""
    whole, top = sum(lengths.histogram), max(lengths.histogram, default=0)
    quantiles = (("half", lengths.median), ("90%", lengths.p90), ("99%", lengths.p99))
    rows: list[tuple[Value, ...]] = []
    for power, count in enumerate(lengths.histogram):
        if count or rows:
            ends = f"{2**power:,} to {2 ** (power + 1) - 1:,}" if power else "1"
            marks = ", ".join(
                f"{name} ≤ {value:,}" for name, value in quantiles if value.bit_length() - 1 == power
            )
            rows.append((ends, Bar(f"{count:,} ({percent(count / whole)})", count / top), marks))
    head = ("tokens", "documents", "at most")
    return Table("Tokens per document", head, tuple(rows), "lrl")


def packing_tables(prices: Sequence[PackingStats]) -> list[Block]:
    found: list[Block] = []
    count = "{:,}".format
    for length in dict.fromkeys(price.seq_len for price in prices):
        shown = [price for price in prices if price.seq_len == length]
        untrained = [price.untrained_rows or 0 for price in shown]
        costs: list[tuple[str, Callable[[float], str], Sequence[float]]] = [
            ("rows", count, [price.counts.rows for price in shown]),
            ("padding", percent, [price.padding for price in shown]),
            ("tokens lost", percent, [price.lost for price in shown]),
            ("documents split", percent, [price.split for price in shown]),
            ("rows shared", percent, [price.shared for price in shown]),
            *([("rows untrained", count, untrained)] if any(untrained) else []),
        ]
        bars = [(name, "r", bar_cells(tuple((one, says(one)) for one in all))) for name, says, all in costs]
        names = ("packing", "l", [price.name for price in shown])
        found.append(table_of(f"Packings in rows of {length:,} tokens", names, *bars))
    return found


def left_out_facts(selection: Selection) -> tuple[tuple[str, str], ...]:
    """Documents that filters removed, and remarks on lists; empty without filters."""
    lost = selection.left_out
    facts: list[tuple[str, str]] = []
    if lost:
        documents, tokens = sum(one.documents for one in lost), sum(one.tokens for one in lost)
        by = ", ".join(f"{one.by} ({one.documents:,})" for one in lost)
        facts.append(("left out", f"{plural(documents, 'document')}, {scaled(tokens)} tokens, by: {by}"))
    return (*facts, *(("note", note) for note in selection.notes))


def cheapest_facts(prices: Sequence[PackingStats]) -> tuple[tuple[str, str], ...]:
    """The cheapest packings of one row length, by each of three costs."""
    lost = {price.name: price.lost for price in prices}
    whole = [price for price in prices if price.lost == min(lost.values())]
    return (
        ("loses fewest tokens", _cheapest(lost)),
        ("of these, splits fewest documents", _cheapest({price.name: price.split for price in whole})),
        ("pads least", _cheapest({price.name: price.padding for price in prices})),
    )


def _cheapest(shares: dict[str, float]) -> str:
    least = min(shares.values())
    names = [name.replace(",", "") for name, share in shares.items() if share == least]
    several = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{several}: {percent(least) if least else 'none'}"


def analysis_page(analysis: Analysis) -> Page:
    title = f"Analysis of {analysis.path}"
    facts = KeyValues(
        (
            ("documents", f"{analysis.documents:,}"),
            ("tokens", f"{analysis.tokens:,}, of text {analysis.text_tokens:,}"),
            ("text", size(analysis.text_bytes)),
            (RATE, f"{analysis.bytes_per_token:.2f}"),
            ("tokenizer", f"{short_name(analysis.tokenizer)}, {analysis.vocab_size:,} tokens"),
            *vocabulary_facts(analysis),
            *length_facts(analysis.lengths),
        )
    )
    if not analysis.documents:
        return Page(title, (facts, Note("There are no documents.", "warning")))
    blocks: list[Block] = [facts, group_table(analysis.groups), length_table(analysis.lengths)]
    blocks += packing_tables(analysis.prices)
    return Page(title, (*blocks, *finding_blocks(analysis)), warnings=analysis_warnings(analysis))


def vocabulary_facts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    never = analysis.never_used
    share = percent(never / analysis.vocab_size)
    return (("never used", f"{plural(never, 'token')}, {share} of the vocabulary"),)


def analysis_warnings(analysis: Analysis) -> tuple[str, ...]:
    """Findings to check before training, one line each."""
    found = []
    twice = analysis.duplicates
    if twice.across_splits:
        what = plural(twice.across_splits, "text")
        found.append(f"{what} in several splits: validation text was trained on")
    if twice.documents and twice.documents >= 0.01 * analysis.documents:
        found.append(f"{percent(twice.documents / analysis.documents)} of the documents are duplicates")
    for one in analysis.suspicious:
        if one.count and one.count >= 0.01 * analysis.documents:
            share = percent(one.count / analysis.documents)
            found.append(f"{one.reason}: {share} of the documents ({one.rule})")
    for token in analysis.special:
        count = token.count - analysis.boundary.get(token.id, 0)
        if count and not analysis.has_loss:
            found.append(f"the special token {token.text} occurs {plural(count, 'time')} inside documents")
    return tuple(found)


def finding_blocks(analysis: Analysis) -> list[Block]:
    return [
        Heading("Tokens"),
        *token_tables(analysis),
        Heading("Suspicious documents"),
        *suspicious_blocks(analysis),
        Heading("Duplicate documents"),
        *duplicate_blocks(analysis),
    ]


def token_tables(analysis: Analysis) -> list[Block]:
    """Tables of special tokens, the most used tokens, and some that are never used."""
    special, used, text = analysis.special, analysis.most_used, max(analysis.text_tokens, 1)
    inside = [one.count - analysis.boundary.get(one.id, 0) for one in special]
    blocks: list[Block] = []
    for caption, tokens, column in (
        ("Special tokens", special, ("inside documents", "r", [f"{count:,}" for count in inside])),
        ("Most used tokens", used, ("share", "r", [percent(one.count / text) for one in used])),
    ):
        if tokens:
            texts = [one.text if tokens is special else marked_spaces(one) for one in tokens]
            ids, counts = [f"{one.id:,}" for one in tokens], [f"{one.count:,}" for one in tokens]
            blocks.append(
                table_of(caption, ("id", "r", ids), ("token", "l", texts), ("count", "r", counts), column)
            )
    if analysis.never_used:
        some = " ".join(marked_spaces(one) for one in analysis.never_used_first)
        more = " …" if analysis.never_used > len(analysis.never_used_first) else ""
        blocks.append(Note(f"Never used: {plural(analysis.never_used, 'token')}, such as {some}{more}"))
    return blocks


def marked_spaces(token: TokenCount) -> str:
    """Text of a token with visible spaces."""
    return token.text.replace(" ", "␣")


def suspicious_blocks(analysis: Analysis) -> list[Block]:
    rows = tuple((one.reason, f"{one.count:,}", one.rule) for one in analysis.suspicious)
    blocks: list[Block] = [Table("", ("reason", "documents", "rule"), rows, "lrl")]
    for kind in analysis.suspicious:
        if kind.documents:
            found = tuple(
                (f"{one.document:,}", severity(kind, one.value), analysis.places.get(one.document, ""))
                for one in kind.documents
            )
            blocks.append(Table(kind.reason.capitalize(), ("document", "value", "origin"), found, "rrl"))
    return blocks


def severity(kind: Suspicious, value: float) -> str:
    if kind.reason.endswith(RATE):
        return f"{value:.2f} {RATE}"
    return plural(int(value), "token") if kind.reason == "long run" else percent(value)


def duplicate_blocks(analysis: Analysis) -> list[Block]:
    found = analysis.duplicates
    if not found.groups:
        return [Note("No two documents have the same tokens.", "good")]
    share = percent(found.tokens / max(analysis.tokens, 1))
    total = (
        f"{plural(found.groups, 'text')} more than once: {plural(found.documents, 'document')} beyond the "
        f"first of each, {plural(found.tokens, 'token')}, {share} of all."
    )
    rows = tuple(
        (
            f"{group.copies:,}",
            f"{group.tokens:,}",
            ", ".join(f"{one:,}" for one in group.documents)
            + (" …" if group.copies > len(group.documents) else ""),
            analysis.places.get(group.documents[0], ""),
        )
        for group in found.largest
    )
    head = ("copies", "tokens each", "documents", "origin of the first")
    return [Note(total), Table("Largest groups", head, rows, "rrll")]
