"""`packline build --dry-run`: an estimate of a build, and of what it takes over, without building."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from packline.cli.output import output
from packline.cli.progress import reuse_lines
from packline.jobs.dry_run import Estimate, estimate_build
from packline.jobs.text_build import prepare
from packline.recipe import Recipe, RunOptions
from packline.viewing.page import Block, KeyValues, Note, Table
from packline.viewing.text import duration, percent, plural, scaled, short_name, size


def dry_run(recipe: Recipe, options: RunOptions, out: str | None, reuse: str | None) -> int:
    """Estimate a build from a sample, and show what it would take over; nothing is written."""
    output.note("looking at the inputs, and encoding a sample of them")
    work = prepare(recipe, options, here=True)
    found = estimate_build(recipe, options, work=work)
    output.blocks(*estimate_blocks(found))
    facts: dict[str, Any] = {}
    if reuse is not None:
        from packline.jobs.reuse import Reuse

        earlier = Reuse(reuse, work, Path(out or os.devnull))
        _, planned = earlier.plan(work.units, strict=options.strict)
        output.lines(reuse_lines(planned))
        facts["reuse"] = planned
    return output.result("build", found, facts, dry_run=True)


def estimate_blocks(found: Estimate) -> list[Block]:
    """Result of an estimate: inputs and engines, sources, time and disk."""
    engines = f"{' and '.join(found.engines_used)}: {found.engines_reason}"
    facts = [
        ("inputs", f"{plural(found.files, 'file')}, {size(found.input_bytes)}; {_fields(found)}"),
        ("tokenizer", f"{short_name(found.tokenizer)}, {found.vocab_size:,} tokens as {found.dtype}"),
        ("boundaries", f"documents end with {found.eod} ({found.eod_id})"),
        ("engines", engines),
    ]
    facts += [("" if place else "rates per worker", rate) for place, rate in enumerate(_rates(found))]
    each = f"of up to {size(found.memory_a_worker)}"
    workers = f"with {plural(found.workers, 'worker process', 'worker processes')} {each} each"
    workers = workers if found.workers else f"in one process {each}"
    ends = (
        ("time", f"{_time(found)} {workers}"),
        ("disk", f"{size(found.store_bytes)}; {size(found.free_disk)} are free"),
        ("units", f"about {found.units:,}"),
    )
    notes = [Note(f"warning: {warning}", "warning") for warning in found.warnings]
    return [KeyValues(tuple(facts)), _source_table(found), KeyValues(ends), *notes]


def _fields(found: Estimate) -> str:
    kinds = []
    for field in found.fields:
        kind = " ".join(filter(None, [field.format, field.compression]))
        kinds.append(f"{kind} (text in field {field.text!r})" if field.text else kind)
    return ", ".join(dict.fromkeys(kinds))


def _rates(found: Estimate) -> list[str]:
    names = {"ascii": "ASCII", "latin": "mostly ASCII", "wide": "other scripts"}
    lines = []
    for script, rates in found.rates.items():
        # The rate of a handful of documents is meaningless.
        known = {engine: rate for engine, rate in rates.items() if rate >= 5 or len(rates) == 1}
        fastest = sorted(known.items(), key=lambda one: -one[1])
        if fastest:
            shown = ", ".join(f"{engine} {rate:.0f} MB/s" for engine, rate in fastest)
            lines.append(f"{names.get(script, script)}: {shown}")
    return lines


def _time(found: Estimate) -> str:
    # On a busy machine the first run of the sample may be the faster one.
    least, most = map(duration, sorted((found.seconds, found.seconds_cold)))
    return f"about {least}" if least == most else f"{least} to {most}"


def _source_table(found: Estimate) -> Table:
    rows = []
    for name, one in found.sources.items():
        rate = f"{1 / one.tokens_per_byte:.2f}" if one.tokens_per_byte else "?"
        counts = (f"{one.files:,}", size(one.text_bytes), f"{one.documents:,}", scaled(one.tokens))
        rows.append((name, *counts, rate, percent(one.bad_fraction)))
    if len(found.sources) > 1:
        rate = f"{1 / found.tokens_per_byte:.2f}" if found.tokens_per_byte else "?"
        counts = (f"{found.files:,}", size(found.text_bytes), f"{found.documents:,}", scaled(found.tokens))
        rows.append(("all", *counts, rate, ""))
    head = ("source", "files", "text", "documents", "tokens", "bytes per token", "bad")
    return Table("", head, tuple(rows), "lrrrrrr")
