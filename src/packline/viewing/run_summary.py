"""Description of a run file, and of the difference between two, as blocks of a page."""

from __future__ import annotations

from packline.loading.run_summary import RunDifference, RunUse
from packline.viewing.difference import settings_table
from packline.viewing.page import Bar, Block, KeyValues, Page, Table
from packline.viewing.text import percent, plural, scaled


def run_summary_page(path: str, run: RunUse) -> Page:
    """Stages of a run, and what each reads of its sources."""
    stages = tuple(
        (
            f"{number}",
            f"{one.first_step:,} to {one.first_step + one.steps - 1:,}",
            f"{one.batch_size:,}",
            f"{one.seq_len:,}",
            scaled(one.tokens),
        )
        for number, one in enumerate(run.stages)
    )
    sources = tuple(
        (
            f"{number}",
            one.source,
            Bar(percent(one.share), one.share),
            f"{one.rows:,}",
            f"{one.used:,}",
            f"{one.epochs:.2f} of {one.max_epochs or 'any'}",
            f"{one.missing:,}" if one.missing else "",
        )
        for number, stage in enumerate(run.stages)
        for one in stage.sources
    )
    head = ("stage", "source", "share", "rows", "rows used", "epochs at its end", "rows missing")
    facts = (("seed", f"{run.seed:,}"), ("order", run.order))
    blocks: tuple[Block, ...] = (
        KeyValues(facts),
        Table("Stages", ("stage", "steps", "rows per batch", "tokens per row", "tokens"), stages, "rrrrr"),
        Table("Sources", head, sources, "rllrrrr"),
    )
    summary = f"{plural(run.steps, 'step')}, {scaled(run.tokens)} tokens, {plural(len(run.stages), 'stage')}"
    return Page(path, blocks, summary=summary, warnings=run.warnings)


def run_difference_blocks(found: RunDifference) -> list[Block]:
    """Blocks that show which settings of two run files differ."""
    result = "equal" if found.equal else "different"
    facts = KeyValues((("first", found.one), ("second", found.other), ("run files are", result)))
    return [facts, *([settings_table(found.settings)] if found.settings else [])]
