"""Pages of a run: its stages on a line, the shares of its sources, and the batch of any step and rank."""

from __future__ import annotations

from packline.errors import RecipeError
from packline.loading.loader import Loader
from packline.loading.schedule import ScheduledStage, source_name
from packline.viewing.page import (
    Bar,
    Block,
    Form,
    FormField,
    Heading,
    KeyValues,
    Link,
    Page,
    Table,
    Timeline,
    Value,
    choice_field,
)
from packline.viewing.text import percent, plural, scaled
from packline.viewing.view import row_panel
from packline.viewing.web.documents import Params
from packline.viewing.web.pages import neighbors
from packline.viewing.web.rows import ROWS_OF_BATCH, TOKENS_OF_ROW, batch_blocks, view_of
from packline.viewing.web.site import InvalidForm, View, address, choice, number


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
        return _row(view, loader, stage, step, row, ranks, chosen)
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
        *batch_blocks(
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


def _row(
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
    shown = row_panel(rows, row, TOKENS_OF_ROW, view_of(view, rows).document, facts)
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
