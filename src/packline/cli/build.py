"""`packline build`: a build, with its progress and its result, or an estimate of it from a sample."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from packline.cli.arguments import MAIN, Inputs, PlaceArguments, Settings, option, recipe_of
from packline.cli.main import sample_line
from packline.cli.output import output
from packline.cli.progress import Tally, reuse_lines, warn_of_bad, warn_of_splits, watch
from packline.errors import RecipeError
from packline.jobs.events import Finished
from packline.recipe import Recipe, RunOptions
from packline.store.ledger import losses
from packline.viewing.page import Block, KeyValues, Note, Table
from packline.viewing.summaries import ledger_table
from packline.viewing.text import duration, percent, plural, scaled, short_name, size

if TYPE_CHECKING:
    from packline.jobs.dry_run import Estimate

_PLACE, _SETTINGS = PlaceArguments(), Settings()


def build(
    *inputs: Inputs,
    out: Annotated[
        str | None,
        option("Output folder, or URI: new, empty, or with this build unfinished.", MAIN, alias="-o"),
    ] = None,
    dry_run: Annotated[
        bool, option("Estimate result and cost from a sample, and what is reused; write nothing.", MAIN)
    ] = False,
    reuse: Annotated[
        str | None,
        option("Earlier store whose units are taken over where nothing has changed, by hard link.", MAIN),
    ] = None,
    settings: Settings = _SETTINGS,
    place: PlaceArguments = _PLACE,
) -> int:
    r"""Turn text into a token store.

    INPUTS are files of text, and --tokenizer names the tokenizer; or the one
    input is a recipe that names both and may have more settings, which packline
    init drafts. A build may be interrupted at any time: the same command resumes
    it, and the result is the same, byte for byte.

    Examples:

      packline build corpus/ --tokenizer gpt2 --out store
      packline build recipe.toml --dry-run
      packline build 'web/*.jsonl.zst' --tokenizer Qwen/Qwen3-8B \
          --eod '<|endoftext|>' --out store
      packline build books.parquet --text body --tokenizer gpt2 \
          --val-fraction 0.01 --out store
      packline build 's3://bucket/web/*.parquet' --tokenizer gpt2 --out store
      packline build web.parquet --tokenizer gpt2 --out store \
          --columns 'url,score: float' --where "score >= 3"
      packline build recipe.toml --out store --workers 8 --memory 12GiB
      packline build recipe.toml --out tuesday --reuse monday
      packline build recipe.toml --out store --on ray
      packline build recipe.toml --out store --slice 3/8
      packline build recipe.toml --out s3://bucket/store
      packline build recipe.toml --out s3://bucket/store --join

    Exit codes: 0 done, 1 error, 2 wrong usage, 3 done with more bad records than
    --max-bad-fraction, 129, 130 or 143 interrupted by a signal.
    """
    recipe, options = recipe_of(inputs, settings)
    if dry_run:
        return show_dry_run(recipe, options, out, reuse)
    if out is None:
        raise RecipeError("packline build needs --out FOLDER", hint=sample_line(["build"]))
    from packline.jobs.build_job import run_build
    from packline.jobs.resources import process_age

    with watch() as (tally, hear):
        started = time.monotonic() - process_age()
        finished = run_build(recipe, out, options, hear, started, reuse, place.place())
    path = shlex.quote(out)
    done = [Note("nothing to do: the store is complete", "good")] if finished.nothing_to_do else []
    steps = KeyValues((("look at it", f"packline info {path}"), ("check it", f"packline verify {path}")))
    output.line()
    output.blocks(*done, *finished_blocks(finished, out), steps)
    limit = options.max_bad_fraction
    code = warn_of_bad(finished.ledger, limit, out)
    warn_of_splits(finished.warnings)
    return output.result("build", facts(finished, tally, out, limit), code=code)


def facts(finished: Finished, tally: Tally, out: str, max_bad_fraction: float) -> dict[str, Any]:
    """Result of a build as values for JSON output."""
    ledger = finished.ledger
    seconds = max(finished.seconds - finished.first_unit_seconds, 1e-9)
    return structs.asdict(finished) | {
        "store": out,
        "documents": ledger.documents,
        "tokens": ledger.tokens,
        "text_bytes": ledger.text_bytes,
        "bad_records": ledger.bad,
        "bad_fraction": ledger.bad_fraction,
        "max_bad_fraction": max_bad_fraction,
        "bytes_per_second": finished.run_text_bytes / seconds,
        "units_done_before": tally.planned.units_done if tally.planned else finished.units,
        "units_reused": tally.reuse.units if tally.reuse else 0,
        "reuse": tally.reuse,
        "workers": tally.planned.workers if tally.planned else 0,
        "engines": tally.engines.used if tally.engines else [],
        "engines_reason": tally.engines.reason if tally.engines else "",
        "engine_shares": engine_shares(finished),
        "rates": tally.rates,
        "notes": tally.notes,
    }


def finished_blocks(finished: Finished, out: str) -> list[Block]:
    """Ledger, speed, engines, warnings and the resulting store."""
    rows: list[tuple[str, str]] = []
    if finished.run_text_bytes:
        whole = f"{size(finished.run_text_bytes)} of text in {duration(finished.seconds)}"
        rows.append(("time", f"{whole}, {duration(finished.first_unit_seconds)} of it start-up"))
        rows.append(("speed", f"{_speed(finished)} after start-up"))
    if shares := engine_shares(finished):
        rows.append(("encoded by", ", ".join(f"{name} {percent(share)}" for name, share in shares.items())))
    if finished.peak_rss_bytes:
        rows.append(("memory", f"peak {size(finished.peak_rss_bytes)} (largest worker)"))
    rows.append(("store", f"{out}: {plural(finished.shards, 'shard')}, {size(finished.store_bytes)}"))
    notes: list[Block] = []
    if finished.ledger.special_token_strings:
        count = plural(finished.ledger.special_token_strings, "special-token string")
        notes.append(Note(f"{count} inside documents", "warning"))
    for name, ledger in finished.sources.items():
        if not ledger.documents:  # a misspelt field of a filter causes that
            lost = ", ".join(f"{count:,} {reason}" for reason, count in losses(ledger)) or "it has no records"
            notes.append(Note(f"source {name} gave no documents: {lost}", "warning"))
    return [ledger_table(finished.ledger), *notes, KeyValues(tuple(rows))]


def _speed(finished: Finished) -> str:
    running = max(finished.seconds - finished.first_unit_seconds, 1e-3)
    tokens = finished.ledger.tokens * finished.run_text_bytes / max(finished.ledger.text_bytes, 1)
    return f"{size(finished.run_text_bytes / running)}/s, {scaled(tokens / running)} tokens/s"


def engine_shares(finished: Finished) -> dict[str, float]:
    """Share of the text encoded by each engine, largest first."""
    whole = sum(finished.engine_bytes.values())
    ordered = sorted(finished.engine_bytes.items(), key=lambda item: -item[1])
    return {name: size / whole for name, size in ordered if size} if whole else {}


def show_dry_run(recipe: Recipe, options: RunOptions, out: str | None, reuse: str | None) -> int:
    """Estimate a build from a sample, and show what it would take over; nothing is written."""
    from packline.jobs.dry_run import estimate_build
    from packline.jobs.text_build import prepare

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
