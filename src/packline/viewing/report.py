"""A report on a store: one HTML file below a megabyte that opens anywhere, without a network or a script.

Other tokenizers are compared by bytes per token on a sample, the beginnings of documents spread evenly over
each source, since encoding a whole store again would take as long as building it. Names of control tokens in
a text are text, as in a build; control tokens themselves are left out. Cost: that of an analysis, and about a
second per megabyte of the sample and tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from packline.encoders.special_tokens import without_special_tokens
from packline.encoders.tokenizer import Tokenizer, load_tokenizer
from packline.errors import RecipeError, StoreError, refuse_unknown_names
from packline.packing.options import Packing, RowOptions
from packline.packing.rows import Rows
from packline.store.manifest import load_kept_tokenizer
from packline.store.reader import StoreReader, shard_labels
from packline.viewing.analysis import Analysis, analyze
from packline.viewing.columns import column_table, count_columns
from packline.viewing.describe import (
    analysis_warnings,
    finding_blocks,
    length_facts,
    length_table,
    packing_tables,
    source_tables,
    store_facts,
    store_warnings,
    vocabulary_facts,
)
from packline.viewing.html import check_place, render_file, write_page
from packline.viewing.page import Bar, Block, Heading, KeyValues, Note, Page, Table, Value
from packline.viewing.summaries import RATE, ledger_table
from packline.viewing.tally import OnProgress
from packline.viewing.text import percent, plural, short_name, size
from packline.viewing.tokens import row_strip

LARGEST = 950_000
ROWS = 3
ROW_TOKENS = 512
SEQ_LEN = 2048
TOP = 12
SAMPLED_SOURCES = 24
DOCUMENTS = 64
SAMPLE_BYTES = 192 << 10
"""Bytes of text sampled per source; the document that reaches this size is the last."""
MOST_TOKENS = 8192
"""Tokens read from the beginning of a document, at most."""


@refuse_unknown_names
def report(
    store: str | Path | StoreReader,
    *,
    out: str | Path,
    seq_len: int | None = None,
    packing: Packing = "concat",
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
    packing: Packing = "concat",
    against: str | Path | Sequence[str | Path] = (),
    rows: int = ROWS,
    workers: int | None = None,
    on_event: OnProgress = lambda tokens: None,
) -> Page:
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
    after = finding_blocks(analysis) if analysis.documents else []
    tokens = ROW_TOKENS
    while True:
        page = Page(
            f"Report on {opened.place}",
            (*before, *after, *_row_blocks(opened, length, packing, rows, tokens)),
            warnings=(*store_warnings(opened), *analysis_warnings(analysis)),
            summary=f"{plural(analysis.documents, 'document')}, {plural(analysis.tokens, 'token')}, "
            f"{size(analysis.text_bytes)} of text",
        )
        if tokens < 8 or len(render_file(page).encode("utf-8")) <= LARGEST:
            return page
        tokens //= 2


def fitting_length(store: StoreReader) -> int:
    """Typical row length, or a smaller power of two if the store has fewer tokens; 0 if it has none."""
    length = min(SEQ_LEN, store.manifest.tokens)
    return 1 << length.bit_length() - 1 if length > 1 else 0


def _store_blocks(store: StoreReader, analysis: Analysis, others: Sequence[Tokenizer]) -> list[Block]:
    facts = (*store_facts(store), *vocabulary_facts(analysis), *length_facts(analysis.lengths))
    blocks: list[Block] = [
        Heading("The store"),
        KeyValues(facts),
        Heading("Ledger"),
        ledger_table(store.manifest.ledger, analysis.prices),
        *column_table(store, count_columns(store)),
    ]
    if not analysis.documents:
        return [*blocks, Note("There are no documents in this store.", "warning")]
    blocks += [Heading("Sources"), *source_tables(analysis.groups)]
    blocks += [Heading("Lengths"), length_table(analysis.lengths)]
    if analysis.prices:
        about = (
            "Padding is a share of the positions of all rows, lost tokens a share of all tokens, split "
            "documents a share of all documents. A full bar is the largest of its column."
        )
        blocks += [Heading("Packing"), *packing_tables(analysis.prices), Note(about)]
    if others:
        blocks += [Heading("Compression"), *compression_blocks(store, others)]
    return blocks


def _row_blocks(store: StoreReader, length: int, packing: Packing, rows: int, tokens: int) -> list[Block]:
    if not rows or not length or not store.manifest.documents:
        return []
    split = "train" if "train" in store.manifest.shards.by_split("documents") else "all"
    try:
        found = Rows(store, length, RowOptions(packing=packing, split=split))
    except RecipeError:
        raise
    except StoreError as error:
        return [Heading("Rows"), Note(error.message, "warning")]
    count = min(rows, len(found))
    about = f"{plural(count, 'row')} of {len(found):,}, packed by {packing}, from all parts of the store."
    strips = [row_strip(found, turn * len(found) // count, most=tokens) for turn in range(count)]
    return [Heading("Rows"), Note(about), *strips]


class Compression(msgspec.Struct, frozen=True):
    """Token counts for a sample of one source."""

    source: str
    documents: int
    text_bytes: int
    tokens: tuple[int, ...]
    """Tokens with the store's tokenizer, then with each of the others; without boundary tokens."""

    def rates(self) -> list[float]:
        """Bytes per token with each tokenizer; 0 if there are no tokens."""
        return [self.text_bytes / count if count else 0.0 for count in self.tokens]


def compression_blocks(store: StoreReader, others: Sequence[Tokenizer]) -> list[Block]:
    found = measure_compression(store, others, SAMPLED_SOURCES)
    names = (short_name(store.manifest.tokenizer.name), *(short_name(one.name) for one in others))
    sizes = (store.manifest.tokenizer.vocab_size, *(one.vocab_size for one in others))
    head = ("source", *(f"{name} ({count:,})" for name, count in zip(names, sizes, strict=True)))
    top = max((rate for one in found for rate in one.rates()), default=0.0) or 1.0
    rows: list[tuple[Value, ...]] = []
    for one in found:
        own, *rates = one.rates()
        bars = [Bar(f"{own:.2f}", own / top)]
        bars += [Bar(f"{rate:.2f}" + (f" (×{rate / own:.2f})" if own else ""), rate / top) for rate in rates]
        rows.append((one.source, *bars))
    about = (
        "More bytes per token mean fewer tokens. Measured on "
        f"{size(sum(one.text_bytes for one in found))} of "
        f"{plural(sum(one.documents for one in found), 'document')} of the "
        f"{plural(len(found), 'largest source', 'largest sources')}, the same for all. In parentheses: "
        f"vocabulary size, and ratio to {names[0]}."
    )
    caption = f"{RATE.capitalize()}, by source"
    blocks: list[Block] = [Table(caption, head, tuple(rows), "l" + "r" * len(names)), Note(about)]
    for place, name in enumerate(names[1:], 1):
        own_tokens, other = (sum(one.tokens[column] for one in found) for column in (0, place))
        if own_tokens and other:
            word = "fewer" if other <= own_tokens else "more"
            change = f"{percent(abs(1 - other / own_tokens))} {word} tokens"
            blocks.append(Note(f"On this text {name} makes {change} than {names[0]}."))
    return blocks


def measure_compression(store: StoreReader, others: Sequence[Tokenizer], sources: int) -> list[Compression]:
    references = [
        msgspec.structs.replace(one, json=without_special_tokens(one)).reference() for one in others
    ]
    found = []
    for source, ranges in list(_largest(store).items())[:sources]:
        sample = list(_sample(store, ranges))
        texts = [text for parts in sample for text, _ in parts]
        tokens = [sum(count for parts in sample for _, count in parts)]
        for reference in references:
            encoded = reference.encode_batch_fast(texts, add_special_tokens=False)
            tokens.append(sum(len(one.ids) for one in encoded))
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        found.append(Compression(source, len(sample), size, tuple(tokens)))
    return found


def _largest(store: StoreReader) -> dict[str, list[range]]:
    """Document numbers of each source, the source with the most tokens first."""
    ranges: dict[str, list[range]] = {}
    tokens: dict[str, int] = {}
    for number, (shard, origin) in enumerate(zip(store.manifest.shards, shard_labels(store), strict=True)):
        first = int(store.firsts[number])
        ranges.setdefault(origin.source, []).append(range(first, first + shard.documents))
        tokens[origin.source] = tokens.get(origin.source, 0) + shard.tokens
    return {source: ranges[source] for source in sorted(ranges, key=lambda name: (-tokens[name], name))}


def _sample(store: StoreReader, ranges: list[range]) -> Iterator[list[tuple[str, int]]]:
    """For each document, the texts between its control tokens with their numbers of store tokens."""
    control = np.array(
        sorted(load_kept_tokenizer(store.files, store.manifest.tokenizer_files).special_tokens.values()),
        np.int64,
    )
    ends = np.cumsum([len(one) for one in ranges])
    whole, size = int(ends[-1]), 0
    before = 0 if store.manifest.tokenizer.bos_id is None else 1
    for turn in range(min(DOCUMENTS, whole)):
        place = (2 * turn + 1) * whole // (2 * min(DOCUMENTS, whole))
        number = int(np.searchsorted(ends, place, side="right"))
        document = ranges[number][place - (int(ends[number - 1]) if number else 0)]
        body = store.documents[document][before:-1][:MOST_TOKENS]
        parts = [
            (str(store.tokenizer.decode(part.tolist(), skip_special_tokens=False)), len(part))
            for part in _between(body, control)
        ]
        yield parts
        size += sum(len(text) for text, _ in parts)
        if size >= SAMPLE_BYTES:
            return


def _between(body: np.ndarray, control: np.ndarray) -> list[np.ndarray]:
    edges = np.flatnonzero(np.isin(body, control))
    parts = np.split(body, edges)
    return [part for part in (parts[0], *(one[1:] for one in parts[1:])) if len(part)]
