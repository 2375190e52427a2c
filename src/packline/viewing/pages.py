"""Pages that show tokens: a document, a row, a batch; and summaries of stores and rows for notebooks.

Each page has facts and a strip of tokens. `terminal` and `html` render them; counts over a whole store are in
`analysis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packline.packing.batch import IGNORED
from packline.store.lookup import document_number, provenance_of
from packline.store.reader import StoreReader, shard_labels
from packline.store.shard import Provenance
from packline.viewing.page import Block, Facts, Heading, Page, Table
from packline.viewing.strips import MOST, AnyRows, Href, document_strip, row_strip
from packline.viewing.text import percent, plural, size

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.trace import StepTrace
    from packline.packing.rows import Rows

NOTEBOOK_TOKENS = 256
NOTEBOOK_ROWS = 2


def document_page(
    store: StoreReader, document: int, *, first: int = 0, most: int = MOST, href: Href | None = None
) -> Page:
    """Page of a document: its origin and its tokens.

    Raises:
        StoreError: the document does not exist.
    """
    document = document_number(store, document)
    provenance = provenance_of(store, np.array([document]))[0]
    strip = document_strip(store, document, first=first, most=most, provenance=provenance, href=href)
    return Page(
        f"Document {document:,} of {store.path}",
        (Facts(document_facts(provenance)), strip),
        summary=f"{plural(provenance.tokens, 'token')}, {size(provenance.text_bytes)} of text",
    )


def document_facts(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    """Facts about the origin of a document."""
    rate = provenance.text_bytes / provenance.tokens if provenance.tokens else 0.0
    facts = [
        ("source", provenance.source),
        ("file", provenance.file),
        ("position", f"{provenance.position:,}"),
        ("id", provenance.id),
        ("label", provenance.label),
        ("split", provenance.split),
        ("bytes/token", f"{rate:.2f}" if provenance.text_bytes else None),
    ]
    return tuple((name, value) for name, value in facts if value is not None)


def row_page(rows: AnyRows, index: int, *, most: int = MOST, href: Href | None = None) -> Page:
    """Page of a row: its documents and their edges, learned tokens, padding.

    Raises:
        IndexError: the row does not exist.
    """
    index = range(len(rows))[index]
    strip = row_strip(rows, index, caption="", most=most, href=href)
    return Page(
        f"Row {index:,} of {len(rows):,}",
        (Facts(row_facts(rows, index)), strip),
        summary=f"rows of {plural(rows.seq_len, 'token')} over {rows.store.path}",
    )


def row_facts(rows: AnyRows, index: int) -> tuple[tuple[str, str], ...]:
    """Counts of documents, targets and padding in a row."""
    arrays = rows.read(np.array([index]), ("targets", "segment_ids"))
    spans = len(rows.spans(np.array([index])).documents)
    targets, padding = int((arrays["targets"] != IGNORED).sum()), int((arrays["segment_ids"] < 0).sum())
    return (
        ("spans", f"{spans:,}"),
        ("learned from", f"{plural(targets, 'target')}, {percent(targets / rows.seq_len)} of the row"),
        ("padding", f"{plural(padding, 'token')}, {percent(padding / rows.seq_len)} of the row"),
    )


def step_page(
    loader: Loader,
    step: int,
    *,
    rank: int | None = None,
    row: int | None = None,
    most: int = MOST,
    href: Href | None = None,
) -> Page:
    """Page of the batch of a step, one strip per row.

    Args:
        rank: show only the rows of this rank.
        row: show only this row of the global batch.

    Raises:
        RecipeError: the step, rank or row does not exist.
    """
    from packline.loading.trace import trace_step

    found = trace_step(loader, step, rank=rank, row=row)
    strips = _row_strips(loader, found, most, href)
    facts = (
        ("stage", f"{found.stage} of {found.stages}, counted from 0"),
        ("batch", f"{plural(found.batch_size, 'row')} of {plural(found.seq_len, 'token')}"),
        ("shared by", plural(found.world_size, "rank")),
        ("fingerprint", found.fingerprint),
    )
    shown = "" if len(found.rows) == found.batch_size else f"{plural(len(found.rows), 'row')} of it shown"
    title = f"Step {found.step:,} of {found.steps:,}"
    return Page(title, (Facts(facts), *strips), summary=shown or "counted from 0; all of its rows")


def _row_strips(loader: Loader, found: StepTrace, most: int, href: Href | None = None) -> list[Block]:
    stage = loader.schedule.stages[found.stage]
    strips: list[Block] = []
    for one in found.rows:
        where = f"row {one.index:,}: rank {one.rank}, place {one.place}"
        padding = f", {one.padding:,} of padding" if one.padding else ""
        strips.append(
            row_strip(
                stage.mixture.rows[one.source],
                one.row,
                caption=f"{where}; row {one.row:,} of {one.store}, epoch {one.epoch}{padding}",
                most=most,
                provenances=[span.provenance for span in one.spans],
                href=href,
            )
        )
    return strips


def store_page(store: StoreReader) -> Page:
    """Summary of a store, read from its manifest alone."""
    manifest = store.manifest
    entry, ledger = manifest.tokenizer, manifest.ledger
    rate = f", {ledger.text_bytes / ledger.text_tokens:.2f} bytes/token" if ledger.text_tokens else ""
    facts = (
        ("documents", f"{manifest.documents:,}"),
        ("tokens", f"{manifest.tokens:,}"),
        ("tokenizer", f"{entry.name}, {entry.vocab_size:,} tokens as {manifest.dtype}"),
        ("text", f"{size(ledger.text_bytes)} of {plural(len(manifest.inputs), 'file')}{rate}"),
        ("documents end with", f"{entry.eod} ({entry.eod_id})"),
        ("on disk", plural(len(manifest.shards), "shard")),
    )
    groups: dict[tuple[str, str, str], list[int]] = {}
    for shard, origin in zip(manifest.shards, shard_labels(store), strict=True):
        counts = groups.setdefault((shard.split, origin.source, origin.label or ""), [0, 0])
        counts[0] += shard.documents
        counts[1] += shard.tokens
    labels = any(label for _, _, label in groups)
    rows = tuple(
        (source, split, *([label] if labels else []), f"{documents:,}", f"{tokens:,}")
        for (split, source, label), (documents, tokens) in sorted(groups.items())
    )
    head = ("source", "split", *(["label"] if labels else []), "documents", "tokens")
    table = Table("By source", head, rows, "lllrr" if labels else "llrr")
    return Page(f"Store {store.path}", (Facts(facts), table))


def rows_page(rows: Rows) -> Page:
    """Summary of rows, with the beginning of the first."""
    facts = (
        ("rows", f"{len(rows):,} of {plural(rows.seq_len, 'token')}"),
        ("packing", rows.packing),
        ("packs", f"{plural(len(rows.selection), 'document')}, {plural(rows.selection.tokens, 'token')}"),
    )
    strip = row_strip(rows, 0, most=NOTEBOOK_TOKENS)
    return Page(f"Rows of {rows.store.path}", (Facts(facts), strip))


def loader_page(loader: Loader) -> Page:
    """Position of a loader, with the beginnings of the first rows of the next batch on its rank."""
    from packline.loading.trace import trace_step

    steps = len(loader)
    step = min(loader.step, steps - 1)
    size = loader.schedule.stage_of(step).batch_size // loader.world_size
    strips: list[Block] = []
    for row in range(loader.rank * size, loader.rank * size + min(size, NOTEBOOK_ROWS)):
        strips += _row_strips(loader, trace_step(loader, step, row=row), NOTEBOOK_TOKENS // NOTEBOOK_ROWS)
    facts = (
        ("step", f"{loader.step:,} of {steps:,}"),
        ("batch", f"{plural(size, 'row')} on rank {loader.rank} of {loader.world_size}"),
        ("seed", str(loader.seed)),
        ("fingerprint", loader.fingerprint),
    )
    beyond = loader.step >= steps
    heading = Heading(f"The {'last' if beyond else 'next'} batch, step {step:,}, its first rows")
    return Page("Loader", (Facts(facts), heading, *strips))
