"""`packline trace`: the documents of a batch, and the batches of a document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from cyclopts import Group, Parameter

from packline.cli.arguments import Count, RowArguments, option
from packline.cli.main import DONE
from packline.cli.output import Line, Piece, output, table
from packline.errors import CorruptStore, RecipeError, StoreError
from packline.formats.choice import option_name
from packline.packing.options import RowOptions
from packline.packing.rows import Rows
from packline.store.lookup import find_by_id, find_by_place
from packline.store.reader import StoreReader, document_number
from packline.toml import is_toml
from packline.viewing.page import TokenStrip
from packline.viewing.terminal import GUTTER, strip_lines
from packline.viewing.text import plural
from packline.viewing.tokens import Vocabulary, cells_of, describe_origin

if TYPE_CHECKING:
    from packline.loading.loader import Loader
    from packline.loading.trace import Occurrence, RowTrace, SpanTrace, StepTrace


TEXT_TOKENS = 64
"""Tokens of a span that are decoded; more than fit in a line."""
INDENT = 12


def step_lines(found: StepTrace, target: str) -> list[Line]:
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
        f"  rank {row.rank}, slot {row.place}: row {row.row:,} of {store.place}, epoch {row.epoch}; ",
        (f"{plural(filled, 'token')} in {plural(len(row.spans), 'span')}{padding}", "quiet"),
    )
    shown = row.spans if most is None else row.spans[:most]
    for span in shown:
        _show_span(store, span)
    if rest := len(row.spans) - len(shown):
        output.line(" " * INDENT, (f"and {plural(rest, 'more span')}: --row {row.index} shows all", "quiet"))


def span_text(store: StoreReader, span: SpanTrace) -> str:
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
    output.line(" " * INDENT, (describe_origin(span.provenance), "quiet"))
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


def trace(
    target: Annotated[str, Parameter(help="A run file (run.toml), or the folder of a store.")],
    /,
    *,
    wanted: Annotated[TraceTarget | None, Parameter(name="*")] = None,
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
    wanted = wanted or TraceTarget()
    _check(wanted)
    if wanted.steps is not None:
        write_steps(target, wanted, rows)
        return DONE
    loader = open_loader(target, wanted.world_size, rows.given())
    if wanted.step is not None:
        show_step(loader, target, wanted)
    else:
        show_documents(loader, target, wanted)
    return DONE


def open_loader(target: str, world_size: int, given: dict[str, Any]) -> Loader:
    """Loader of a training run.

    Args:
        target: a run file, or a store with the settings of a run.
        given: options of rows and documents, by name.

    Raises:
        RecipeError: settings are missing, or also made by the run file.
    """
    from packline.loading.loader import Loader

    if is_toml(target):
        if given:
            raise RecipeError(f"{option_name(min(given))} is for a store: {target} has its own settings")
        return Loader.from_file(target, world_size=world_size, prefetch=0)
    for name in ("seq_len", "batch_size"):
        if name not in given:
            raise RecipeError(
                f"--{name.replace('_', '-')} is required: a store alone does not determine the batches",
                hint="give the settings of the training run, or its run file (run.toml)",
            )
    of_rows = {name: value for name, value in given.items() if name in RowOptions.__struct_fields__}
    of_loader = {name: given[name] for name in ("batch_size", "seed", "epochs") if name in given}
    rows = Rows(StoreReader(target), given["seq_len"], RowOptions(**of_rows))
    shuffle = not given.get("in_order", False)
    return Loader(rows, world_size=world_size, shuffle=shuffle, prefetch=0, **{"seed": 0, **of_loader})


def _check(wanted: TraceTarget) -> None:
    ways = [
        name
        for name, value in (
            ("--step", wanted.step),
            ("--steps", wanted.steps),
            ("--document", wanted.document),
            ("--id", wanted.id),
            ("--file", wanted.file),
        )
        if value is not None
    ]
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


def write_steps(target: str, wanted: TraceTarget, rows: RowArguments) -> None:
    """Write the list of all documents of some steps.

    Raises:
        RecipeError: not two steps of the run, or a list that is not Parquet.
    """
    from packline.loading.trace import trace as trace_run

    assert wanted.steps is not None and wanted.write is not None
    first, _, stop = wanted.steps.partition(":")
    if not (first.isdecimal() and stop.isdecimal()):
        raise RecipeError(f"--steps {wanted.steps}: expected A:B", hint="--steps 0:40 are steps 0 to 39")
    steps = range(int(first), int(stop))
    run = target if is_toml(target) else open_loader(target, 1, rows.given())
    documents = trace_run(run, steps=steps, write=wanted.write)
    output.line("  ", ("wrote", "quiet"), f"  {wanted.write}: {plural(documents, 'document')}")
    output.line("  leave them out  ", (f"exclude = {json.dumps(wanted.write)}", "hint"), "  in a later stage")
    written = {"path": wanted.write, "documents": documents}
    output.result(
        {
            "command": "trace",
            "target": target,
            "exit_code": DONE,
            "steps": [steps.start, steps.stop],
            "written": written,
        }
    )


def show_step(loader: Loader, target: str, wanted: TraceTarget) -> None:
    from packline.loading.trace import store_of, trace_step

    assert wanted.step is not None
    found = trace_step(loader, wanted.step, rank=wanted.rank, row=wanted.row)
    output.lines(step_lines(found, target))
    most = SPANS_A_ROW if wanted.row is None else None
    for row in found.rows:
        output.line()
        show_row(store_of(loader, found.stage, row.source), row, most)
    if output.mode == "json":
        facts = msgspec.to_builtins(found)
        for row, values in zip(found.rows, facts["rows"], strict=True):
            store = store_of(loader, found.stage, row.source)
            for span, one in zip(row.spans, values["spans"], strict=True):
                one["text"] = span_text(store, span)
        output.result({"command": "trace", "target": target, "exit_code": DONE, **facts})


def show_documents(loader: Loader, target: str, wanted: TraceTarget) -> None:
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
                "provenance": msgspec.to_builtins(store.provenance(document)),
                "uses": msgspec.to_builtins(uses),
            }
        )
    output.result({"command": "trace", "target": target, "exit_code": DONE, "documents": results})


def find_documents(loader: Loader, wanted: TraceTarget) -> list[tuple[StoreReader, int]]:
    """Documents named on the command line, each with its store.

    Raises:
        StoreError: none matches; the error lists close matches.
        RecipeError: a number is given alone, but there are several stores.
    """
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
    output.line(
        "  ",
        (f"document {document:,}", "title"),
        f" of {store.place}: ",
        (
            f"{describe_origin(provenance)}; {plural(provenance.tokens, 'token')}, split {provenance.split}",
            "quiet",
        ),
    )
    if not uses:
        output.line("    ", (f"not used in the {plural(steps, 'step')} of this run", "warning"))
        return
    head: Line = [
        (word, "quiet")
        for word in ("stage", "epoch", "step", "rank", "row", "column", "tokens", "of the document")
    ]
    rows: list[Line] = [
        [
            f"{use.stage}",
            f"{use.epoch}",
            f"{use.step:,}",
            f"{use.rank}",
            f"{use.index}",
            f"{use.column:,}",
            f"{use.tokens:,}",
            f"{use.start:,} to {use.start + use.tokens:,}",
        ]
        for use in uses
    ]
    output.lines(table([head, *rows], "rrrrrrrl", indent=4))
    output.line("    ", ("stages, epochs, steps, ranks and rows are counted from 0", "quiet"))
