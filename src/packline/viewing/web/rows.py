"""Pages about rows and batches: a list of rows, one row, the rows of a step; of a run also its stages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from packline.errors import RecipeError, StoreError
from packline.loading.loader import Loader
from packline.loading.schedule import ScheduledStage, source_name
from packline.packing.options import PACKINGS, RowOptions
from packline.packing.rows import Rows
from packline.viewing.describe import left_out_facts
from packline.viewing.page import (
    Bar,
    Block,
    Form,
    FormField,
    Heading,
    KeyValues,
    Link,
    Links,
    Note,
    Page,
    Table,
    Timeline,
    Value,
    choice_field,
)
from packline.viewing.text import percent, plural, scaled
from packline.viewing.tokens import row_strip
from packline.viewing.view import beginning, row_panel
from packline.viewing.web.choosing import open_rows
from packline.viewing.web.documents import Params, choice_fields, chosen_documents
from packline.viewing.web.pages import (
    PAGE_ITEMS,
    default_seq_len,
    neighbors,
    split_param,
    steps,
    store_field,
)
from packline.viewing.web.site import InvalidForm, View, address, choice, number

TOKENS_OF_ROW = 2048
TOKENS_IN_BATCH = 192
ROWS_OF_BATCH = 6


def settings_of(view: View) -> tuple[Rows, Params]:
    tokens = view.store.manifest.tokens
    if tokens < 2:
        raise RecipeError(f"{view.opened.name} has no rows: it has {plural(tokens, 'token')}")
    split = choice(view.params, "split", (*view.opened.splits, "all"), view.opened.splits[0])
    default = default_seq_len(view, split) or 2
    seq_len = number(view.params, "seq_len", default, least=2, most=tokens, what="tokens per row")
    packing: Any = choice(view.params, "packing", PACKINGS, "concat")
    chosen, given = chosen_documents(view)
    params: Params = {
        "seq_len": seq_len,
        "packing": None if packing == "concat" else packing,
        "split": split_param(split),
        **given,
    }
    options = RowOptions(packing=packing, split=split, where=chosen.where, unique=chosen.unique)
    return open_rows(view.store, seq_len, options), params


def form_fields(view: View) -> tuple[FormField, ...]:
    splits = (*view.opened.splits, *(("all",) if len(view.opened.splits) > 1 else ()))
    split = view.params.get("split") or (splits[0] if splits else "train")
    default = str(default_seq_len(view, split) or "")
    packings = [(one, one.replace("_", " ")) for one in PACKINGS]
    return (
        FormField("seq_len", "Tokens per row", view.params.get("seq_len") or default, "number"),
        choice_field("packing", "Packing", view.params.get("packing") or "concat", packings),
        choice_field("split", "Split", split, splits, minor=True),
        *choice_fields(view),
        *store_field(view),
    )


def rows(view: View) -> Page:
    form = Form("Which rows", "/rows", form_fields(view))
    if not len(view.store.documents):
        return Page("Rows", (Note("This store is empty: there are no rows.", "warning"),))
    try:
        found, params = settings_of(view)
    except (RecipeError, StoreError) as error:
        raise InvalidForm.of("Rows", form, error) from error
    page = number(view.params, "page", 0, most=(len(found) - 1) // PAGE_ITEMS)
    first = page * PAGE_ITEMS
    numbers = np.arange(first, min(first + PAGE_ITEMS, len(found)), dtype=np.int64)
    spans = found.spans(numbers)
    table = []
    for row, filled, (start, stop) in zip(
        numbers.tolist(), spans.filled.tolist(), pairwise(spans.offsets.tolist()), strict=True
    ):
        document, begin = int(spans.documents[start]), int(spans.starts[start])
        table.append(
            (
                Link(f"{row:,}", view.href(f"/row/{row}", **params)),
                beginning(view.vocabulary, view.store.documents[document][begin : begin + found.seq_len]),
                f"{stop - start:,}",
                f"{filled:,}",
                f"{found.seq_len - filled:,}",
                Link(f"{document:,}", view.document(document, begin)),
            )
        )
    head = ("row", "begins", "documents", "tokens", "padding", "first document")
    caption = f"{first:,} to {first + len(table) - 1:,} of {plural(len(found), 'row')}"
    chosen = {name: str(value) for name, value in params.items() if value not in (None, "")}
    facts = left_out_facts(found.selection)
    blocks: tuple[Block, ...] = (
        form,
        *((KeyValues(facts),) if facts else ()),
        Table(caption, head, tuple(table), "llrrrl", form="data"),
        *steps(view, "/rows", page, len(found), chosen),
    )
    selection = found.selection
    summary = (
        f"{plural(len(found), 'row')} of {found.seq_len:,} tokens, {found.packing.replace('_', ' ')}, over "
        f"{plural(len(selection), 'document')} of {plural(selection.tokens, 'token')}"
    )
    return Page("Rows", blocks, summary=summary)


def row(view: View, wanted: int) -> Page:
    found, params = settings_of(view)
    if not 0 <= wanted < len(found):
        raise IndexError(
            f"row {wanted:,}: expected 0 to {len(found) - 1:,}, the rows of {found.seq_len:,} tokens"
        )
    every = Link("all rows", view.href("/rows", page=wanted // PAGE_ITEMS or None, **params))
    beside = neighbors(
        "Neighbors",
        wanted,
        len(found) - 1,
        lambda target: view.href(f"/row/{target}", **params),
        ("‹ row before", every, "next row ›"),
    )
    split = view.params.get("split") or view.opened.splits[0]
    facts = (("packing", found.packing.replace("_", " ")), ("split", split))
    shown = row_panel(found, wanted, TOKENS_OF_ROW, view.document, facts)
    summary = f"one of {plural(len(found), 'row')} of {found.seq_len:,} tokens"
    return Page(f"Row {wanted:,}", (beside, shown), summary=summary)


def batch(view: View) -> Page:
    params = view.params
    settings = (
        FormField("batch_size", "Rows per batch", params.get("batch_size") or "32", "number"),
        FormField("seed", "Seed", params.get("seed") or "0", "number"),
        FormField("world_size", "Ranks", params.get("world_size") or "1", "number"),
    )
    wanted = (
        FormField("step", "Step", params.get("step") or "0", "number"),
        FormField("rank", "Rank", params.get("rank") or "", "number", hint="all"),
    )
    form = Form("Which batch", "/batch", (*wanted, *settings, *form_fields(view)))
    if not len(view.store.documents):
        return Page("Batch", (Note("This store is empty: there are no batches.", "warning"),))
    try:
        found, of_rows = settings_of(view)
        size = number(
            params, "batch_size", min(32, len(found)), least=1, most=len(found), what="rows per batch"
        )
        ranks = number(params, "world_size", 1, least=1, most=size, what="ranks")
        seed = number(params, "seed", 0, most=2**31 - 1)
        loader = Loader(found, batch_size=size, seed=seed, world_size=ranks, prefetch=0)
        step = number(params, "step", 0, most=len(loader) - 1)
        rank = number(params, "rank", -1, most=ranks - 1)
    except (RecipeError, StoreError) as error:
        raise InvalidForm.of("Batch", form, error) from error
    of_batch = {"batch_size": size, "seed": seed or None, "world_size": ranks if ranks > 1 else None}
    chosen: Params = {**of_rows, **of_batch, "rank": None if rank < 0 else rank}
    ways = neighbors(
        "Steps",
        step,
        len(loader) - 1,
        lambda target: view.href("/batch", step=target, **chosen),
        ("‹ step before", f"step {step:,}", "next step ›"),
    )
    shown = _batch_blocks(
        view,
        loader,
        step,
        rank,
        ranks,
        lambda _, number: view.href(f"/row/{number}", **of_rows),
        lambda page: view.href("/batch", **chosen, step=step, page=page or None),
    )
    title = f"Batch of step {step:,}" + ("" if rank < 0 else f", rank {rank}")
    summary = (
        f"{plural(size, 'row')} of {found.seq_len:,} tokens; step {step:,} of {len(loader):,}, counted from 0"
    )
    return Page(title, (form, ways, *shown), summary=summary)


def _batch_blocks(
    view: View,
    loader: Loader,
    step: int,
    rank: int,
    ranks: int,
    row_href: Callable[[int, int], str],
    page_href: Callable[[int], str],
) -> list[Block]:
    stage, taken = loader.schedule.stage_of(step), loader.rows_of_step(step)
    share = stage.batch_size // ranks
    indices = range(stage.batch_size) if rank < 0 else range(rank * share, (rank + 1) * share)
    last = (len(indices) - 1) // ROWS_OF_BATCH
    page = number(view.params, "page", 0, most=last)
    shown = indices[page * ROWS_OF_BATCH : (page + 1) * ROWS_OF_BATCH]
    blocks: list[Block] = []
    for index in shown:
        rows, one = stage.mixture.rows[int(taken.sources[index])], int(taken.rows[index])
        place = f"slot {index:,}" if ranks == 1 else f"rank {index // share}, slot {index % share}"
        caption = f"{place}: row {one:,} of {source_name(rows)}, epoch {int(taken.epochs[index])}"
        whole = Link(f"all of row {one:,}", row_href(index, one))
        href = _view_of(view, rows).document
        strip = row_strip(rows, one, caption=caption, most=TOKENS_IN_BATCH, href=href)
        blocks += [strip, Links(f"Slot {index:,}", (whole,))]
    if last:
        words = f"rows {shown[0]:,} to {shown[-1]:,} of {stage.batch_size:,}"
        texts = ("‹ rows before", words, "more rows ›")
        blocks.append(neighbors("Rows of the batch", page, last, page_href, texts))
    return blocks


def _view_of(view: View, rows: Rows) -> View:
    return View(view.site, view.site.place_of(rows.store.place), {})


def run_page(view: View) -> Page:
    runs, params = view.site.runs, view.params
    if not runs:
        raise RecipeError("no run is served", hint="packline serve run.toml")
    names = tuple((str(place), one.name) for place, one in enumerate(runs))
    chosen_run = int(choice(params, "run", [value for value, _ in names], "0"))
    loader = runs[chosen_run].loader
    several = (choice_field("run", "Run", str(chosen_run), names),) if len(runs) > 1 else ()
    form = Form(
        "Which step",
        "/run",
        (
            *several,
            FormField("step", "Step", params.get("step") or "0", "range", most=len(loader) - 1),
            FormField("rank", "Rank", params.get("rank", ""), "number", hint="all"),
            FormField("ranks", "Ranks", params.get("ranks") or "1", "number"),
        ),
    )
    try:
        step = number(params, "step", 0, most=len(loader) - 1)
        stage = loader.schedule.stage_of(step)
        ranks = number(params, "ranks", 1, least=1, most=stage.batch_size)
        if stage.batch_size % ranks:
            raise RecipeError(
                f"ranks is {ranks:,}: expected a number that divides the {stage.batch_size:,} rows of a batch"
            )
        rank = number(params, "rank", -1, most=ranks - 1)
        row = number(params, "row", -1, most=stage.batch_size - 1)
    except RecipeError as error:
        raise InvalidForm.of("Run", form, error) from error
    chosen: Params = {
        "run": chosen_run or None,
        "ranks": ranks if ranks > 1 else None,
        "rank": None if rank < 0 else rank,
    }
    if row >= 0:
        return _row_of_step(view, loader, stage, step, row, ranks, chosen)
    blocks: list[Block] = [
        _timeline(loader, step),
        form,
        neighbors(
            "Steps",
            step,
            len(loader) - 1,
            lambda target: address("/run", **chosen, step=target),
            ("‹ step before", f"step {step:,}", "next step ›"),
            ends=True,
        ),
        _sources(loader, stage, step),
        Heading("Batch"),
        *_batch_blocks(
            view,
            loader,
            step,
            rank,
            ranks,
            lambda index, _: address("/run", **chosen, step=step, row=index),
            lambda page: address("/run", **chosen, step=step, page=page),
        ),
        Heading("Stages"),
        _stages(loader, stage.number, chosen),
        KeyValues((("fingerprint", loader.fingerprint), ("seed", f"{loader.seed:,}"))),
    ]
    title = f"{runs[chosen_run].name}, step {step:,}" + ("" if rank < 0 else f", rank {rank}")
    seq_len = stage.mixture.seq_len
    summary = (
        f"step {step:,} of {len(loader):,}, counted from 0; stage {stage.number}: "
        f"{plural(stage.batch_size, 'row')} of {plural(seq_len, 'token')} per batch"
    )
    return Page(title, tuple(blocks), summary=summary)


def _timeline(loader: Loader, step: int) -> Timeline:
    total = max(len(loader), 1)
    parts = tuple(
        (f"stage {one.number}", one.steps / total, one.number == loader.schedule.stage_of(step).number)
        for one in loader.schedule.stages
    )
    words = ", ".join(
        f"stage {one.number} of {plural(one.steps, 'step')} from {one.first_step:,}"
        for one in loader.schedule.stages
    )
    return Timeline(f"{plural(len(loader), 'step')}: {words}; now step {step:,}", parts, (step + 0.5) / total)


def _row_of_step(
    view: View, loader: Loader, stage: ScheduledStage, step: int, index: int, ranks: int, chosen: Params
) -> Page:
    taken = loader.rows_of_step(step)
    rows = stage.mixture.rows[int(taken.sources[index])]
    row = int(taken.rows[index])
    share = stage.batch_size // ranks

    batch = Link("the batch", address("/run", **chosen, step=step, page=index // ROWS_OF_BATCH or None))
    ways = neighbors(
        "Neighbors",
        index,
        stage.batch_size - 1,
        lambda target: address("/run", **chosen, step=step, row=target),
        ("‹ slot before", batch, "next slot ›"),
    )
    facts = (
        ("source", source_name(rows)),
        ("row", f"{row:,} of {len(rows):,}"),
        ("epoch", f"{int(taken.epochs[index])}"),
        ("rank", f"{index // share}"),
    )
    shown = row_panel(rows, row, TOKENS_OF_ROW, _view_of(view, rows).document, facts)
    return Page(
        f"Step {step:,}, slot {index:,}", (ways, shown), summary=f"row {row:,} of {source_name(rows)}"
    )


def _sources(loader: Loader, stage: ScheduledStage, step: int) -> Table:
    """Table of the sources of a stage and of those before it: share, rows used before the step, passes."""
    used = {rows.fingerprint: (rows, count) for rows, count in loader.schedule.drawn(step)}
    last = loader.schedule.drawn(stage.first_step + stage.steps)
    ends = {rows.fingerprint: count for rows, count in last}
    shares = {
        rows.fingerprint: float(share)
        for rows, share in zip(stage.mixture.rows, stage.mixture.shares, strict=True)
    }
    now = {rows.fingerprint: (rows, 0) for rows in stage.mixture.rows}
    lengths = {rows.seq_len for rows in loader.schedule.sources.values()}
    table: list[tuple[Value, ...]] = []
    for name, (rows, count) in {**now, **used}.items():
        share = shares.get(name)
        table.append(
            (
                source_name(rows) + (f", rows of {rows.seq_len:,}" if len(lengths) > 1 else ""),
                "earlier stages" if share is None else Bar(percent(share), share),
                f"{len(rows):,}",
                f"{count:,}",
                f"{count / len(rows):.2f}",
                f"{ends[name] / len(rows):.2f}",
                scaled(count * rows.seq_len),
            )
        )
    head = ("source", "share", "rows", "rows used", "epochs now", "at its end", "tokens used")
    return Table(
        f"Sources of stage {stage.number}, and their use before step {step:,}", head, tuple(table), "llrrrrr"
    )


def _length(loader: Loader, stage: ScheduledStage) -> str:
    """Tokens of a stage, and those that it would have if the next one did not end it."""
    batch = stage.batch_size * stage.mixture.seq_len
    whole = loader.schedule.declared[stage.number].tokens
    cut = whole is not None and whole // batch > stage.steps
    return scaled(stage.steps * batch) + (f" of {scaled(whole)}" if whole is not None and cut else "")


def _stages(loader: Loader, now: int, params: Params) -> Table:
    rows = tuple(
        (
            Link(f"stage {one.number}", address("/run", **params, step=one.first_step)),
            "now" if one.number == now else "",
            f"{one.first_step:,} to {one.first_step + one.steps - 1:,}",
            f"{one.batch_size:,}",
            f"{one.mixture.seq_len:,}",
            _length(loader, one),
            ", ".join(
                f"{source_name(rows)} {percent(float(share))}"
                for rows, share in zip(one.mixture.rows, one.mixture.shares, strict=True)
            ),
        )
        for one in loader.schedule.stages
    )
    head = ("stage", "current", "steps", "rows per batch", "tokens per row", "tokens", "sources")
    return Table("", head, rows, "lllrrrl")
