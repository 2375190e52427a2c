"""Pages that show tokens: a document, a row, a step, a list of documents; values in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import numpy as np

from packline.conversion import is_toml, kind_of
from packline.errors import RecipeError, unknown_name
from packline.formats.choice import make_choice, option_name
from packline.loading.loader import Loader
from packline.loading.mixture import Mixture
from packline.packing.layout import IGNORED
from packline.packing.options import DocumentFilter, ExportChoice, RowOptions
from packline.packing.row import Row
from packline.packing.rows import Rows
from packline.packing.selection import Selection
from packline.settings import RowKeywords
from packline.store.provenance import Provenance
from packline.store.reader import StoreReader, document_number, provenance_of
from packline.viewing.columns import column_facts, value_text
from packline.viewing.describe import left_out_facts, store_page
from packline.viewing.html import render_notebook
from packline.viewing.page import (
    Bar,
    Block,
    Heading,
    KeyValues,
    Link,
    Note,
    Page,
    Panel,
    Table,
    Value,
)
from packline.viewing.text import percent, plural, size, whole_characters
from packline.viewing.tokens import (
    MOST,
    Href,
    Vocabulary,
    cells_of,
    document_strip,
    row_strip,
)
from packline.viewing.turns import ROLE_CELLS, turns_in, with_loss_links, with_turns

if TYPE_CHECKING:
    from packline.loading.trace import StepTrace


BATCH_TOKENS = 512
"""Tokens of each row of a batch."""
OF_LOADER = ("batch_size", "seed", "epochs", "in_order")


def view(
    target: str | Path,
    *,
    document: int | None = None,
    row: int | None = None,
    step: int | None = None,
    rank: int | None = None,
    world_size: int = 1,
    first: int = 0,
    tokens: int | None = None,
    **settings: Unpack[RowKeywords],
) -> Page:
    """Show the tokens of a document, a row or a batch, or list documents.

    The page is HTML in a notebook, and text by `str` and `print`.

    Args:
        target: folder or URI of a store, or a run file (`.toml`), which is viewed one step at a time.
        document: document by its number; by default the first.
        row: row by its number, with `seq_len`; with `step` row of the batch.
        step: batch of this step, counted from 0.
        rank: with `step`: only the rows of this rank.
        world_size: ranks that share a batch.
        first: first token of the document, or first document of a list.
        tokens: maximum tokens.
        **settings: choice of documents, such as `where`, `split`, `labels`, which alone lists them, and
            settings of rows; see `packline.settings.RowKeywords`.

    Raises:
        RecipeError: settings contradict each other, or there is no such row or step.
        StoreError: no store, or no such document.

    >>> print(view(store.path, document=0, tokens=2))
      Document 0
    ...
    """
    choice, rest = make_choice(dict(settings))
    if rest:
        raise unknown_name(f"no setting {min(rest)!r}", min(rest), ExportChoice.__struct_fields__)
    given: dict[str, Any] = msgspec.to_builtins(choice)
    given = {name: value for name, value in given.items() if value is not None}
    if first < 0 or (tokens is not None and tokens < 1):
        raise RecipeError("expected --first of 0 or more and --tokens of 1 or more")
    if document is not None and (step is not None or row is not None):
        raise RecipeError("expected one of --document, --row and --step, found several")
    if step is not None:
        loader = open_run(target, world_size, given)
        most = tokens or (BATCH_TOKENS if row is None else MOST)
        return step_page(loader, step, rank=rank, row=row, most=most)
    if kind_of(target) == "run file":
        raise RecipeError("--step is missing: a run file is viewed one batch at a time", hint="--step 0")
    of_step = [name for name in OF_LOADER if name in given]
    of_step += ["rank"] * (rank is not None) + ["world_size"] * (world_size != 1)
    if of_step:
        raise RecipeError(f"{option_name(of_step[0])} belongs to --step, the batch of a step")
    store = StoreReader(target)
    if row is not None:
        if "seq_len" not in given:
            raise RecipeError(
                "--seq-len is missing: it is the length of the rows",
                hint=f"packline view STORE --row {row} --seq-len 4096 --packing best_fit",
            )
        rows = Rows(store, given.pop("seq_len"), RowOptions(**given))
        if not -len(rows) <= row < len(rows):
            raise RecipeError(f"row {row:,}: expected 0 to {len(rows) - 1:,}, the rows of {target}")
        return row_page(rows, row, most=tokens or MOST)
    if of_rows := sorted(set(given) - set(DocumentFilter.__struct_fields__)):
        raise RecipeError(f"{option_name(of_rows[0])} belongs to --row, which is missing", hint="--row 0")
    if not given:
        return document_page(store, document or 0, first=first, most=tokens or MOST)
    if document is not None:
        raise RecipeError(f"{option_name(min(given))} lists documents, and excludes --document")
    return documents_page(Selection(store, DocumentFilter(**{"split": "all", **given})), first=first)


def open_run(target: str | Path, world_size: int, given: dict[str, Any]) -> Loader:
    """Loader of a training run: of a run file, or of a store with the settings of a run.

    Raises:
        RecipeError: settings are missing, or also made by the run file.
    """
    if is_toml(target):
        if given:
            raise RecipeError(f"{option_name(min(given))} is for a store: {target} has its own settings")
        return Loader.from_file(target, world_size=world_size, prefetch=0)
    for name in ("seq_len", "batch_size"):
        if name not in given:
            raise RecipeError(
                f"{option_name(name)} is required: a store alone does not determine the batches",
                hint="give the settings of the training run, or its run file (run.toml)",
            )
    of_rows = {name: value for name, value in given.items() if name in RowOptions.__struct_fields__}
    of_loader = {name: given[name] for name in ("batch_size", "seed", "epochs") if name in given}
    rows = Rows(StoreReader(target), given["seq_len"], RowOptions(**of_rows))
    shuffle = not given.get("in_order", False)
    return Loader(rows, world_size=world_size, shuffle=shuffle, prefetch=0, **{"seed": 0, **of_loader})


NOTEBOOK_TOKENS = 256
NOTEBOOK_ROWS = 2


def document_page(store: StoreReader, document: int, *, first: int = 0, most: int = MOST) -> Page:
    document = document_number(store, document)
    provenance = provenance_of(store, np.array([document]))[0]
    strip = document_strip(store, document, first=first, most=most, provenance=provenance)
    strip = with_turns(replace(strip, headings=False), document)
    share = loss_share(store, document)
    loss = "" if share is None else f", {percent(share)} in the loss"
    return Page(
        f"Document {document:,} of {store.place}",
        (Panel("facts", ((KeyValues(document_facts(provenance)),), (strip,))),),
        summary=f"{plural(provenance.tokens, 'token')}, {size(provenance.text_bytes)} of text{loss}",
    )


def loss_share(store: StoreReader, document: int) -> float | None:
    shard, inner = store.locate(document)
    if shard.loss is None:
        return None
    place, count = int(shard.places(slice(inner, inner + 1))[0]), len(shard.document(inner))
    return float(np.count_nonzero(shard.loss[place : place + count])) / max(count, 1)


def document_facts(provenance: Provenance) -> tuple[tuple[str, str], ...]:
    rate = provenance.text_bytes / provenance.tokens if provenance.tokens else 0.0
    facts = [
        ("source", provenance.source),
        ("file", provenance.file),
        ("position", f"{provenance.position:,}"),
        ("id", provenance.id),
        ("label", provenance.label),
        ("split", provenance.split),
        ("bytes per token", f"{rate:.2f}" if provenance.text_bytes else None),
    ]
    known = tuple((name, value) for name, value in facts if value is not None)
    return (*known, *column_facts(provenance))


def row_page(rows: Rows, index: int, *, most: int = MOST) -> Page:
    index = range(len(rows))[index]
    summary = f"rows of {plural(rows.seq_len, 'token')} over {rows.store.place}"
    return Page(f"Row {index:,} of {len(rows):,}", (row_panel(rows, index, most),), summary=summary)


def row_panel(
    rows: Rows, index: int, most: int, href: Href | None = None, facts: tuple[tuple[str, str], ...] = ()
) -> Panel:
    """Facts and tokens of a row, with links to its turns in the loss."""
    strip, learned = with_loss_links(row_strip(rows, index, caption="", most=most, href=href))
    return Panel("facts", ((KeyValues((*row_facts(rows, index), *facts)),), (*learned, strip)))


def row_facts(rows: Rows, index: int) -> tuple[tuple[str, str], ...]:
    arrays = rows.read(np.array([index]), ("targets", "segment_ids"))
    spans = len(rows.spans(np.array([index])).documents)
    targets, padding = int((arrays["targets"] != IGNORED).sum()), int((arrays["segment_ids"] < 0).sum())
    return (
        ("documents", f"{spans:,}"),
        ("in the loss", f"{plural(targets, 'target')}, {percent(targets / rows.seq_len)} of the row"),
        ("padding", f"{plural(padding, 'token')}, {percent(padding / rows.seq_len)} of the row"),
    )


def step_page(
    loader: Loader,
    step: int,
    *,
    rank: int | None = None,
    row: int | None = None,
    most: int = MOST,
) -> Page:
    from packline.loading.trace import trace_step

    found = trace_step(loader, step, rank=rank, row=row)
    strips = _row_strips(loader, found, most)
    facts = (
        ("stage", f"{found.stage} of {found.stages}, counted from 0"),
        ("batch", f"{plural(found.batch_size, 'row')} of {plural(found.seq_len, 'token')}"),
        ("shared by", plural(found.world_size, "rank")),
        ("fingerprint", found.fingerprint),
    )
    shown = "" if len(found.rows) == found.batch_size else f"{plural(len(found.rows), 'row')} shown"
    title = f"Step {found.step:,} of {found.steps:,}"
    return Page(title, (KeyValues(facts), *strips), summary=shown or "counted from 0; all of its rows")


def _row_strips(loader: Loader, found: StepTrace, most: int) -> list[Block]:
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
            )
        )
    return strips


def rows_page(rows: Rows) -> Page:
    facts = (
        ("rows", f"{len(rows):,} of {plural(rows.seq_len, 'token')}"),
        ("packing", rows.packing),
        ("packs", f"{plural(len(rows.selection), 'document')}, {plural(rows.selection.tokens, 'token')}"),
        *left_out_facts(rows.selection),
    )
    strip = row_strip(rows, 0, most=NOTEBOOK_TOKENS)
    return Page(f"Rows of {rows.store.place}", (KeyValues(facts), strip))


def loader_page(loader: Loader) -> Page:
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
    return Page("Loader", (KeyValues(facts), heading, *strips))


def mixture_page(mixture: Mixture) -> Page:
    shares = [float(share) for share in mixture.shares]
    most = max(shares)
    rows: list[tuple[Value, ...]] = []
    lasts: list[float] = []
    for source, share, epochs in zip(mixture.rows, shares, mixture.max_epochs, strict=True):
        lasts.append(float("inf") if epochs is None else len(source) * epochs / share)
        options = getattr(source, "options", None)
        chosen = [options.sources, options.labels] if options is not None else []
        names = [one if isinstance(one, str) else ", ".join(one) for one in chosen if one]
        bar = Bar(percent(share), share / most)
        times = "no limit" if epochs is None else f"{epochs:,}"
        rows.append((" ".join([str(source.store.path), *names]), bar, f"{len(source):,}", times))
    head = ("source", "share of rows", "rows", "most passes")
    lines: list[Block] = [Table("", head, tuple(rows), "lrrr")]
    length = min(lasts)
    if length != float("inf"):
        first = rows[lasts.index(length)][0]
        tokens = int(length) * mixture.seq_len
        lines.append(Note(f"Lasts for about {plural(tokens, 'token')}; then {first} is used up."))
    return Page(f"Mixture of {plural(len(rows), 'source')}, rows of {mixture.seq_len:,} tokens", tuple(lines))


def to_html(value: object) -> str:
    return str(render_notebook(page_of(value)))


@singledispatch
def page_of(value: object) -> Page:
    raise TypeError(f"no page for {type(value).__name__}")


page_of.register(Page, lambda page: page)
page_of.register(StoreReader, store_page)
page_of.register(Rows, rows_page)
page_of.register(Loader, loader_page)
page_of.register(Mixture, mixture_page)


@page_of.register
def _(row: Row) -> Page:
    return row_page(row.source, row.index, most=NOTEBOOK_TOKENS)


LISTED = 25
BEGINNING = 64
"""Most tokens that are shown of each document; a character of rare scripts takes up to four."""
SHOWN_CHARACTERS = 60
SHOWN_COLUMNS = 3
CHAT_COLUMNS = ("turns", "in the loss")
NUMBERS = frozenset({"tokens", "text_bytes", "position", *CHAT_COLUMNS})


def documents_page(selection: Selection, *, first: int) -> Page:
    """Page of the documents of a selection, in its order, from the document at place `first`."""
    store, count = selection.store, len(selection)
    if not 0 <= first < count:
        raise RecipeError(f"first is {first:,}: expected 0 to {count - 1:,}, the documents chosen")
    numbers = selection.documents(np.arange(first, min(first + LISTED, count), dtype=np.int64))
    known = provenance_of(store, numbers)
    blocks: list[Block] = [KeyValues(facts)] if (facts := left_out_facts(selection)) else []
    caption = f"{first:,} to {first + len(numbers) - 1:,} of {plural(count, 'document')}"
    carried = list(dict.fromkeys(name for one in known for name in one.columns))[:SHOWN_COLUMNS]
    names = [*(CHAT_COLUMNS if has_loss(store) else ()), "tokens", "text_bytes", "source", *carried]
    table = document_table(store, numbers.tolist(), known, caption, names)
    head = tuple("bytes" if name == "text_bytes" else name for name in table.head_texts)
    blocks.append(replace(table, head=head))
    summary = f"{count:,} of {plural(len(store.documents), 'document')}, {plural(selection.tokens, 'token')}"
    return Page(f"Documents of {store.place}", tuple(blocks), summary=summary)


def has_loss(store: StoreReader) -> bool:
    return any(shard.has_loss for shard in store.shards[:1])


def document_table(
    store: StoreReader,
    documents: Sequence[int],
    known: Sequence[Provenance],
    caption: str,
    names: Sequence[str],
    hrefs: Sequence[str] = (),
) -> Table:
    """Table of documents, each with its beginning and its columns, fixed, carried, or of `CHAT_COLUMNS`."""
    vocabulary = Vocabulary.of_store(store)
    rows: list[tuple[Value, ...]] = []
    for place, (document, one) in enumerate(zip(documents, known, strict=True)):
        tokens = store.documents[document]
        turns = document_turns(vocabulary, tokens) if has_loss(store) else []
        user = next((start for start, role in turns if role == "user"), 0)
        begins = beginning(vocabulary, tokens[user:])
        values = {"turns": f"{len(turns)}", "in the loss": percent(loss_share(store, document) or 0.0)}
        rows.append(
            (
                Link(f"{document:,}", hrefs[place]) if hrefs else f"{document:,}",
                begins.removeprefix("user ") if user else begins,
                *(values.get(name) or _shown_value(one, name) for name in names),
            )
        )
    align = "".join("r" if name in NUMBERS else "l" for name in names)
    return Table(caption, ("document", "begins", *names), tuple(rows), f"ll{align}", form="data")


def _shown_value(one: Provenance, name: str) -> str:
    value = one.columns[name] if name in one.columns else getattr(one, name, None)
    if name == "hash" and isinstance(value, int):
        return f"{value:016x}"
    return "" if value is None else value_text(value, SHOWN_CHARACTERS)


def document_turns(vocabulary: Vocabulary, tokens: np.ndarray) -> list[tuple[int, str]]:
    """First token and role of each turn of a document; reads only what follows its control tokens."""
    control = np.flatnonzero(np.isin(tokens, list(vocabulary.special)))
    near = np.unique(control[:, None] + np.arange(ROLE_CELLS + 1))
    places = near[near < len(tokens)]
    cells = cells_of(vocabulary, tokens[places], position_ids=places)
    return [(cells[place].position, role) for place, role in turns_in(cells)]


def beginning(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    ids = [one for one in tokens[:BEGINNING].tolist() if one not in vocabulary.special]
    cut = len(tokens) > BEGINNING
    text = " ".join(whole_characters(plain_bytes(vocabulary, ids), last=cut).split())
    more = cut or len(text) > SHOWN_CHARACTERS
    return text[:SHOWN_CHARACTERS] + ("…" if more else "")


def plain_bytes(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    """Tokens as bytes, special ones by name."""
    parts: list[bytes] = []
    for one in ids:
        known = one < len(vocabulary)
        parts.append(vocabulary.special[one].encode() if one in vocabulary.special else b"")
        parts.append(vocabulary.data[one] if known else f"id {one}".encode())
    return b"".join(parts)
