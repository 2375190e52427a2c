"""`packline import`: another project's data set becomes a store."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter

from packline.cli.arguments import MAIN, RUNNING, PlaceArguments, Reading, option
from packline.cli.output import output
from packline.cli.progress import finished_facts, imported_values, show_plan, watch
from packline.errors import RecipeError
from packline.formats.import_ import ImportRequest, plan_import, run_import

_PLACE, _READING = PlaceArguments(), Reading()


def import_(
    path: Annotated[str, Parameter(help="File or folder of the dataset.")],
    /,
    *,
    out: Annotated[
        str, Parameter(help="Output folder, or URI: new, empty, or with this import unfinished.", alias="-o")
    ],
    dry_run: Annotated[bool, option("Show what would be read; write nothing.", MAIN)] = False,
    reading: Reading = _READING,
    workers: Annotated[
        int | None, option("Number of processes. Default: one per usable core; 0 for little data.", RUNNING)
    ] = None,
    place: PlaceArguments = _PLACE,
) -> int:
    r"""Turn another project's dataset into a store.

    PATH is its file or folder, and --tokenizer the tokenizer that made its ids.
    Every id and the boundary tokens of every document are checked; damage is an
    error that names the place, and no store is written. After an interruption the
    same command resumes the import.

    Examples:

      packline import data --from megatron --tokenizer gpt2/tokenizer.json \
          --out store
      packline import shards --from llmc --tokenizer gpt2/tokenizer.json \
          --set edges=bos --out store
      packline import data.ds --from datatrove --tokenizer Qwen/Qwen3-8B \
          --eod '<|endoftext|>' --out store
    """
    if reading.tokenizer is None:
        raise RecipeError("no tokenizer", hint="name the one that made the ids with --tokenizer")
    request = ImportRequest(
        path, reading.from_, reading.tokenizer, out, reading.eod, reading.bos, reading.options(), workers
    )
    if dry_run:
        return show_plan("import", partial(plan_import, request))
    with watch() as (tally, hear):
        imported = run_import(request, hear, place.place())
    output.facts(finished_facts(imported, out))
    manifest = imported.manifest
    return output.result(
        "import",
        imported_values(imported, tally, out),
        path=path,
        imported=manifest.imported,
        text_bytes=manifest.ledger.text_bytes,
        unfinished=imported.unfinished,
        shards=len(manifest.shards),
    )
