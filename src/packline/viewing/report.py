"""A report on a store: one HTML file that opens anywhere, without a network or a script.

    analysis (every token, one pass) ─┐
    manifest, ledger ─────────────────┼──> Page ──> html.document ──> report.html, below 1 MB
    a sample against other tokenizers ┤
    a few rows, token by token ───────┘

Warnings come first, then the identity of the store, its ledger, sources of tokens, lengths of documents,
costs of packings, some rows, and suspicious documents.

Cost: that of an analysis, which is close to the time to read the store. The file stays below a megabyte:
tokens of rows are left out if necessary, and the page reports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import RecipeError, StoreError
from packline.packing.packer import RowOptions
from packline.packing.rows import Rows
from packline.store.reader import StoreReader
from packline.viewing.analysis import Analysis, analyze
from packline.viewing.analysis_page import (
    duplicate_blocks,
    lengths_histogram,
    suspicious_blocks,
    token_tables,
    warnings_of,
)
from packline.viewing.counting import OnProgress
from packline.viewing.html import document
from packline.viewing.page import Block, Heading, Note, Page
from packline.viewing.page_file import check_place, write_page
from packline.viewing.report_blocks import (
    compression_blocks,
    identity,
    ledger_flow,
    ledger_warnings,
    price_blocks,
    source_blocks,
    with_quantiles,
)
from packline.viewing.strips import row_strip
from packline.viewing.text import plural, size

LARGEST = 950_000
"""Maximum size of the file, in bytes."""
ROWS = 3
ROW_TOKENS = 512
SEQ_LEN = 2048
TOP = 12
NEIGHBOURS = 64
"""Neighbouring rows from which one is chosen to be shown."""


def report(
    store: str | Path | StoreReader,
    *,
    out: str | Path,
    seq_len: int | None = None,
    packing: str = "concat",
    against: str | Path | Sequence[str | Path] = (),
    rows: int = ROWS,
    workers: int | None = None,
    on_event: OnProgress = lambda tokens: None,
) -> Path:
    """Write a report on a store as one HTML file.

    Args:
        store: the store, or its folder.
        out: path of the file, which is replaced if it exists; its folder must exist.
        seq_len: tokens per row, for the costs of packings and the rows shown; default 2,048, or less if the
            store has fewer tokens.
        packing: packing of the rows shown.
        against: tokenizers to compare with the store's, in any form that `build` takes.
        rows: number of rows to show.
        workers: number of processes; None: one per core of this process, 0: work in this process.
        on_event: called with the number of tokens counted since the last call.

    Returns:
        The path of the file.

    Raises:
        PacklineError: the store is missing or damaged, a setting is invalid, or `out` cannot be written.

    >>> import tempfile, pathlib
    >>> file = report(store, out=pathlib.Path(tempfile.mkdtemp()) / "report.html", workers=0)
    >>> file.read_text("utf-8").startswith("<!doctype html>")
    True
    """
    path = check_place(out)
    page = report_page(
        store,
        seq_len=seq_len,
        packing=packing,
        against=against,
        rows=rows,
        workers=workers,
        on_event=on_event,
    )
    write_page(page, path)
    return path


def report_page(
    store: str | Path | StoreReader,
    *,
    seq_len: int | None = None,
    packing: str = "concat",
    against: str | Path | Sequence[str | Path] = (),
    rows: int = ROWS,
    workers: int | None = None,
    on_event: OnProgress = lambda tokens: None,
) -> Page:
    """Report as a page for any surface; see `report`."""
    if rows < 0:
        raise RecipeError(f"rows is {rows}: expected 0 or more")
    opened = store if isinstance(store, StoreReader) else StoreReader(store)
    named = [against] if isinstance(against, str | Path) else against
    others = [load_tokenizer(str(name)) for name in named]
    length = fitting_length(opened) if seq_len is None else seq_len
    analysis = analyze(
        opened, seq_len=(length,) if length else (), top=TOP, workers=workers, on_event=on_event
    )
    before = _store_blocks(opened, analysis, others)
    after = _finding_blocks(analysis)
    tokens = ROW_TOKENS
    while True:
        page = Page(
            f"Report on {opened.path}",
            (*before, *_row_blocks(opened, length, packing, rows, tokens), *after),
            warnings=(*ledger_warnings(opened), *warnings_of(analysis)),
            summary=f"{plural(analysis.documents, 'document')}, {plural(analysis.tokens, 'token')}, "
            f"{size(analysis.text_bytes)} of text",
        )
        if tokens < 8 or len(document(page).encode("utf-8")) <= LARGEST:
            return page
        tokens //= 2


def fitting_length(store: StoreReader) -> int:
    """Typical row length, or a smaller power of two if the store has fewer tokens; 0 if it has none."""
    length = min(SEQ_LEN, store.manifest.tokens)
    return 1 << length.bit_length() - 1 if length > 1 else 0


def _store_blocks(store: StoreReader, analysis: Analysis, others: Sequence[Tokenizer]) -> list[Block]:
    """Blocks on the store, its ledger, sources, lengths, costs of packings and compression."""
    blocks: list[Block] = [
        Heading("The store"),
        identity(store, analysis),
        Heading("From documents to tokens"),
    ]
    blocks.append(ledger_flow(store, analysis))
    if not analysis.documents:
        return [*blocks, Note("There is no document in this store.", "warning")]
    blocks += [Heading("Sources"), *source_blocks(analysis)]
    blocks += [Heading("Lengths"), with_quantiles(lengths_histogram(analysis), analysis.lengths)]
    if analysis.prices:
        blocks += [Heading("Packing"), *price_blocks(analysis)]
    if others:
        blocks += [Heading("Compression"), *compression_blocks(store, others)]
    return blocks


def _row_blocks(store: StoreReader, length: int, packing: str, rows: int, tokens: int) -> list[Block]:
    """Blocks of a few rows from all parts of the store."""
    if not rows or not length or not store.manifest.documents:
        return []
    split = "train" if any(shard.split == "train" for shard in store.manifest.shards) else "all"
    try:
        found = Rows(store, length, RowOptions(packing=packing, split=split))
    except RecipeError:
        raise
    except StoreError as error:
        return [Heading("Rows"), Note(error.message, "warning")]
    count = min(rows, len(found))
    said = (
        f"{plural(count, 'row')} of {len(found):,}, packed by {packing}, from all over the store: of "
        f"{NEIGHBOURS} neighbours the one with most documents in the first {min(tokens, length):,} tokens."
    )
    strips = [row_strip(found, place, most=tokens) for place in telling_rows(found, count, tokens)]
    return [Heading("Rows"), Note(said), *strips]


def telling_rows(rows: Rows, count: int, tokens: int) -> list[int]:
    """Choose rows evenly over the store, of each neighbourhood the one that begins with most documents.

    Args:
        tokens: number of tokens of each row to consider.
    """
    found: list[int] = []
    for turn in range(count):
        first, end = turn * len(rows) // count, (turn + 1) * len(rows) // count
        start = first + max(end - first - NEIGHBOURS, 0) // 2
        spans = rows.spans(np.arange(start, min(start + NEIGHBOURS, end)))
        ends = np.cumsum(spans.lengths)
        before = np.repeat(ends[spans.offsets[1:] - 1] - spans.filled, np.diff(spans.offsets))
        begins = ends - spans.lengths - before  # start of each span in its row
        seen = np.add.reduceat((begins < tokens).astype(np.int64), spans.offsets[:-1])
        found.append(start + int(np.argmax(seen)))
    return found


def _finding_blocks(analysis: Analysis) -> list[Block]:
    """Blocks of most used and unused tokens, suspicious documents, and duplicates."""
    if not analysis.documents:
        return []
    return [
        Heading("Tokens"),
        *token_tables(analysis),
        Heading("Documents that look wrong"),
        *suspicious_blocks(analysis),
        Heading("Duplicated documents"),
        *duplicate_blocks(analysis),
    ]
