"""`packline trace`: the documents of a batch, and the batches of a document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Group, Parameter

from packline.cli.arguments import Count, RowArguments, option
from packline.cli.output import Line, output, table
from packline.conversion import is_toml
from packline.errors import CorruptStore, RecipeError, StoreError
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import StoreReader, document_number
from packline.viewing.text import cut, plural, visible
from packline.viewing.tokens import describe_origin
from packline.viewing.view import open_run

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.trace import Occurrence, RowTrace, SpanTrace


TEXT_TOKENS = 64
"""Tokens of a span that are decoded; more than fit in a line."""
INDENT = 12


def row_lines(store: StoreReader, row: RowTrace, most: int | None) -> list[Line]:
    """Lines of one row, with at most `most` of its spans; None for all."""
    filled = sum(span.tokens for span in row.spans)
    padding = f", {row.padding:,} of padding" if row.padding else ""
    lines: list[Line] = [
        [
            "  ",
            (f"row {row.index}", "title"),
            f"  rank {row.rank}, slot {row.place}: row {row.row:,} of {store.place}, epoch {row.epoch}; ",
            (f"{plural(filled, 'token')} in {plural(len(row.spans), 'span')}{padding}", "quiet"),
        ]
    ]
    for span in row.spans[:most]:
        whole = span.tokens == span.provenance.tokens
        part = "whole" if whole else f"from {span.start:,} of {span.provenance.tokens:,}"
        lines += [
            [
                "    ",
                (f"{span.column:>6,}", "number"),
                f"  {plural(span.tokens, 'token')}: ",
                (f"document {span.document:,}", "title"),
                f" {part}",
            ],
            [" " * INDENT, (describe_origin(span.provenance), "quiet")],
            [" " * INDENT, cut(visible(span_text(store, span)), output.width - INDENT)],
        ]
    if rest := len(row.spans[most:] if most else ()):
        more = f"and {plural(rest, 'more span')}: --row {row.index} shows all"
        lines.append([" " * INDENT, (more, "quiet")])
    return lines


def span_text(store: StoreReader, span: SpanTrace) -> str:
    """Beginning of the text of a span."""
    stop = span.start + min(span.tokens, TEXT_TOKENS)
    ids = store.documents[span.document][span.start : stop].tolist()
    return str(store.tokenizer.decode(ids, skip_special_tokens=False))


STEP = Group("From a step to documents", sort_key=10)
LIST = Group("From steps to a list of documents", sort_key=15)
DOCUMENT = Group("From a document to steps", sort_key=20)

SPANS_A_ROW = 5
_ROWS = RowArguments()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TraceTarget:
    step: Annotated[
        Count | None,
        option("Step, counted from 0: the batch after N batches.", STEP),
    ] = None
    rank: Annotated[int | None, option("Only the rows of this rank. Default: all.", STEP)] = None
    world_size: Annotated[int, option("Ranks that share a batch. Default: 1.", STEP)] = 1
    row: Annotated[Count | None, option("Only this row of the batch, with all its spans.", STEP)] = None
    steps: Annotated[
        str | None, option("Steps A to B - 1, as A:B: all of their documents; with --write.", LIST)
    ] = None
    write: Annotated[
        str | None, option("Write the list of these documents, LIST.parquet, for --exclude.", LIST)
    ] = None
    document: Annotated[Count | None, option("A document by its number in the store.", DOCUMENT)] = None
    id: Annotated[str | None, option("Documents by their id.", DOCUMENT)] = None
    file: Annotated[str | None, option("A document by its file; with --position.", DOCUMENT)] = None
    position: Annotated[
        Count | None, option("Position in the file: byte offset, or row of a Parquet file.", DOCUMENT)
    ] = None
    store: Annotated[
        str | None, option("Folder of the document's store, if a run file has several.", DOCUMENT)
    ] = None


_TARGET = TraceTarget()


def trace(
    target: Annotated[str, Parameter(help="A run file (run.toml), or the folder of a store.")],
    /,
    *,
    wanted: TraceTarget = _TARGET,
    rows: RowArguments = _ROWS,
) -> int:
    """Show the documents of a batch, or the batches of a document.

    TARGET is a run file (run.toml) or a store; for a store, give the settings of
    the training run. Steps are counted from 0: step N is the batch after N
    batches, the next one of a loader whose state has "step": N. --steps A:B --write
    makes a list of what steps A to B - 1 read, for `exclude` in a later stage.

    Examples:

      packline trace run.toml --step 1200
      packline trace run.toml --step 1200 --world-size 8 --rank 3
      packline trace store --seq-len 4096 --batch-size 32 --seed 1 --step 0 --row 5
      packline trace run.toml --steps 0:400 --write seen.parquet
      packline trace run.toml --id a1b2
      packline trace run.toml --file web/a.jsonl --position 12345 --store web
    """
    _check(wanted)
    if wanted.steps is not None:
        return write_steps(target, wanted, rows)
    loader = open_run(target, wanted.world_size, rows.given())
    if wanted.step is not None:
        return show_step(loader, target, wanted)
    return show_documents(loader, target, wanted)


def _check(wanted: TraceTarget) -> None:
    names = ("step", "steps", "document", "id", "file")
    ways = [f"--{name}" for name in names if getattr(wanted, name) is not None]
    if len(ways) != 1:
        found = " and ".join(ways) or "none of them"
        raise RecipeError(
            f"expected one of --step, --steps, --document, --id or --file, found {found}",
            hint="--step 1200 shows a batch; --id a1b2 shows where a document is used",
        )
    if (wanted.file is None) != (wanted.position is None):
        raise RecipeError("--file and --position go together: the place where the document begins")
    if (wanted.steps is None) != (wanted.write is None):
        raise RecipeError("--steps and --write go together", hint="--steps 0:40 --write seen.parquet")
    if wanted.step is None and (wanted.row is not None or wanted.rank is not None):
        raise RecipeError("--row and --rank belong to --step")


def write_steps(target: str, wanted: TraceTarget, rows: RowArguments) -> int:
    """Write the list of all documents of some steps."""
    from packline.loading.trace import trace as trace_run

    assert wanted.steps is not None and wanted.write is not None
    first, _, stop = wanted.steps.partition(":")
    if not (first.isdecimal() and stop.isdecimal()):
        raise RecipeError(f"--steps {wanted.steps}: expected A:B", hint="--steps 0:40 are steps 0 to 39")
    steps = range(int(first), int(stop))
    run = target if is_toml(target) else open_run(target, 1, rows.given())
    documents = trace_run(run, steps=steps, write=wanted.write)
    output.line("  ", ("wrote", "quiet"), f"  {wanted.write}: {plural(documents, 'document')}")
    output.line("  leave them out  ", (f"exclude = {json.dumps(wanted.write)}", "hint"), "  in a later stage")
    written = {"path": wanted.write, "documents": documents}
    return output.result("trace", target=target, steps=[steps.start, steps.stop], written=written)


def show_step(loader: Loader, target: str, wanted: TraceTarget) -> int:
    from packline.loading.trace import store_of, trace_step

    assert wanted.step is not None
    found = trace_step(loader, wanted.step, rank=wanted.rank, row=wanted.row)
    step = f"{found.step:,} of {found.steps:,}, counted from 0; stage {found.stage} of {found.stages:,}"
    batch = f"{plural(found.batch_size, 'row')} of {found.seq_len:,} tokens, shared by "
    batch += plural(found.world_size, "rank")
    output.facts({"run": (target, "title"), "step": step, "batch": batch, "fingerprint": found.fingerprint})
    rows: list[dict[str, Any]] = msgspec.to_builtins(found.rows)
    for row, values in zip(found.rows, rows, strict=True):
        store = store_of(loader, found.stage, row.source)
        if output.mode != "json":
            output.lines([[], *row_lines(store, row, SPANS_A_ROW if wanted.row is None else None)])
            continue
        for span, one in zip(row.spans, values["spans"], strict=True):
            one["text"] = span_text(store, span)
    return output.result("trace", found, target=target, rows=rows)


def show_documents(loader: Loader, target: str, wanted: TraceTarget) -> int:
    from packline.loading.trace import trace_document

    results = []
    for place, (store, document) in enumerate(find_documents(loader, wanted)):
        uses = trace_document(loader, document, store=store)
        if place:
            output.line()
        show_uses(store, document, uses, len(loader))
        results.append(
            {
                "store": str(store.place),
                "document": document,
                "provenance": store.provenance(document),
                "uses": uses,
            }
        )
    return output.result("trace", target=target, documents=results)


def find_documents(loader: Loader, wanted: TraceTarget) -> list[tuple[StoreReader, int]]:
    """Documents named on the command line, each with its store."""
    from packline.loading.trace import stores_of

    stores = stores_of(loader, wanted.store)
    if wanted.document is not None:
        if len(stores) > 1:
            known = ", ".join(str(store.place) for store in stores)
            raise RecipeError(
                f"document {wanted.document} of which store? The run reads {known}",
                hint="name it with --store",
            )
        return [(stores[0], document_number(stores[0], wanted.document))]
    if wanted.file is not None:
        file = wanted.file
        named = [
            store
            for store in stores
            if any(f"/{file}".endswith(f"/{entry.name}") for entry in store.manifest.inputs)
        ]
        stores = named or stores  # the error of a store that has the file is more specific
    found: list[tuple[StoreReader, int]] = []
    failed: list[StoreError] = []
    for store in stores:
        try:
            if wanted.id is not None:
                numbers = find_by_id(store, wanted.id)
            else:
                assert wanted.file is not None and wanted.position is not None
                numbers = find_by_place(store, wanted.file, wanted.position)
            found += [(store, number) for number in numbers]
        except CorruptStore:
            raise
        except StoreError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    return found


def show_uses(store: StoreReader, document: int, uses: list[Occurrence], steps: int) -> None:
    provenance = store.provenance(document)
    origin = f"{describe_origin(provenance)}; {plural(provenance.tokens, 'token')}, split {provenance.split}"
    output.line("  ", (f"document {document:,}", "title"), f" of {store.place}: ", (origin, "quiet"))
    if not uses:
        output.line("    ", (f"not used in the {plural(steps, 'step')} of this run", "warning"))
        return
    names = ("stage", "epoch", "step", "rank", "index", "column", "tokens")
    rows: list[Line] = [
        [
            *(f"{getattr(use, name):,}" for name in names),
            f"{use.start:,} to {use.start + use.tokens:,}",
        ]
        for use in uses
    ]
    head: Line = [("row" if name == "index" else name, "quiet") for name in (*names, "of the document")]
    output.lines(table([head, *rows], "rrrrrrrl", indent=4))
    output.line("    ", ("stages, epochs, steps, ranks and rows are counted from 0", "quiet"))
