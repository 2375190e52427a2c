"""Blocks of a report that describe a store: identity, ledger, sources, lengths, packing, compression.

Each function turns counts into blocks of a page; nothing is rendered here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from packline.encoders.tokenizer import Tokenizer
from packline.packing.stats import PackingStats
from packline.store.reader import StoreReader
from packline.viewing.analysis import Analysis
from packline.viewing.compression import measure_compression
from packline.viewing.lengths import Lengths
from packline.viewing.page import (
    Bar,
    Bars,
    Block,
    Comparison,
    Facts,
    Flow,
    Histogram,
    Mood,
    Note,
    Stage,
    Stream,
    Table,
)
from packline.viewing.text import percent, plural, size

SOURCES = 24
"""Sources shown by name, the largest first."""
FLOWING = "concat"
"""Packing at the end of the flow: the default packing of rows."""


def identity(store: StoreReader, analysis: Analysis) -> Facts:
    """Facts that identify the store: its origin and its totals."""
    manifest = store.manifest
    entry, lengths = manifest.tokenizer, analysis.lengths
    ends = f"{entry.eod} ({entry.eod_id:,})"
    begins = f", begin with {entry.bos} ({entry.bos_id:,})" if entry.bos is not None else ""
    disk = sum(file.bytes for shard in manifest.shards for file in shard.files)
    decodes = {"exact": "to the very text", "normalized": "to the normalized text"}
    rows = [
        ("documents", f"{analysis.documents:,}"),
        ("tokens", f"{analysis.tokens:,}"),
        ("text", f"{size(analysis.text_bytes)} of {plural(len(manifest.inputs), 'file')}"),
        ("bytes a token", f"{analysis.bytes_per_token:.2f}"),
        ("tokenizer", f"{short_name(entry.name)}, {entry.vocab_size:,} tokens"),
        ("used of it", f"{percent(1 - analysis.never_used / max(entry.vocab_size, 1))} of the vocabulary"),
        ("boundaries", f"documents end with {ends}{begins}"),
        ("decodes", decodes.get(entry.round_trip, "not to the very text")),
        ("median length", f"{plural(lengths.median, 'token')}, mean {lengths.mean:,.0f}"),
        ("on disk", f"{plural(len(manifest.shards), 'shard')}, {size(disk)}, {manifest.dtype}"),
        ("made by", f"packline {manifest.packline}"),
        ("fingerprint", manifest.checksum[:16]),
    ]
    if manifest.imported:
        rows.insert(2, ("imported from", manifest.imported.format))
    return Facts(tuple(rows))


def ledger_flow(store: StoreReader, analysis: Analysis) -> Flow:
    """Flow from records read to tokens in rows, with every loss by name."""
    ledger = store.manifest.ledger
    losses: list[tuple[str, int, Mood]] = [
        ("without text", ledger.empty, "warning"),
        ("too short", ledger.too_short, "warning"),
        ("too long", ledger.too_long, "warning"),
        ("left out by filters", ledger.filtered or 0, "warning"),
        *((f"bad: {reason.replace('_', ' ')}", count, "bad") for reason, count in ledger.rejected.items()),
    ]
    lost = tuple(Stream(label, count, mood) for label, count, mood in losses if count)
    stages = [Stage("input", ledger.documents_in, "records", Stream("documents", ledger.documents), lost)]
    rate = f"{ledger.text_bytes / ledger.text_tokens:.2f} bytes a token" if ledger.text_tokens else ""
    stages.append(
        Stage(
            "their text",
            ledger.text_bytes,
            "bytes",
            Stream("tokens of text", ledger.text_tokens, "good", rate),
        )
    )
    ends = ledger.tokens - ledger.text_tokens
    price = next((price for price in analysis.prices if price.name == FLOWING), None)
    if price is None:
        stages.append(
            Stage(
                "with documents' ends", ledger.tokens, "tokens", Stream("tokens in the store", ledger.tokens)
            )
        )
    else:
        counts = price.counts
        out = [
            ("kept for validation", ledger.tokens - counts.tokens, "plain"),
            ("a tail too short for a row", counts.dropped_tokens + counts.truncated_tokens, "warning"),
        ]
        rows = f"{plural(counts.rows, 'row')} of {price.seq_len:,}"
        left = counts.tokens - counts.dropped_tokens - counts.truncated_tokens
        stages.append(
            Stage(
                f"with {ends:,} at documents' edges",
                ledger.tokens,
                "tokens",
                Stream("tokens in rows", left, "good", f"{rows}, {price.name}"),
                tuple(Stream(label, count, mood) for label, count, mood in out if count),  # type: ignore[arg-type]
            )
        )
    return Flow("Everything that came in, and what became of it", tuple(stages))


def ledger_warnings(store: StoreReader) -> tuple[str, ...]:
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
        found.append(f"the name of a special token stands {count} in the text of documents")
    if manifest.tokenizer.round_trip == "lossy":
        found.append(f"{manifest.tokenizer.name} does not decode to the text that it was given")
    return tuple(found)


def source_blocks(analysis: Analysis) -> list[Block]:
    """Charts of tokens by source and by label, with those excluded from training marked; then the numbers."""
    tokens: dict[str, list[int]] = {}
    labels: dict[str, list[int]] = {}
    for group in analysis.groups:
        named = [(tokens, group.source)] + ([(labels, group.label)] if group.label is not None else [])
        for sums, name in named:
            counts = sums.setdefault(name, [0, 0])
            counts[0] += group.tokens
            counts[1] += group.tokens if group.split != "train" else 0
    blocks: list[Block] = [_token_bars("Tokens by source", tokens, analysis.tokens)]
    if labels:
        blocks.append(_token_bars("Tokens by label", labels, analysis.tokens))
    return [*blocks, _group_table(analysis)]


def _token_bars(caption: str, sums: dict[str, list[int]], whole: int) -> Bars:
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    shown, rest = ordered[:SOURCES], ordered[SOURCES:]
    if rest:
        more = [sum(counts[place] for _, counts in rest) for place in range(2)]
        shown.append((f"{len(rest):,} more", more))
    marked = any(counts[1] for _, counts in shown)
    bars = tuple(
        Bar(name, counts[0], f"{counts[0]:,} ({percent(counts[0] / max(whole, 1))})", counts[1])
        for name, counts in shown
    )
    return Bars(caption, bars, "kept from training" if marked else "")


def _group_table(analysis: Analysis) -> Table:
    """Table of the numbers, the largest source first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for group in analysis.groups:
        counts = sums.setdefault((group.source, group.label or ""), [0, 0, 0, 0])
        held = group.tokens if group.split != "train" else 0
        for place, count in enumerate((group.tokens, group.documents, held, group.text_bytes)):
            counts[place] += count
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    edges = (analysis.tokens - analysis.text_tokens) / max(analysis.documents, 1)
    rows = [
        (
            *name,
            f"{documents:,}",
            f"{tokens:,}",
            f"{held:,}",
            size(text_bytes),
            f"{text_bytes / max(tokens - edges * documents, 1):.2f}",
        )
        for name, (tokens, documents, held, text_bytes) in ordered[:SOURCES]
    ]
    labels = any(label for _, label in sums)
    head = ("source", "label", "documents", "tokens", "kept from training", "text", "bytes a token")
    keep = [place for place in range(len(head)) if labels or place != 1]
    caption = "Sources in numbers"
    caption += f"; {len(sums) - len(rows):,} smaller ones are not shown" if len(sums) > len(rows) else ""
    return Table(
        caption,
        tuple(head[place] for place in keep),
        tuple(tuple(row[place] for place in keep) for row in rows),
        "".join("llrrrrr"[place] for place in keep),
    )


def with_quantiles(block: Histogram, lengths: Lengths) -> Histogram:
    """Mark the median and the 90th and 99th percentiles of lengths."""
    first = next((place for place, count in enumerate(lengths.histogram) if count), 0)
    quantiles = (
        ("half", lengths.median),
        ("90%", lengths.p90),
        ("99%", lengths.p99),
    )
    marks = tuple(
        (f"{name} ≤ {value:,}", value.bit_length() - 1 - first)
        for name, value in quantiles
        if value.bit_length() > first
    )
    return dataclasses.replace(block, marks=marks)


def price_blocks(analysis: Analysis) -> list[Block]:
    """Charts of what each packing pads, loses and splits, as comparable shares."""
    prices = analysis.prices
    blocks: list[Block] = []
    for length in dict.fromkeys(price.seq_len for price in prices):
        rows = tuple((price.name, _price_bars(price)) for price in prices if price.seq_len == length)
        measures = ("padding", "lost", "split", "rows")
        blocks.append(
            Comparison(f"What rows of {length:,} tokens cost, by packing", "packing", measures, rows, 0.0)
        )
    said = (
        "Padding as a share of the rows' places, tokens that are lost, documents that are split over rows. "
        "A bar is as long as its share of the largest in its column."
    )
    return [*blocks, Note(said)]


def _price_bars(price: PackingStats) -> tuple[Bar, ...]:
    shares = tuple(Bar("", share, percent(share)) for share in (price.padding, price.lost, price.split))
    return (*shares, Bar("", price.counts.rows, f"{price.counts.rows:,}"))


def compression_blocks(store: StoreReader, others: Sequence[Tokenizer]) -> list[Block]:
    """Table of bytes per token by source, compared with other tokenizers."""
    found = measure_compression(store, others, SOURCES)
    names = (short_name(store.manifest.tokenizer.name), *(short_name(one.name) for one in others))
    sizes = (store.manifest.tokenizer.vocab_size, *(one.vocab_size for one in others))
    measures = tuple(f"{name} ({count:,})" for name, count in zip(names, sizes, strict=True))
    top = max((rate for one in found for rate in one.rates()), default=0.0)
    rows = [(one.source, _rate_bars(one.rates())) for one in found]
    documents = sum(one.documents for one in found)
    taken = size(sum(one.text_bytes for one in found))
    said = (
        f"Bytes of text that a token stands for: more is fewer tokens. Measured on {taken} of "
        f"{plural(documents, 'document')} of the {plural(len(found), 'largest source', 'largest sources')}, "
        f"the same for all. In parentheses: vocabulary size, and ratio to {names[0]}."
    )
    blocks: list[Block] = [
        Comparison("Bytes a token, by source", "source", measures, tuple(rows), top),
        Note(said),
    ]
    for place, name in enumerate(names[1:], 1):
        own, other = (sum(one.tokens[column] for one in found) for column in (0, place))
        if own and other:
            word = "fewer" if other <= own else "more"
            change = f"{percent(abs(1 - other / own))} {word} tokens"
            blocks.append(Note(f"On this text {name} makes {change} than {names[0]}."))
    return blocks


def _rate_bars(rates: list[float]) -> tuple[Bar, ...]:
    own, *others = rates
    more = [Bar("", rate, f"{rate:.2f} (×{rate / own:.2f})" if own else f"{rate:.2f}") for rate in others]
    return (Bar("", own, f"{own:.2f}"), *more)


def short_name(name: str) -> str:
    """Name of a tokenizer, without the folders before it.

    >>> short_name("tokenizers/gpt2/tokenizer.json"), short_name("Qwen/Qwen3-8B"), short_name("a/b/c/")
    ('gpt2', 'Qwen3-8B', 'c')
    """
    path = Path(name)
    return (path.parent.name or path.name) if path.name == "tokenizer.json" else path.name
