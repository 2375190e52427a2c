"""`packline info`: the contents of a store, from its manifest, its indexes and its first documents."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from packline.cli.arguments import Flags
from packline.cli.main import DONE
from packline.cli.output import Line, output, table
from packline.cli.summary import ledger_lines
from packline.cli.tokens import UNKNOWN, document_lines
from packline.store.manifest import Manifest
from packline.store.reader import ShardLabel, StoreReader, shard_labels
from packline.viewing.lengths import Lengths, measure_lengths
from packline.viewing.text import columns, cut, plural, size

_FLAGS = Flags()
LINES_A_DOCUMENT = 4
HISTOGRAM_START = 56
CHARACTERS = 1000
"""Maximum characters of a document's text in JSON output."""
MARGIN = 8
"""Characters at the end of a truncated text that may change with the next token."""


def info(
    store: Annotated[str, Parameter(help="Folder of a finished store.")],
    *,
    documents: Annotated[int, Parameter(help="How many of the first documents to show.")] = 3,
    flags: Flags = _FLAGS,
) -> int:
    """Show the contents of a store; see `pages`."""
    opened = StoreReader(store)
    manifest, lengths, groups = opened.manifest, measure_lengths(opened), group_shards(opened)
    output.lines(identity_lines(opened))
    output.line()
    output.lines(group_lines(groups))
    output.line()
    output.lines(ledger_lines(manifest.ledger))
    output.line()
    output.lines(length_lines(lengths, output.width))
    shown = range(min(max(documents, 0), len(opened.documents)))
    for number in shown:
        output.line()
        show_document(opened, number, LINES_A_DOCUMENT)
    if output.mode == "json":
        output.result(facts(opened, lengths, groups, list(shown)))
    return DONE


def facts(
    store: StoreReader, lengths: Lengths, groups: list[dict[str, Any]], shown: list[int]
) -> dict[str, Any]:
    """Contents of the pages as values for JSON output."""
    manifest = store.manifest
    return {
        "command": "info",
        "store": str(store.path),
        "exit_code": DONE,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.ledger.text_bytes,
        "store_bytes": manifest.store_bytes,
        "dtype": manifest.dtype,
        "shards": len(manifest.shards),
        "tokenizer": msgspec.to_builtins(manifest.tokenizer),
        "recipe": msgspec.to_builtins(manifest.recipe),
        "imported": msgspec.to_builtins(manifest.imported) if manifest.imported else None,
        "groups": groups,
        "lengths": msgspec.to_builtins(lengths),
        "ledger": msgspec.to_builtins(manifest.ledger),
        "sources": msgspec.to_builtins(manifest.sources),
        "first_documents": [
            {**msgspec.to_builtins(store.provenance(number)), "text": beginning_of(store, number)}
            for number in shown
        ],
    }


def beginning_of(store: StoreReader, number: int) -> str:
    """First characters of a document's text, decoding little more than needed.

    A cut may fall within a character, and some decoders then also lose what precedes it, so more tokens are
    taken until the characters are complete or no tokens are left.
    """
    start = 0 if store.manifest.tokenizer.bos_id is None else 1
    tokens, taken = store.documents[number][start:-1], CHARACTERS
    while True:
        text = str(store.tokenizer.decode(tokens[:taken].tolist(), skip_special_tokens=False))
        found = text[:CHARACTERS]
        if taken >= len(tokens) or (len(text) > CHARACTERS + MARGIN and UNKNOWN not in found):
            return found
        taken *= 4


def identity_lines(store: StoreReader) -> list[Line]:
    """Lines that identify a store."""
    manifest = store.manifest
    entry = manifest.tokenizer
    ends = f"documents end with {entry.eod} ({entry.eod_id})"
    if entry.bos is not None:
        ends += f" and begin with {entry.bos} ({entry.bos_id})"
    decodes = {"exact": "round-trips exactly", "normalized": "round-trips up to normalization"}
    rows: list[Line] = [
        [("store", "quiet"), (str(store.path), "title")],
        [("holds", "quiet"), f"{plural(manifest.documents, 'document')}, {plural(manifest.tokens, 'token')}"],
        [("text", "quiet"), _text_facts(manifest)],
        [("tokenizer", "quiet"), f"{entry.name}, {entry.vocab_size:,} tokens as {manifest.dtype}"],
        [("", "quiet"), f"{ends}; {decodes.get(entry.round_trip, 'does not decode to the very text')}"],
        [("on disk", "quiet"), _disk_facts(store)],
    ]
    return table(rows, "ll", width=output.wrap)


def _text_facts(manifest: Manifest) -> str:
    ledger = manifest.ledger
    rate = ledger.text_bytes / ledger.text_tokens if ledger.text_tokens else 0.0
    imported = f", imported from {manifest.imported.format}" if manifest.imported else ""
    files = plural(len(manifest.inputs), "file")
    return f"{size(ledger.text_bytes)} of {files}, {rate:.2f} bytes/token{imported}"


def _disk_facts(store: StoreReader) -> str:
    manifest = store.manifest
    kinds: dict[str, int] = {}
    for shard in manifest.shards:
        for entry in shard.files:
            kind = entry.name.removeprefix(shard.name)
            kinds[kind] = kinds.get(kind, 0) + entry.bytes
    parts = ", ".join(f"{kind} {size(count)}" for kind, count in kinds.items())
    rejects = sum(entry.bytes for entry in manifest.rejects)
    more = f", rejects {size(rejects)}" if rejects else ""
    whole = size(manifest.store_bytes)
    return f"{plural(len(manifest.shards), 'shard')}, {whole}: {parts}{more}"


def group_shards(store: StoreReader) -> list[dict[str, Any]]:
    """Documents and tokens by split, source and label, with sources in recipe order."""
    groups: dict[tuple[str, ShardLabel], list[int]] = {}
    for shard, origin in zip(store.manifest.shards, shard_labels(store), strict=True):
        counts = groups.setdefault((shard.split, origin), [0, 0, 0])
        for place, count in enumerate((shard.documents, shard.tokens, 1)):
            counts[place] += count
    return [
        {
            "split": split,
            "source": origin.source,
            "label": origin.label,
            "documents": documents,
            "tokens": tokens,
            "shards": shards,
        }
        for (split, origin), (documents, tokens, shards) in sorted(groups.items())
    ]


def group_lines(groups: list[dict[str, Any]]) -> list[Line]:
    """The groups as a table."""
    labels = any(group["label"] for group in groups)
    head = ["split", "source", *(["label"] if labels else []), "documents", "tokens", "shards"]
    rows: list[Line] = [[(word, "quiet") for word in head]]
    rows += [
        [
            group["split"],
            group["source"],
            *([group["label"] or ""] if labels else []),
            f"{group['documents']:,}",
            f"{group['tokens']:,}",
            f"{group['shards']:,}",
        ]
        for group in groups
    ]
    return table(rows, "lllrrr" if labels else "llrrr")


def length_lines(lengths: Lengths, width: int) -> list[Line]:
    """Document lengths, with a histogram by powers of two."""
    if not lengths.histogram:
        return [["  no documents"]]
    first = next(place for place, count in enumerate(lengths.histogram) if count)
    wide = max(1, min(3, (width - HISTOGRAM_START) // (len(lengths.histogram) - first)))
    bars = columns([count for count in lengths.histogram[first:] for _ in range(wide)], height=4)
    facts: list[Line] = [
        [("tokens per document", "quiet"), ""],
        [f"shortest {lengths.shortest:,}", f"90% have at most {lengths.p90:,}"],
        [f"median {lengths.median:,}", f"99% have at most {lengths.p99:,}"],
        [f"mean {lengths.mean:,.0f}", f"longest {lengths.longest:,}"],
    ]
    rows: list[Line] = [[*fact, (bars[place], "number")] for place, fact in enumerate(facts)]
    label = f"{2**first:,} to {2 ** len(lengths.histogram) - 1:,} tokens"
    rows.append(["", "", (label, "quiet")])
    return table(rows, "lll", gap=3)


def show_document(store: StoreReader, number: int, lines: int) -> None:
    """Print the beginning of a document, token by token, below a line with its origin."""
    if output.mode == "json":
        return
    tokens, provenance = store.documents[number], store.provenance(number)
    place = f"{provenance.source}/{provenance.file} at {provenance.position:,}"
    named = f", id {provenance.id}" if provenance.id is not None else ""
    counts = f"{provenance.text_bytes:,} bytes, {provenance.tokens:,} tokens"
    title = cut(f"document {number:,}", 20)
    output.line(
        "  ",
        (title, "title"),
        "  ",
        (cut(f"{place}{named}: {counts}", output.width - len(title) - 4), "quiet"),
    )
    entry = store.manifest.tokenizer
    special = {entry.eod_id} | ({entry.bos_id} if entry.bos_id is not None else set())
    for line in document_lines(store.tokenizer, tokens, special, output.width - 4, lines, output.color):
        output.line("  ", *line)
