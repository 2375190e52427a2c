"""Description of the difference between two stores as blocks of a page."""

from __future__ import annotations

import msgspec

from packline.store.difference import Change, SourceDifference, StoreDifference
from packline.viewing.page import Block, Heading, KeyValues, Note, Table
from packline.viewing.text import plural, size

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
    """Blocks that show what differs."""
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
    """Table of settings with another value."""
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
