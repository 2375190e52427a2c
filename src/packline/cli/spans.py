"""Rows of a batch as text: one block per row, with the origin and beginning of each span.

    row 3  rank 0, place 3: row 12,038 of store, epoch 0; 1,024 tokens in 2 spans, 100 of padding
         0  866 tokens: document 14,895 from 115 of 981
            web/a.jsonl at 7,749,032, id a1b2
            the│ begin│ning│ of│ its│ text│↵ …

Text and names never control the terminal: all of them go through `output`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from packline.cli.output import Line, Piece, output, table
from packline.store.reader import StoreReader
from packline.store.shard import Provenance
from packline.viewing.page import TokenStrip
from packline.viewing.terminal import GUTTER, strip_lines
from packline.viewing.text import plural
from packline.viewing.tokens import Vocabulary, cells_of

if TYPE_CHECKING:
    from packline.loading.trace import RowTrace, SpanTrace, StepTrace

TEXT_TOKENS = 64
"""Tokens of a span that are decoded; more than fit in a line."""
INDENT = 12


def step_lines(found: StepTrace, target: str) -> list[Line]:
    """Lines that identify a batch."""
    step = f"{found.step:,} of {found.steps:,}, counted from 0; stage {found.stage} of {found.stages:,}"
    batch = f"{plural(found.batch_size, 'row')} of {found.seq_len:,} tokens, shared by "
    rows: list[Line] = [
        [("run", "quiet"), (target, "title")],
        [("step", "quiet"), step],
        [("batch", "quiet"), batch + plural(found.world_size, "rank")],
        [("fingerprint", "quiet"), found.fingerprint],
    ]
    return table(rows, "ll", width=output.wrap)


def show_row(store: StoreReader, row: RowTrace, most: int | None) -> None:
    """Print one row, with at most `most` of its spans; None for all."""
    if output.mode == "json":
        return
    filled = sum(span.tokens for span in row.spans)
    padding = f", {row.padding:,} of padding" if row.padding else ""
    output.line(
        "  ",
        (f"row {row.index}", "title"),
        f"  rank {row.rank}, place {row.place}: row {row.row:,} of {store.path}, epoch {row.epoch}; ",
        (f"{plural(filled, 'token')} in {plural(len(row.spans), 'span')}{padding}", "quiet"),
    )
    shown = row.spans if most is None else row.spans[:most]
    for span in shown:
        _show_span(store, span)
    if rest := len(row.spans) - len(shown):
        output.line(" " * INDENT, (f"and {plural(rest, 'more span')}: --row {row.index} shows all", "quiet"))


def origin(provenance: Provenance) -> str:
    """Origin of a document, in one line."""
    named = f", id {provenance.id}" if provenance.id is not None else ""
    return f"{provenance.source}/{provenance.file} at {provenance.position:,}{named}"


def text_of(store: StoreReader, span: SpanTrace) -> str:
    """Beginning of a span, as text."""
    return str(store.tokenizer.decode(_first_tokens(store, span), skip_special_tokens=False))


def _show_span(store: StoreReader, span: SpanTrace) -> None:
    whole = span.tokens == span.provenance.tokens
    part = "whole" if whole else f"from {span.start:,} of {span.provenance.tokens:,}"
    output.line(
        "    ",
        (f"{span.column:>6,}", "number"),
        f"  {plural(span.tokens, 'token')}: ",
        (f"document {span.document:,}", "title"),
        f" {part}",
    )
    output.line(" " * INDENT, (origin(span.provenance), "quiet"))
    output.line(" " * INDENT, *_token_line(store, span, output.width - INDENT, output.color))


def _first_tokens(store: StoreReader, span: SpanTrace) -> list[int]:
    stop = span.start + min(span.tokens, TEXT_TOKENS)
    return store.documents[span.document][span.start : stop].tolist()


def _token_line(store: StoreReader, span: SpanTrace, width: int, color: bool) -> list[Piece]:
    """The first tokens in one line of at most `width` columns, up to the first line end."""
    ids = np.array(_first_tokens(store, span), np.int64)
    strip = TokenStrip("", cells_of(Vocabulary.of_store(store), ids, first=span.start))
    (_, *pieces), *more = strip_lines(strip, width + GUTTER, color)
    return [*pieces, (" …", "quiet")] if more or len(ids) < span.tokens else pieces
