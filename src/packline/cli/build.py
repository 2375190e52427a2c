"""`packline build`: run a build, show its progress and its result."""

from __future__ import annotations

import time
from typing import Annotated, Any

from msgspec import structs

from packline.cli.arguments import MAIN, Inputs, PlaceArguments, Settings, option, recipe_of
from packline.cli.output import output
from packline.cli.progress import Tally, engine_shares, show_finished, warn_of_bad, warn_of_splits, watch
from packline.cli.usage import sample_line
from packline.errors import RecipeError
from packline.jobs.events import Finished

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
        from packline.cli.dry_run import dry_run as show

        return show(recipe, options, out, reuse)
    if out is None:
        raise RecipeError("packline build needs --out FOLDER", hint=sample_line(["build"]))
    from packline.jobs.build_job import run_build
    from packline.jobs.resources import process_age

    with watch() as (tally, hear):
        started = time.monotonic() - process_age()
        finished = run_build(recipe, out, options, hear, started, reuse, place.place())
    show_finished(finished, out)
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
